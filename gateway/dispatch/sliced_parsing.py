"""Parses long records in slices, one after another, so that the event loop can run between the slices.

The shortest record is parsed first. Hundreds of streams that are lost together then do not wait for a long
one, and not more than one or two long ones are half parsed, which takes memory.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import structlog

from gateway.domain.timers import Timers
from shared.process.timers import Cancellable

TURN_US = 1_500
"""Microseconds of one turn of the event loop that are spent on parsing; at most one slice more."""

THEN_US = 250
"""Microseconds that acting on a parsed record is assumed to take."""

_log = structlog.get_logger(__name__)


class ParseWork(Protocol):
    """What can be read a slice at a time; :class:`gateway.dispatch.recovery.ContinuationReading`."""

    @property
    def left_bytes(self) -> int:
        """Still to be read."""
        ...

    def step(self) -> int:
        """Read the next slice, of some milliseconds at the most. Gives about how many microseconds it took;
        0 when there is nothing left to read. Raises nothing: whoever waits must be told."""
        ...


class ParseJob:
    """Work that waits for its turn."""

    def __init__(self, work: ParseWork, then: Callable[[], None]) -> None:
        self.work: ParseWork | None = work
        """None once the task was cancelled."""
        self._then: Callable[[], None] | None = then

    def cancel(self) -> None:
        """Do not call ``then``. Without effect after it was called."""
        self.work = self._then = None

    def tell(self) -> None:
        if self._then is not None:
            then, self._then = self._then, None
            then()


class SlicedParser:
    """Belongs to the event loop's thread."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._tasks: list[tuple[int, int, ParseJob]] = []
        """A heap, ordered by bytes left, then by arrival."""
        self._numbers = count()
        self._used_us = 0
        """Microseconds used in this turn of the event loop."""
        self._turn: Cancellable | None = None

    def read(self, work: ParseWork, then: Callable[[], None]) -> ParseJob | None:
        """Read all of ``work``. None: it has been read at once, as there was room in this turn of the loop.
        Else ``then`` is called when it is, unless the task is cancelled before."""
        self._look_again()
        while not self._tasks and self._used_us < TURN_US:
            cost_us = work.step()
            self._used_us += cost_us or THEN_US
            if not cost_us:
                return None
        task = ParseJob(work, then)
        heappush(self._tasks, (work.left_bytes, next(self._numbers), task))
        return task

    def close(self) -> None:
        """Nothing is read any more."""
        self._tasks.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _look_again(self) -> None:
        if self._turn is None:
            self._turn = self._timers.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn, self._used_us = None, 0
        while self._tasks and self._used_us < TURN_US:
            self._read_on(self._tasks[0])
        if self._tasks:
            self._look_again()

    def _read_on(self, entry: tuple[int, int, ParseJob]) -> None:
        """One slice of what is shortest."""
        task = entry[2]
        if task.work is None:
            heappop(self._tasks)
            return
        try:
            cost_us = task.work.step()
            if not cost_us:
                heappop(self._tasks)
                task.tell()
        except Exception:
            _log.exception("reading_failed")
            if self._tasks and self._tasks[0] is entry:
                heappop(self._tasks)
            return
        self._used_us += cost_us or THEN_US
