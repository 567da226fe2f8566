"""Guards one engine: ``python -I -S process_guard.py GRACE_S COMMAND…``. Standard library only; POSIX.

Stands between an agent and an engine that knows nothing of agents, so that nothing of the engine is ever left
behind. Ends the engine with all that it has started when it is told to (SIGTERM), when the engine's first
process ends, and when standard input does, which is when the agent has died. An end in order is asked for
first; what is left after the grace is killed. Where the system knows subreapers (Linux), processes that have
left the engine's process group are found as well, and the engine does not outlive this process either.

Says one line on standard error, ``started PID`` or ``failed REASON``; standard output is the engine's, for
all it says. Ends as the engine has ended: with its status, or by its signal.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

ORPHAN_GRACE_S = 2.0
"""Grace when the agent has died: long enough for ``docker run --rm`` and others that pass a signal on."""

KILL_S = 30.0
"""How long what was killed may take to be gone: a process that hangs in a driver cannot be helped."""

NOT_STARTED = 127

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ProcessGuard:
    def __init__(self, grace_s: float, command: list[str]) -> None:
        self._grace_s = grace_s
        self._command = command
        self._stop_requested = False
        self._pid = 0
        """The engine's first process, which leads a group."""
        self._status: int | None = None
        """Its wait status, once it has ended."""
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)

    def run(self) -> int:
        """The engine's wait status, when nothing of it is left."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            engine = self._start()
        except (OSError, ValueError) as error:
            _say(f"failed {self._command[0]}: {getattr(error, 'strerror', None) or error}")
            return NOT_STARTED << 8
        _say(f"started {engine.pid}")
        self._pid = engine.pid
        self._wait()
        self._end()
        return self._status if self._status is not None else signal.SIGKILL

    def _start(self) -> "subprocess.Popen[bytes]":
        parent = os.getpid()

        def before_exec() -> None:
            _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(NOT_STARTED)

        return subprocess.Popen(  # noqa: S603  the operator's own command, and no shell
            self._command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,
        )

    def _request_stop(self, number: int, frame: object) -> None:
        self._stop_requested = True

    def _wait(self) -> None:
        """Until the engine's first process has ended, or its grace is over."""
        until_s: float | None = None
        watched = [0, self._awake]
        while not self._has_ended():
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            ready, _, _ = select.select(watched, (), (), left_s)
            orphaned = 0 in ready and not _read(0)
            if self._awake in ready:
                _read(self._awake)
            if orphaned:
                watched.remove(0)
            if (orphaned or self._stop_requested) and until_s is None:
                _signal_group(self._pid, signal.SIGTERM)
                until_s = time.monotonic() + self._grace_s
            if orphaned and until_s is not None:
                until_s = min(until_s, time.monotonic() + ORPHAN_GRACE_S)

    def _end(self) -> None:
        """Kill what is left of it."""
        _signal_group(self._pid, signal.SIGKILL)
        until_s = time.monotonic() + KILL_S
        while time.monotonic() < until_s:
            ended, left = self._has_ended(), _children()
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if ended and not left:
                return
            time.sleep(0.005)

    def _has_ended(self) -> bool:
        """Whether the engine's first process has. Others that have, and have become ours, go as well."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    self._status = found[1]
        return self._status is not None


def _children() -> list[int]:
    """Who has become our child because its own parent ended; none where the system does not tell."""
    found = []
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def _say(line: str) -> None:
    with suppress(OSError):
        os.write(2, line.encode(errors="replace").replace(b"\n", b" ")[:1000] + b"\n")


def end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, where it can (Linux)."""
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    """prctl(2), where there is one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    status = ProcessGuard(float(sys.argv[1]), sys.argv[2:]).run()
    if os.WIFSIGNALED(status):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # there is no other way to take SIGKILL
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
