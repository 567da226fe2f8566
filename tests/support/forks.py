"""Processes of a test that are forked from one that has imported their module already.

``child`` starts one: a :class:`ForkedChild` where that is the same as a start of its own, else a
:class:`Child`. Only where :func:`use_forks` was called; a load that measures, or the command line itself, is
tested with processes that start as they do for users. ``TRUNKLINE_TEST_FORKS=0`` turns forks off.
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
from typing import IO, Any

from gateway.tools.quickstart.processes import Child
from tests.support.fork_server import MODULES, PACKET_BYTES

_ROOT = Path(__file__).parents[2]
_READ_AT_IMPORT = frozenset({"TRUNKLINE_NATIVE"})
_READ_LATER = frozenset({"PYTEST_CURRENT_TEST", "HOME", "PATH", "SSL_CERT_FILE", "TMPDIR", "COLUMNS"})
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


class ForkServer:
    """A process of ``tests.support.fork_server`` for one module. Safe to use from several threads."""

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = dict(os.environ)
        """What was set when it imported the module."""
        self._lock = threading.Lock()
        self._connection = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno()), module],
                cwd=_ROOT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

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
        """End it, and with SIGTERM everything that it started."""
        self._connection.close()
        self._process.wait()

    def _ask(self, order: Mapping[str, object], files: Sequence[int] = ()) -> dict[str, Any]:
        packet = json.dumps(order).encode()
        assert len(packet) < PACKET_BYTES, "too many arguments or too large an environment"
        with self._lock:
            socket.send_fds(self._connection, [packet], files)
            answer = self._connection.recv(PACKET_BYTES)
        if not answer:
            raise RuntimeError(f"the fork server ended with exit code {self._process.wait()}")
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
        self._servers: dict[str, ForkServer] = {}
        self._lock = threading.Lock()

    def server(self, module: str, environment: Mapping[str, str]) -> ForkServer | None:
        """One that forks what a start with this environment would be, or None."""
        if not self.used or module not in MODULES or os.environ.get(_SWITCH) == "0":
            return None
        with self._lock:
            if module not in self._servers:
                self._servers[module] = ForkServer(module)
            server = self._servers[module]
        return server if _same_imports(server.environment, environment) else None

    def end(self) -> None:
        """End all of them."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].end()


def _same_imports(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
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


def child(
    name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Run ``python -m`` with ``arguments``, as :class:`Child` does."""
    whole = {**os.environ, **(environment or {})}
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
