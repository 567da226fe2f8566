"""A worker, as its supervisor sees it: a new process, or a fork, that inherits sockets and nothing else."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from functools import partial

import gateway
from gateway.runtime.workers.channel import BEAT, END, LEAVE, READY, SETTLED, STOP
from gateway.runtime.workers.forked import ForkedProcess
from gateway.runtime.workers.role import WorkerRole
from shared.process.startup import environment_of_child

COMMAND = (sys.executable, "-P", "-m", "gateway.cli.worker")

STACKS_BYTES = 12 * 1024
"""Of that so much is read, from the end: the thread of the event loop comes last."""


class WorkerProcess:
    """Leads a process group: a Ctrl-C on a terminal is for the supervisor, which passes on what it means."""

    def __init__(
        self,
        role: WorkerRole,
        descriptors: Collection[int],
        command: Collection[str] = COMMAND,
        *,
        serve: Callable[[list[str]], int] | None = None,
    ) -> None:
        """Starts it. ``descriptors`` are those that it inherits, with the same numbers; ``command`` gets the
        numbers of two more: of the channel, and of a file for :meth:`stacks`. With ``serve`` it is a fork,
        which calls this with the two numbers, and ends with the status that comes. Raises OSError."""
        self.index = role.index
        self.process = role.process
        self.is_ready = False
        self.is_settled = False
        self.is_ending = False
        """It was told to end."""
        self.beats = 0
        """Signs of life that came."""
        self.reload_later = False
        """It is to read the settings again once it is ready."""
        self._said = b""
        self._stacks = tempfile.TemporaryFile(dir=role.state)  # noqa: SIM115 (closed with the channel)
        self.channel, theirs = socket.socketpair()
        with theirs:
            inherited = (theirs.fileno(), self._stacks.fileno())
            try:
                self._process = _start([*map(str, inherited)], (*descriptors, *inherited), command, serve)
            except BaseException:
                self.close()
                raise
        with contextlib.suppress(OSError):  # it has ended already, which is found out by its status
            self.channel.sendall(role.encode() + b"\n")
        self.channel.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status, or minus the number of the signal that ended it; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """To the worker only; nothing where it has ended."""
        self._process.send_signal(number)

    def tell(self, what: bytes, descriptors: Collection[int] = ()) -> None:
        """A line of :mod:`gateway.runtime.workers.channel`, and descriptors that it gets copies of."""
        self.is_ending |= what in (LEAVE, STOP, END)
        with contextlib.suppress(OSError):  # it is ending, or hangs and will be killed
            if descriptors:
                socket.send_fds(self.channel, [what], list(descriptors))
            else:
                self.channel.send(what)

    def read(self) -> bool:
        """Take what it says. Whether it may say more."""
        try:
            data = self.channel.recv(4096)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        *lines, self._said = (self._said + data).split(b"\n")
        self.is_ready |= READY.strip() in lines
        self.is_settled |= SETTLED.strip() in lines
        self.beats += lines.count(BEAT.strip())
        return bool(data)

    def stacks(self) -> str:
        """Where its threads were when it last got ``STACKS_SIGNAL``, as far as it has written that down."""
        descriptor = self._stacks.fileno()
        start = max(0, os.fstat(descriptor).st_size - STACKS_BYTES)
        return os.pread(descriptor, STACKS_BYTES, start).decode(errors="replace")

    def close(self) -> None:
        """Let go of the channel. Idempotent."""
        self.channel.close()
        self._stacks.close()


def _start(
    numbers: list[str],
    descriptors: Collection[int],
    command: Collection[str],
    serve: Callable[[list[str]], int] | None,
) -> subprocess.Popen[bytes] | ForkedProcess:
    if serve is not None:
        return ForkedProcess(partial(serve, numbers), descriptors)
    return subprocess.Popen(  # noqa: S603  our own interpreter and modules
        [*command, *numbers],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=environment_of_child(gateway),
        process_group=0,
    )
