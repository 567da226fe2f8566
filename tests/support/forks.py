"""Processes of a test that are forked from one that has imported their module already.

``child`` starts one: a :class:`ForkedChild` where that is the same as a start of its own, else a
:class:`Child`. Only where :func:`use_forks` was called: a load whose figures count starts its processes as
users do, and so does what tests the command line itself. ``TRUNKLINE_TEST_FORKS=0`` turns forks off.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from gateway.tools.quickstart.processes import Child
from tests.support.fork_server import MODULES, PACKET_BYTES
from tests.support.stand_ins import STAND_INS

_ROOT = Path(__file__).parents[2]
_READ_AT_IMPORT = frozenset({"TRUNKLINE_NATIVE"})
_READ_LATER = frozenset(
    {"PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "HOME", "PATH", "SSL_CERT_FILE", "TMPDIR", "COLUMNS"}
)
_SWITCH = "TRUNKLINE_TEST_FORKS"


class ForkedProcess:
    """What a test needs of :class:`subprocess.Popen`, for a process that a fork server started."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._lock = threading.Lock()
        self._ended = os.pidfd_open(pid)  # the fork server reaps nothing that it is not asked to reap
        weakref.finalize(self, os.close, self._ended)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, sig: int) -> None:
        """Nothing is sent to what has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, sig)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._wait_for_end(timeout_s):
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._server.reap(self.pid)
        return self.returncode

    def _wait_for_end(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class SharedForks:
    """Fork servers for this process and all that are forked from it: the first that needs one starts it, and
    each is served by a fork of its own, so that all import a module once. They end with the last process."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._address = f"\0trunkline-forks-{os.getpid()}-{token_hex(8)}-"
        self._alive, self._writable = os.pipe()
        self._started: list[subprocess.Popen[bytes]] = []

    def connect(self, module: str) -> socket.socket:
        """To the fork server of this module."""
        address = self._address + module
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.suppress(OSError):
            listener.bind(address)  # fails where another process did that
            listener.listen(64)
            self._started.append(_start(listener, module, self.environment, self._alive))
            atexit.register(_leave, self._started[-1])
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(address)
        return connection

    def end(self) -> None:
        """Nobody else uses them: end those that this process started."""
        os.close(self._alive)
        os.close(self._writable)
        for process in self._started:
            process.wait()


def _leave(process: "subprocess.Popen[bytes]") -> None:
    """This process ends before one that it started for others, too: ``subprocess`` would complain."""
    if process.poll() is None:
        process.returncode = 0


def _start(
    theirs: socket.socket, module: str, environment: Mapping[str, str], alive: int | None = None
) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno()), module]
    return subprocess.Popen(
        [*line, *(() if alive is None else (str(alive),))],
        cwd=_ROOT,
        env=environment,
        pass_fds=(theirs.fileno(), *(() if alive is None else (alive,))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


class ForkServer:
    """A process of ``tests.support.fork_server`` for one module. Safe to use from several threads."""

    def __init__(self, module: str, shared: SharedForks | None = None) -> None:
        """``shared``: not one of its own, but a fork of one of these."""
        self.environment = dict(os.environ) if shared is None else shared.environment
        """What was set when it imported the module."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        if shared is not None:
            self._connection = shared.connect(module)
            return
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _start(theirs, module, self.environment)

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[IO[bytes]],
        directory: Path | None = None,
    ) -> ForkedProcess:
        """Start a process with these standard files, in ``directory`` or where this one is."""
        where = str(directory or Path.cwd())
        run = {"arguments": arguments, "environment": dict(environment), "directory": where}
        numbers = [file.fileno() for file in files]
        return ForkedProcess(self, self._ask({"run": run}, numbers)["pid"])

    def reap(self, pid: int) -> int:
        """The exit code of a process that has ended, negative for a signal."""
        return os.waitstatus_to_exitcode(self._ask({"reap": pid})["status"])

    def end(self) -> None:
        """End it, and with SIGTERM everything that it started. One that is shared ends in its own time."""
        self._connection.close()
        if self._process is not None:
            self._process.wait()

    def _ask(self, order: Mapping[str, object], files: Sequence[int] = ()) -> dict[str, Any]:
        packet = json.dumps(order).encode()
        assert len(packet) < PACKET_BYTES, "too many arguments or too large an environment"
        with self._lock:
            socket.send_fds(self._connection, [packet], files)
            answer = self._connection.recv(PACKET_BYTES)
        if not answer:
            raise RuntimeError("the fork server ended: what it said is in this process's standard error")
        return dict(json.loads(answer))


class ForkedChild(Child):
    """A :class:`Child` that was not started but forked."""

    def __init__(
        self,
        name: str,
        server: ForkServer,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
            self._process = server.run(arguments, environment, (nothing, output, output))


class Forks:
    """The fork servers of this process."""

    def __init__(self) -> None:
        self.used = False
        self.shared: SharedForks | None = None
        self._servers: dict[str, ForkServer] = {}
        self._lock = threading.Lock()

    def server(self, module: str, environment: Mapping[str, str]) -> ForkServer | None:
        """One that forks what a start with this environment would be, or None."""
        if not self.used or module not in MODULES or os.environ.get(_SWITCH) == "0":
            return None
        with self._lock:
            if module not in self._servers:
                self._servers[module] = ForkServer(module, self.shared)
            server = self._servers[module]
        return server if same_imports(server.environment, environment) else None

    def end(self) -> None:
        """End all of them."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].end()


def same_imports(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether modules that are imported with the one environment are the same as with the other. Settings of
    Trunkline are read later, and all others may be read by some library."""
    differing = {name for name in {*one, *other} if one.get(name) != other.get(name)}
    return not any(name in _READ_AT_IMPORT or not _is_setting(name) for name in differing)


def _is_setting(name: str) -> bool:
    return name.startswith("TRUNKLINE_") or name in _READ_LATER


_FORKS = Forks()
atexit.register(_FORKS.end)


def use_forks() -> None:
    """From now on :func:`child` forks where it can."""
    _FORKS.used = hasattr(os, "pidfd_open")


def share_forks() -> None:
    """From now on this process and those that are forked from it have fork servers together."""
    _FORKS.shared = SharedForks()


def child(
    name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Run ``python -m`` with ``arguments``, as :class:`Child` does."""
    whole = {**os.environ, **(environment or {})}
    if arguments[0] in STAND_INS:
        arguments = ("tests.support.stand_ins", *arguments)
    server = _FORKS.server(arguments[0], whole)
    if server is None:
        return Child(name, arguments, log, environment)
    return ForkedChild(name, server, arguments[1:], log, whole)


COMMAND_LINE = "shared.process.cli"
_COMMAND_S = 120.0


def trunkline(
    *arguments: str, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the command ``trunkline`` to its end, in ``environment``, by default this process's. Raises
    subprocess.TimeoutExpired where it does not come to one."""
    whole = dict(os.environ if environment is None else environment)
    server = _FORKS.server(COMMAND_LINE, {**os.environ, **whole})
    line = [sys.executable, "-m", COMMAND_LINE, *arguments]
    if server is None:
        return subprocess.run(
            line, capture_output=True, text=True, timeout=_COMMAND_S, check=False, env=whole, cwd=directory
        )
    with (
        Path(os.devnull).open("rb") as nothing,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        process = server.run(arguments, whole, (nothing, output, errors), directory)
        try:
            code = process.wait(_COMMAND_S)
        finally:
            process.kill()
        said = [_text(file) for file in (output, errors)]
    return subprocess.CompletedProcess(line, code, *said)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
