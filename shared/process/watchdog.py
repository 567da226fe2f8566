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
from typing import Protocol

import structlog

from shared.process.stand_stills import BEAT_S, StandStills

_log = structlog.get_logger(__name__)

STACK_FRAMES = 12
"""The innermost ones; files, lines and names of functions, never a value."""


class BlockedLoopReporter(Protocol):
    """Is told of each episode, by the watchdog's thread."""

    def loop_blocked(self, now: float, stack: Callable[[], list[str]]) -> None:
        """An episode has begun. ``stack`` tells where the loop's thread is."""

    def loop_turns(self, now: float, lasted_s: float) -> None:
        """It is over."""

    def process_stood_still(self, now: float, lasted_s: float) -> None:
        """Nothing in this process ran, so the loop did not either."""

    def looked(self, now: float) -> None:
        """Called after each look."""


class LoopWatchdog:
    """Tells of each episode once when it begins and once at its end.

    :meth:`look` is all its logic: the thread calls it with the time and when the loop last turned.
    """

    def __init__(
        self, reporter: BlockedLoopReporter, blocked_s: float, stack: Callable[[], list[str]], now: float
    ) -> None:
        self._reporter = reporter
        self._blocked_s = blocked_s
        self._stack = stack
        self._looked_s = now
        self._pardon_s = now
        """Until then the loop's silence is not its own."""
        self._since_s: float | None = None
        """When the loop turned last before it was found blocked."""

    def look(self, now: float, turned_s: float) -> None:
        """``turned_s`` is when the loop turned last."""
        stood_still_s = now - self._looked_s - BEAT_S
        self._looked_s = now
        if self._since_s is not None:
            if turned_s > self._since_s:
                lasted_s = turned_s - self._since_s - BEAT_S
                self._since_s = None
                self._reporter.loop_turns(now, lasted_s)
        elif stood_still_s >= self._blocked_s:
            self._pardon_s = now
            self._reporter.process_stood_still(now, stood_still_s)
        elif now - max(turned_s, self._pardon_s) - BEAT_S >= self._blocked_s:
            self._since_s = turned_s
            self._reporter.loop_blocked(now, self._stack)
        self._reporter.looked(now)


@contextmanager
def watched_loop(
    reporter: BlockedLoopReporter, blocked_s: float, stills: StandStills | None = None
) -> Iterator[None]:
    """The running loop is watched while inside; its thread must be the one that enters. ``stills`` is told of
    every turn. The thread looks as often as the loop says that it turns."""
    loop, thread, over = asyncio.get_running_loop(), threading.get_ident(), threading.Event()
    turned_s = time.monotonic()
    timer: asyncio.TimerHandle
    watchdog = LoopWatchdog(reporter, blocked_s, lambda: stack_of(thread), turned_s)

    def turn() -> None:
        nonlocal turned_s, timer
        turned_s = time.monotonic()
        if stills is not None:
            stills.turn(turned_s)
        timer = loop.call_later(BEAT_S, turn)

    def watch() -> None:
        while not over.wait(BEAT_S):
            try:
                watchdog.look(time.monotonic(), turned_s)
            except Exception:  # a report that fails must not be the last look
                _log.error("watchdog_failed", exc_info=True)

    timer = loop.call_later(BEAT_S, turn)

    watching = threading.Thread(target=watch, name="watchdog", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        timer.cancel()
        watching.join()


def stack_of(thread: int) -> list[str]:
    """Where a thread of this process is, outermost first."""
    frame = sys._current_frames().get(thread)
    frames = islice(traceback.walk_stack(frame) if frame is not None else (), STACK_FRAMES)
    return [f"{at.f_code.co_filename}:{line} {at.f_code.co_name}" for at, line in frames][::-1]
