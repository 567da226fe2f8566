"""What was measured."""

from collections import Counter

from gateway.bench.errors import RequestFailed
from gateway.bench.histogram import Histogram

_KINDS = 32
"""Kinds of errors told apart; servers could make up any number."""
OTHER = "other"


class Tally:
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
        self.failed = 0
        self.cut = 0
        """Still running when the bench was stopped."""
        self.running = 0
        self.window_answers = 0
        self.window_events = 0
        self.events = 0
        """Of requests that were right."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.uncounted = 0
        """Right answers whose server did not say how many tokens they were."""
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        """Of each kind of error, what the first one said."""

    def succeeded(self, latency_s: float, events: int, usage: tuple[int, int] | None) -> None:
        self.right += 1
        self.latency.add(latency_s)
        self.events += events
        if usage is None:
            self.uncounted += 1
        else:
            self.prompt_tokens += usage[0]
            self.completion_tokens += usage[1]

    def broke(self, failure: RequestFailed) -> None:
        self.failed += 1
        known = failure.kind in self.errors or len(self.errors) < _KINDS
        kind = failure.kind if known else OTHER
        self.errors[kind] += 1
        self.examples.setdefault(kind, str(failure))
