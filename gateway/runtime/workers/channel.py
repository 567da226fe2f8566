"""Between the supervisor and one worker: a pair of sockets, over which the worker learns its role, says that
it serves, and is told to stop. Its end is how each of them learns of the other's.

A worker is not told to stop by a signal, because service managers send theirs to all processes of a service:
with the supervisor's that would be the second one, which ends everything at once.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable

from gateway.runtime.workers.role import WorkerRole
from gateway.runtime.workers.sockets import receive

READY = b"ready\n"
SETTLED = b"settled\n"
"""As many agents are here as at the others."""
BEAT = b"beat\n"
"""The event loop runs: said every second while the worker serves."""
PEERS = b"peers "
"""Begins a line that names all workers."""
COVER = b"cover "
"""Begins a line with the place of a worker that is away. Its listening sockets come along: accept from them
as well."""
RELEASE = b"release "
"""Begins a line with the place of one that serves again: accept for it no more."""
LEAVE = b"leave\n"
"""Another one serves in this place: accept no connection, let finish what runs, and end."""
STOP = b"stop\n"
"""Let finish what runs, and end."""
END = b"end\n"
"""End at once."""

STACKS_SIGNAL = signal.SIGUSR1
"""Has a worker write down where each of its threads is, whatever it is doing (faulthandler)."""

_ROLE_BYTES = 1024 * 1024
_MOST_SOCKETS = 8
"""Of one read; a line brings two at most."""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


class BadRole(Exception):
    """Whoever started this process is no supervisor."""


class SupervisorLink:
    """A worker's end."""

    def __init__(self, channel: socket.socket) -> None:
        """Reads the role, and has the kernel end this process with the supervisor, where it can. Raises
        BadRole."""
        self._channel = channel
        self._sockets: list[socket.socket] = []
        """Those that came and that nobody has taken."""
        try:
            with channel.makefile("rb") as lines:
                self.role = WorkerRole.decode(lines.readline(_ROLE_BYTES))
        except (OSError, ValueError, TypeError) as error:
            raise BadRole("a worker is started by trunkline gateway --workers, and by nobody else") from error
        _end_with(self.role.supervisor)

    def report(self, what: bytes) -> None:
        """``READY``, ``SETTLED`` or ``BEAT``, or several of them, which arrive together."""
        with contextlib.suppress(OSError):
            self._channel.sendall(what)

    def watch(self, loop: asyncio.AbstractEventLoop, told: Callable[[bytes], None]) -> None:
        """Have ``told`` called with each line of the supervisor's, and once with nothing when it has
        died."""
        buffer = bytearray()

        def read() -> None:
            data = b""
            try:
                data, sockets = receive(self._channel, 4096, _MOST_SOCKETS)
                self._sockets.extend(sockets)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                pass
            buffer.extend(data)
            while (end := buffer.find(b"\n") + 1) > 0:
                line = bytes(buffer[:end])
                del buffer[:end]
                told(line)
            if not data:
                loop.remove_reader(self._channel)
                told(b"")

        self._channel.setblocking(False)
        loop.add_reader(self._channel, read)

    def take_sockets(self, count: int) -> list[socket.socket]:
        """The next ``count`` sockets that came with lines. Whoever takes them closes them; there are fewer if
        this process had no descriptors for them."""
        taken, self._sockets = self._sockets[:count], self._sockets[count:]
        return taken

    def close(self) -> None:
        """Idempotent. Not while an event loop watches."""
        self._channel.close()
        for each in self.take_sockets(len(self._sockets)):
            each.close()


def _end_with(supervisor: int) -> None:
    """What kills the supervisor kills this process as well; one that is dead already does so now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        raise BadRole("the supervisor of this worker is gone")
