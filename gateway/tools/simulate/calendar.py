"""The virtual clock, and what is to happen when."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

_Event = tuple[float, int, Callable[[Any, float], None], Any]


class _PlannedCall:
    """A callback that can be called off."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def happen(self) -> None:
        if self._callback is not None:
            self._callback()


def _call(call: _PlannedCall, now: float) -> None:
    call.happen()


class Calendar:
    """Events in the order of their times; those of the same instant in the order in which they were planned.
    Implements :class:`gateway.domain.timers.Timers` for the gateway's own parts."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[_Event] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def next_s(self) -> float:
        """When the next event is; there must be one."""
        return self._events[0][0]

    def plan(self, at_s: float, happen: Callable[[Any, float], None], subject: object) -> None:
        """``happen(subject, at_s)`` is to be called then."""
        heapq.heappush(self._events, (at_s, next(self._order), happen, subject))

    def take(self) -> tuple[Callable[[Any, float], None], Any]:
        """The next event, which is now; there must be one."""
        self.now_s, _, happen, subject = heapq.heappop(self._events)
        return happen, subject

    def time(self) -> float:
        """See :class:`~gateway.domain.timers.Timers`."""
        return self.now_s

    def call_soon(self, callback: Callable[[], None], /) -> _PlannedCall:
        """See :class:`~gateway.domain.timers.Timers`."""
        return self.call_at(self.now_s, callback)

    def call_at(self, when_s: float, callback: Callable[[], None], /) -> _PlannedCall:
        """See :class:`~gateway.domain.timers.Timers`."""
        call = _PlannedCall(callback)
        self.plan(max(when_s, self.now_s), _call, call)
        return call
