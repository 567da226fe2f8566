"""Counts over the last seconds, in buckets: constant memory, constant time."""

WINDOW_S = 10
"""What "lately" means everywhere here."""


class CountWindow:
    """Sums of two counts over the last ``WINDOW_S`` seconds, forgotten a second at a time."""

    __slots__ = ("_buckets", "_second")

    def __init__(self) -> None:
        self._buckets = [[0.0, 0.0] for _ in range(WINDOW_S)]
        self._second = 0

    def add(self, first: float, second: float, now: float) -> None:
        """Count ``first`` and ``second`` at ``now``."""
        self._forget(now)
        bucket = self._buckets[self._second % WINDOW_S]
        bucket[0] += first
        bucket[1] += second

    def sums(self, now: float) -> tuple[float, float]:
        """Both counts, of the last ``WINDOW_S`` seconds."""
        self._forget(now)
        return sum(bucket[0] for bucket in self._buckets), sum(bucket[1] for bucket in self._buckets)

    def take_back(self, now: float) -> None:
        """One of the second count, if there is one."""
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
