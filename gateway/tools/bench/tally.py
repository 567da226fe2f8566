"""What was measured: counts, and durations in buckets, so that a million of them take no more memory than
ten."""

from array import array
from collections import Counter

from gateway.tools.bench.plan import RequestFailed

_STEP_BITS = 6
_STEPS = 1 << _STEP_BITS
"""Buckets for each doubling: percentiles are right within 0.8 %."""
_DOUBLINGS = 40
"""Up to 2^40 µs, twelve days."""
_MOST = (1 << _DOUBLINGS) - 1

_KINDS = 32
"""Kinds of errors that are counted separately; servers could send any number."""
OTHER = "other"


class Histogram:
    """A histogram of durations in seconds, kept as whole microseconds."""

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * _STEPS * (_DOUBLINGS - _STEP_BITS + 1)))
        self.count = 0
        self._sum_us = 0
        self._max_us = 0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count it; what is negative counts as nothing."""
        value = min(max(0, int(duration_s * 1e6)), _MOST)
        power = value.bit_length() - _STEP_BITS - 1
        self._buckets[value if power < 0 else power * _STEPS + (value >> power)] += times
        self.count += times
        self._sum_us += value * times
        if value > self._max_us:
            self._max_us = value

    def percentile_s(self, share: float) -> float:
        """The duration that ``share`` (0 to 1) of them do not exceed. Raises ValueError for none."""
        if not self.count:
            raise ValueError("no durations")
        rank, seen = max(1, -int(-share * self.count // 1)), 0
        for index, count in enumerate(self._buckets):
            seen += count
            if seen >= rank:
                return min(_middle_us(index), self._max_us) / 1e6
        raise AssertionError("buckets hold fewer than were counted")

    def summary_s(self) -> dict[str, float] | None:
        """Mean, percentiles and maximum in seconds; None when there are none."""
        if not self.count:
            return None
        shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
        return {
            "mean": self._sum_us / self.count / 1e6,
            **{name: self.percentile_s(share) for name, share in shares.items()},
            "max": self._max_us / 1e6,
        }


def _middle_us(index: int) -> float:
    """The middle of a bucket's durations."""
    if index < 2 * _STEPS:
        return index
    power = index // _STEPS - 1
    return ((index - power * _STEPS) << power) + (1 << power) / 2


class BenchTally:
    """Counts of one bench.

    Latencies are of requests meant to start while it counts, also of those that end later; rates and gaps are
    of what came while it counts.
    """

    def __init__(self) -> None:
        self.counting = False
        self.latency = Histogram()
        self.first = Histogram()
        self.gaps = Histogram()
        self.delay = Histogram()
        """How long after it was meant to each request was sent."""
        self.right = 0
        """Requests that succeeded."""
        self.failed = 0
        self.cut = 0
        """Still running when the bench was stopped."""
        self.running = 0
        self.window_answers = 0
        self.window_events = 0
        self.events = 0
        """Those of the right answers whose server said how many tokens they were."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.uncounted = 0
        """Right answers whose server did not say how many tokens they were."""
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        """The message of the first error of each kind."""

    def add_success(self, latency_s: float, events: int, usage: tuple[int, int] | None) -> None:
        self.right += 1
        self.latency.add(latency_s)
        if usage is None:
            self.uncounted += 1
        else:
            self.events += events
            self.prompt_tokens += usage[0]
            self.completion_tokens += usage[1]

    def add_failure(self, failure: RequestFailed) -> None:
        self.failed += 1
        known = failure.kind in self.errors or len(self.errors) < _KINDS
        kind = failure.kind if known else OTHER
        self.errors[kind] += 1
        self.examples.setdefault(kind, str(failure))
