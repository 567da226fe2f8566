"""How long answers take: the 95th percentile of the latest, per model and route.

The 256 latest answers are kept and sorted when somebody asks, at most once for every eight new ones: 256
floats are 2 KiB, sorting them takes some ten microseconds, and unlike a streaming estimator (P²) they
forget what was.
"""

from collections import OrderedDict, deque

LATEST = 256
LEAST_SAMPLES = 20
QUANTILE = 0.95
MOST_KEYS = 1024
FRESH = 8
"""The quantile is computed anew after so many new answers."""


class _Latest:
    __slots__ = ("_cached_s", "_new", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=LATEST)
        self._cached_s = 0.0
        self._new = FRESH

    def note(self, time_s: float) -> None:
        self._times.append(time_s)
        self._new += 1

    def quantile_s(self) -> float | None:
        if len(self._times) < LEAST_SAMPLES:
            return None
        if self._new >= FRESH:
            self._new = 0
            ordered = sorted(self._times)
            self._cached_s = ordered[min(int(QUANTILE * len(ordered)), len(ordered) - 1)]
        return self._cached_s


class AnswerTimes:
    """Of the ``MOST_KEYS`` pairs of model and route that answered last."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, str], _Latest] = OrderedDict()

    def note(self, model: str, route: str, time_s: float) -> None:
        """An answer took ``time_s``."""
        latest = self._latest.get((model, route))
        if latest is None:
            latest = self._latest[model, route] = _Latest()
            if len(self._latest) > MOST_KEYS:
                self._latest.popitem(last=False)
        else:
            self._latest.move_to_end((model, route))
        latest.note(time_s)

    def quantile_s(self, model: str, route: str) -> float | None:
        """What 95 % of the latest answers took at most; None before there were 20."""
        latest = self._latest.get((model, route))
        return None if latest is None else latest.quantile_s()
