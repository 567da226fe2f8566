"""Agents' connections between workers: the kernel gives a connection to any worker, and an agent that dials
``/tunnel/<process>`` wants a certain one. The worker that reads this passes the socket on (SCM_RIGHTS,
unix(7)), with what it has read of it, over a Unix socket in the state directory.

Nothing waits for anybody: the kernel's queue at the other worker is short (net.unix.max_dgram_qlen), and
where it is full, or the worker is away, the connection stays where it is and the agent is told to dial again.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

from gateway.runtime.workers.siblings import DIRECTORY
from gateway.runtime.workers.sockets import receive, short_path

MOST_BYTES = 64 * 1024
"""Of what was read. The head of an upgrade has 32 KiB at most (PROTOCOL §2.1)."""

_AT_ONCE = 16
"""Connections taken in one turn of the event loop."""

Take = Callable[[socket.socket, bytes], None]
"""Goes on with a connection, which is its own from then on, of which these bytes have been read."""


class ConnectionPassing:
    """Passes connections to siblings and takes those that they pass. Belongs to the event loop's thread."""

    def __init__(self, state_dir: Path, own: str, others: Callable[[], list[str]]) -> None:
        """``others`` gives the names of the other workers that there are now."""
        self._directory = state_dir / DIRECTORY
        self._own = own
        self._others = others
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._in: socket.socket | None = None

    def start(self, take: Take) -> None:
        """Take connections from now on. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        incoming = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            incoming.setblocking(False)
            with short_path(self._directory, _file_name(self._own)) as path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                incoming.bind(path)
                os.chmod(path, 0o600)
        except BaseException:
            incoming.close()
            raise
        self._in = incoming
        asyncio.get_running_loop().add_reader(incoming, self._read, incoming, take)

    def close(self) -> None:
        """Neither take nor pass on. Idempotent."""
        self._out.close()
        incoming, self._in = self._in, None
        if incoming is not None:
            asyncio.get_running_loop().remove_reader(incoming)
            incoming.close()
            with contextlib.suppress(FileNotFoundError), self._path(self._own) as path:
                os.unlink(path)

    def pass_on(self, process: str, descriptor: int, data: bytes) -> bool:
        """Whether the worker ``process`` has the connection now, with ``data`` that was read of it. The
        caller lets go of its own descriptor then; else nothing has happened."""
        if process not in self._others() or len(data) > MOST_BYTES:
            return False
        rights = array.array("i", [descriptor])
        try:
            with self._path(process) as path:
                self._out.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, path)
        except OSError:  # it is away, or its queue is full
            return False
        return True

    def _path(self, process: str) -> contextlib.AbstractContextManager[str]:
        return short_path(self._directory, _file_name(process))

    def _read(self, incoming: socket.socket, take: Take) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, sockets = receive(incoming, MOST_BYTES, 1)
            except (BlockingIOError, InterruptedError):
                return
            for connection in sockets:
                take(connection, data)


def _file_name(process: str) -> str:
    return f"{process}.passed.sock"
