"""What is remembered of late: entries, counts and rates, in bounded memory and with constant time a step."""

from collections import OrderedDict
from collections.abc import Callable
from math import exp
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentDict(OrderedDict[K, V]):
    """The ``most`` entries that were set last, in that order; one that is set anew counts as the last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

    def renewed(self, key: K, make: Callable[[], V]) -> V:
        """The entry of ``key``, made if there is none. It counts as the last."""
        found = self.get(key)
        if found is None:
            self[key] = found = make()
        else:
            self.move_to_end(key)
        return found


WINDOW_S = 10
"""Seconds that a :class:`CountWindow` covers."""


class CountWindow:
    """Sums of two counts over the last ``WINDOW_S`` seconds, forgotten a second at a time."""

    __slots__ = ("_bucket", "_buckets", "_ends_s", "_second")

    def __init__(self) -> None:
        self._buckets = [[0.0, 0.0] for _ in range(WINDOW_S)]
        self._second = 0
        self._bucket, self._ends_s = self._buckets[0], 1.0
        """Of that second, and when it ends."""

    def add(self, first: float, second: float, now: float) -> None:
        """Count ``first`` and ``second`` at ``now``."""
        if now >= self._ends_s:
            self._forget(now)
        bucket = self._bucket
        if first:
            bucket[0] += first
        if second:
            bucket[1] += second

    def sums(self, now: float) -> tuple[float, float]:
        """Both counts, of the last ``WINDOW_S`` seconds."""
        self._forget(now)
        return sum(bucket[0] for bucket in self._buckets), sum(bucket[1] for bucket in self._buckets)

    def take_back(self, now: float) -> None:
        """Take one of the second count back, if there is one."""
        self._forget(now)
        for bucket in self._buckets:
            if bucket[1] >= 1.0:
                bucket[1] -= 1.0
                return

    def clear(self) -> None:
        for bucket in self._buckets:
            bucket[:] = 0.0, 0.0

    def _forget(self, now: float) -> None:
        second = int(now)
        if second - self._second >= WINDOW_S:
            self.clear()
            self._second = second
        while self._second < second:
            self._second += 1
            self._buckets[self._second % WINDOW_S][:] = 0.0, 0.0
        self._bucket, self._ends_s = self._buckets[self._second % WINDOW_S], self._second + 1.0


TOGETHER = 1 / 1024
"""Arrivals within this share of the time for which they are remembered count as if they had come together."""


class ArrivalRate:
    """Arrivals per second, an exponentially forgetting mean: one counts e times less after ``memory_s``.

    Those of the first ``window_s`` are spread over that time, for a burst is no stream.
    """

    __slots__ = ("_arrivals", "_began_s", "_memory_s", "_together_until_s", "_updated_s", "_window_s")

    def __init__(self, now: float, memory_s: float = 30.0, window_s: float = 10.0) -> None:
        self._memory_s = memory_s
        self._window_s = window_s
        self._arrivals = 0.0
        self._began_s = now
        self._updated_s = self._together_until_s = now

    def arrived(self, now: float) -> None:
        """One more came."""
        if now >= self._together_until_s:
            self._arrivals, self._updated_s = self._left(now), now
            self._together_until_s = now + self._memory_s * TOGETHER
        self._arrivals += 1.0

    def per_s(self, now: float) -> float:
        """Arrivals per second of late."""
        seen_s = self._memory_s * (1.0 - exp(-(now - self._began_s) / self._memory_s))
        return self._left(now) / max(seen_s, self._window_s)

    def _left(self, now: float) -> float:
        return self._arrivals * exp(-max(0.0, now - self._updated_s) / self._memory_s)
