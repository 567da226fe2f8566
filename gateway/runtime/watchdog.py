"""Notices from outside that the event loop does not turn: something blocks it, or the machine stands still.

A thread looks at when the loop last turned; only a thread can say *where* it hangs while it does.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import structlog

from gateway.observability.metrics import Metrics

BEAT_S = 0.25
"""How often the loop says that it turns, and how often the thread looks."""

QUIET_S = 60.0
"""After an episode was told, the next ones within this time are only counted."""

STACK_FRAMES = 12
"""The innermost ones; files, lines and names of functions, never a value."""

_log = structlog.get_logger("gateway")


class LoopWatchdog:
    """Tells of each episode once when it begins, with the stack of the loop's thread, and once at its end.

    :meth:`look` is all its logic: the thread calls it with the time and when the loop last turned.
    """

    def __init__(
        self,
        metrics: Metrics,
        blocked_s: float,
        stack: Callable[[], list[str]],
        now: float,
    ) -> None:
        self._metrics = metrics
        self._blocked_s = blocked_s
        self._stack = stack
        self._looked_s = now
        self._pardon_s = now
        """Until then the loop's silence is not its own."""
        self._since_s: float | None = None
        """When the loop turned last before it was found blocked."""
        self._told_s = float("-inf")
        self._telling = False
        self._untold = 0
        metrics.machine_trouble("loop", False)

    def look(self, now: float, turned_s: float) -> None:
        """``turned_s`` is when the loop turned last."""
        stood_still_s = now - self._looked_s - BEAT_S
        self._looked_s = now
        if self._since_s is not None:
            if turned_s > self._since_s:
                self._over(turned_s - self._since_s - BEAT_S)
        elif stood_still_s >= self._blocked_s:
            self._pardon_s = now
            self._metrics.loop_blocked(stood_still_s)
            _log.warning("process_stood_still", for_s=round(stood_still_s, 1))
        elif now - max(turned_s, self._pardon_s) - BEAT_S >= self._blocked_s:
            self._begin(now, turned_s)

    def _begin(self, now: float, turned_s: float) -> None:
        self._since_s = turned_s
        self._metrics.machine_trouble("loop", True)
        self._telling = now - self._told_s >= QUIET_S
        if not self._telling:
            self._untold += 1
            return
        _log.error("loop_blocked", stack=self._stack(), untold=self._untold)
        self._told_s, self._untold = now, 0

    def _over(self, lasted_s: float) -> None:
        self._since_s = None
        self._metrics.loop_blocked(lasted_s)
        self._metrics.machine_trouble("loop", False)
        if self._telling:
            _log.warning("loop_turns", blocked_s=round(lasted_s, 1))


class _Beat:
    """When the loop turned last; a timer on it keeps that up to date."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._turn()

    def _turn(self) -> None:
        self.turned_s = time.monotonic()
        self._timer = self._loop.call_later(BEAT_S, self._turn)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def watched_loop(metrics: Metrics, blocked_s: float) -> Iterator[None]:
    """The running loop is watched while inside; its thread must be the one that enters."""
    thread, over = threading.get_ident(), threading.Event()
    beat = _Beat(asyncio.get_running_loop())
    watchdog = LoopWatchdog(metrics, blocked_s, lambda: stack_of(thread), time.monotonic())

    def watch() -> None:
        while not over.wait(BEAT_S):
            watchdog.look(time.monotonic(), beat.turned_s)

    watching = threading.Thread(target=watch, name="watchdog", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        beat.stop()
        watching.join()


def stack_of(thread: int) -> list[str]:
    """Where a thread of this process is, outermost first."""
    frame = sys._current_frames().get(thread)
    frames = islice(traceback.walk_stack(frame) if frame is not None else (), STACK_FRAMES)
    return [f"{at.f_code.co_filename}:{line} {at.f_code.co_name}" for at, line in frames][::-1]
