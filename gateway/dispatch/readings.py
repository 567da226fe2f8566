"""Reads what is long a slice at a time, so that the event loop goes round between the slices.

What is short is read first, whoever came before: hundreds of streams that are lost together wait for nobody
who has a long one, and of long ones no more than one or two are half read, which takes memory.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import structlog

from gateway.domain.timers import Cancellable, Timers

TURN_US = 1_500
"""Of one turn of the event loop are spent on reading, and at most a slice more."""

THEN_US = 250
"""What is done with what was read takes so long."""

_log = structlog.get_logger(__name__)


class Work(Protocol):
    """What can be read a slice at a time; :class:`gateway.dispatch.recovery.ContinuationReading`."""

    @property
    def left_bytes(self) -> int:
        """Still to be read."""
        ...

    def step(self) -> int:
        """Read the next slice, of some milliseconds at the most. Gives about how many microseconds it took;
        0 when there is nothing left to read. Raises nothing: whoever waits must be told."""
        ...


class Task:
    """Work that waits for its turn."""

    def __init__(self, work: Work, then: Callable[[], None]) -> None:
        self.work: Work | None = work
        """None: nobody wants to know any more."""
        self._then: Callable[[], None] | None = then

    def cancel(self) -> None:
        """Nobody wants to know any more. Without effect once it was told."""
        self.work = self._then = None

    def tell(self) -> None:
        if self._then is not None:
            then, self._then = self._then, None
            then()


class Readings:
    """Belongs to the event loop's thread."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._tasks: list[tuple[int, int, Task]] = []
        """A heap: by bytes, then in the order in which they came."""
        self._numbers = count()
        self._used_us = 0
        """Of this turn of the loop."""
        self._turn: Cancellable | None = None

    def read(self, work: Work, then: Callable[[], None]) -> Task | None:
        """Read all of ``work``. None: it has been read at once, as there was room in this turn of the loop.
        Else ``then`` is called when it is, unless the task is cancelled before."""
        self._look_again()
        while not self._tasks and self._used_us < TURN_US:
            cost_us = work.step()
            self._used_us += cost_us or THEN_US
            if not cost_us:
                return None
        task = Task(work, then)
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

    def _read_on(self, entry: tuple[int, int, Task]) -> None:
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
