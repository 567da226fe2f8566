"""What is counted of aliases. Labels are bounded: operators name aliases and targets, clients name none."""

from prometheus_client import CollectorRegistry

from gateway.observability.metric_table import OTHER, MetricTable, counter, histogram

LABELS = 200
"""Pairs of an alias and a target with labels of their own; all others count under ``other``."""

_LATENCIES_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class AliasFigures(MetricTable):
    """The counters of one gateway."""

    requests = counter(
        "trunkline_alias_requests",
        "Client requests for an alias, by the model or version it stood for and by status class.",
        "alias",
        "target",
        "status",
    )
    duration_s = histogram(
        "trunkline_alias_request_seconds",
        "From the arrival of a request for an alias to its last byte.",
        "alias",
        "target",
        buckets=_LATENCIES_S,
    )
    first_byte_s = histogram(
        "trunkline_alias_first_byte_seconds",
        "From the arrival of a request for an alias to the first byte of its answer.",
        "alias",
        "target",
        buckets=_LATENCIES_S,
    )
    fallbacks = counter(
        "trunkline_fallbacks", "Requests that another model answered instead.", "alias", "target"
    )
    copies = counter(
        "trunkline_mirrored_requests",
        "Copies of requests for a shadow: by status class, failed, cancelled, or why there was none.",
        "alias",
        "target",
        "outcome",
    )
    copy_s = histogram(
        "trunkline_mirrored_request_seconds",
        "From a copy's sending to the last byte of its answer.",
        "alias",
        "target",
        buckets=_LATENCIES_S,
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pairs: set[tuple[str, str]] = set()
        super().__init__(registry)

    def finished(
        self, alias: str, target: str, status: int, total_s: float, first_byte_s: float | None
    ) -> None:
        """A client's request is over; ``first_byte_s`` is None when there was none."""
        pair = self._labels(alias, target)
        self.requests(*pair, f"{status // 100}xx")
        self.duration_s(*pair, total_s)
        if first_byte_s is not None:
            self.first_byte_s(*pair, first_byte_s)

    def fell_back(self, alias: str, target: str) -> None:
        """``target`` answers instead."""
        self.fallbacks(*self._labels(alias, target))

    def mirrored(self, alias: str, target: str, outcome: str, total_s: float | None = None) -> None:
        """A copy's answer came whole, after ``total_s``; or something else became of it."""
        pair = self._labels(alias, target)
        self.copies(*pair, outcome)
        if total_s is not None:
            self.copy_s(*pair, total_s)

    def _labels(self, alias: str, target: str) -> tuple[str, str]:
        pair = alias, target
        if pair in self._pairs:
            return pair
        if len(self._pairs) >= LABELS:
            return OTHER, OTHER
        self._pairs.add(pair)
        return pair
