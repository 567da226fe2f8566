"""A clock that moves only when the test says so."""

import heapq
import itertools
from collections.abc import Callable

MOST_AT_ONCE = 100_000
"""So many timers never fall due at one time, unless one is set again and again for a time that has come."""


class Timer:
    """What :meth:`ManualClock.call_at` returns."""

    def __init__(self, when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            callback, self._callback = self._callback, None
            callback()


class ManualClock:
    """Seconds from a monotonic clock under the test's control; calling it gives the time.

    Timers set with :meth:`call_at` fire inside :meth:`advance`, in order of their time, each seeing its own.
    """

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []

    def __call__(self) -> float:
        return self._now_s

    @property
    def now_s(self) -> float:
        return self._now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when_s, callback)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(self._now_s + delay_s, callback)

    def advance(self, by_s: float) -> None:
        """Move the time on, firing what falls due on the way."""
        assert by_s >= 0, "a monotonic clock does not go back"
        end_s, fired = self._now_s + by_s, 0
        while self._timers and self._timers[0][0] <= end_s:
            when_s, _, timer = heapq.heappop(self._timers)
            fired = 1 if when_s > self._now_s else fired + 1
            assert fired <= MOST_AT_ONCE, "a timer is set for a time that has come, each time that it fires"
            self._now_s = max(self._now_s, when_s)
            timer.fire()
        self._now_s = end_s
