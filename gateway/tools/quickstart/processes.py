"""Child processes that end with their parent, and whose output is kept for error messages."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

STOP_GRACE_S = 10.0
"""How long a process may take to stop when asked before it is killed."""
TELL_S = 2.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
_TAIL_LINES = 25


class QuickstartFailed(Exception):
    """A quickstart cannot go on. The message is fit for the person at the terminal."""


class ProcessEnded(QuickstartFailed):
    """The gateway or the agent ended by itself, or never became ready."""


def _die_with_parent() -> None:
    """In the child: ask the kernel for a SIGTERM when the parent (its thread) is gone, even if killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ChildHandle(Protocol):
    """What a child is to its parent: of :class:`subprocess.Popen` what is used here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...


class Child:
    """One module run as ``python -m``, in a process group of its own, writing to ``log``."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        """``environment`` is laid over this process's own; None takes a variable away."""
        laid_over = {**os.environ, **(environment or {})}
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process: ChildHandle = subprocess.Popen(  # noqa: S603 (our own interpreter and modules)
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                env={variable: value for variable, value in laid_over.items() if value is not None},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise ProcessEnded, with the end of its log, if the process is gone."""
        code = self._process.poll()
        if code is not None:
            raise ProcessEnded(f"the {self.name} ended with exit code {code}; it said:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines it printed."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:]) or "  (nothing)"

    def ended(self, timeout_s: float) -> int | None:
        """Its exit code once it has ended; None if it has not within ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send it a signal, and nothing to its children."""
        self._process.send_signal(number)

    def stop(self) -> bool:
        """Ask it to stop, wait, kill what is left of its group. False if it had to be killed."""
        if self._process.poll() is None:
            self._process.terminate()
        in_time = self.ended(STOP_GRACE_S) is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return in_time


class Children(contextlib.AbstractContextManager["Children"]):
    """The children in the order of their start; leaving the context stops them in the opposite order."""

    def __init__(self, directory: Path, make: "Callable[..., Child]" = Child) -> None:
        """``make`` is called with what :class:`Child` is."""
        self._directory = directory
        self._make = make
        self._children: list[Child] = []
        self.killed: list[Child] = []
        """Those that did not stop when they were asked to."""

    def __exit__(self, *error: object) -> None:
        while self._children:
            self.stop(self._children[-1])

    def start(self, name: str, *arguments: str, environment: Mapping[str, str | None] | None = None) -> Child:
        """Run ``python -m`` with ``arguments``; its log is ``name`` in the directory."""
        child = self._make(name, arguments, self._directory / f"{name}.log", environment)
        self._children.append(child)
        return child

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def stop(self, child: Child) -> None:
        """Stop one of them before the others."""
        self._children.remove(child)
        if not child.stop():
            self.killed.append(child)

    def check(self) -> None:
        """Raise ProcessEnded if any of them is gone."""
        for child in self._children:
            child.check()

    def wait_until(
        self,
        ready: Callable[[], bool],
        what: str,
        timeout_s: float,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """Return once ``ready`` says so; ``tell`` is called every ``TELL_S`` until then. Raises ProcessEnded
        if a child ends first or it takes too long."""
        deadline_s = time.monotonic() + timeout_s
        tell_s = time.monotonic() + TELL_S
        while not ready():
            self.check()
            if time.monotonic() >= tell_s:
                tell_s += TELL_S
                tell()
            if time.monotonic() > deadline_s:
                tails = "\n".join(f"the {child.name} said:\n{child.tail()}" for child in self._children)
                raise ProcessEnded(f"{what}: not after {timeout_s:.0f} s\n{tails}")
            time.sleep(_POLL_S)
