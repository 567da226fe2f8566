"""A process that is forked from this one: it has imported already what a new one would begin with.

Only where this process has one thread, on Linux: a fork has none of the others, and locks that they held stay
locked in it.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

_THREADS, _FILES = Path("/proc/self/task"), Path("/proc/self/fd")
_STANDARD = frozenset({0, 1, 2})
"""The descriptors of input, output and errors."""
_FAILED = 1


def can_fork() -> bool:
    """Whether a fork of this process would be whole."""
    return sys.platform == "linux" and _THREADS.is_dir() and len(list(_THREADS.iterdir())) == 1


class ForkedProcess:
    """What a supervisor needs of :class:`subprocess.Popen`, for a fork of this process."""

    def __init__(self, run: Callable[[], int], descriptors: Collection[int]) -> None:
        """Forks. The fork leads a process group, has no file but standard output and errors and
        ``descriptors``, which it passes on to no child, does at a signal what a process does by default, and
        ends with what ``run`` returns. Raises OSError."""
        self.returncode: int | None = None
        _flush()  # or what waits there would be written twice
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become(run, descriptors, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def poll(self) -> int | None:
        """Its exit status, or minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it, and knows how it ended
                self.returncode = _FAILED
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(run: Callable[[], int], descriptors: Collection[int], mask: Collection[int]) -> NoReturn:
    """In the fork: run, and end. The frames behind this one are never returned to, so nothing that they hold
    is closed, whose descriptor may be another file's by now."""
    code = _FAILED
    try:
        gc.freeze()  # nor may it be found later that something is garbage
        atexit._clear()
        os.setpgid(0, 0)
        _forget_signals(mask)
        _close_others(descriptors)
        code = run()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            code = end.code or 0
        else:
            print(end.code, file=sys.stderr)  # noqa: T201  as Python does
    except BaseException:
        traceback.print_exc()
    end_fork(code)


def end_fork(code: int) -> NoReturn:
    """End this process, a fork, with exit status ``code``. Of what Python does at its end this does what
    others can see: to take apart all that was imported, most of which it shares with others, takes as long
    as a third of a gateway's start."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
        _flush()
    except BaseException:
        traceback.print_exc()
        code = code or _FAILED
    finally:
        os._exit(code)


def _forget_signals(mask: Collection[int]) -> None:
    """What was received before is not meant for the fork; what comes now does what it does by default."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _close_others(descriptors: Collection[int]) -> None:
    """Standard input is at its end, and of all other files only these stay open."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in descriptors:
        os.set_inheritable(number, False)
    for number in {int(name) for name in os.listdir(_FILES)} - {*_STANDARD, *descriptors}:
        with contextlib.suppress(OSError):  # the one by which they were listed
            os.close(number)


def _flush() -> None:
    """A process may have none of these, and who reads them may be gone."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()
