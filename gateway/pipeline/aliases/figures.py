"""What is counted of aliases. Labels are bounded: operators name aliases and targets, clients name none."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.observability.metrics import OTHER

LABELS = 200
"""Pairs of an alias and a target with labels of their own; all others count under ``other``."""

_LATENCIES_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class AliasFigures:
    """The counters of one gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pairs: set[tuple[str, str]] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=_LATENCIES_S)

        self._requests = cache(
            counter(
                "trunkline_alias_requests",
                "Client requests for an alias, by the model or version it stood for and by status class.",
                "alias",
                "target",
                "status",
            ).labels
        )
        self._duration = cache(
            histogram(
                "trunkline_alias_request_seconds",
                "From the arrival of a request for an alias to its last byte.",
                "alias",
                "target",
            ).labels
        )
        self._first_byte = cache(
            histogram(
                "trunkline_alias_first_byte_seconds",
                "From the arrival of a request for an alias to the first byte of its answer.",
                "alias",
                "target",
            ).labels
        )
        self._fallbacks = counter(
            "trunkline_fallbacks", "Requests that another model answered instead.", "alias", "target"
        )
        self._mirrored = counter(
            "trunkline_mirrored_requests",
            "Copies of requests for a shadow: by status class, failed, cancelled, or why there was none.",
            "alias",
            "target",
            "outcome",
        )
        self._mirrored_s = histogram(
            "trunkline_mirrored_request_seconds",
            "From a copy's sending to the last byte of its answer.",
            "alias",
            "target",
        )

    def finished(
        self, alias: str, target: str, status: int, total_s: float, first_byte_s: float | None
    ) -> None:
        """A client's request is over; ``first_byte_s`` is None when there was none."""
        alias, target = self._labels(alias, target)
        self._requests(alias, target, f"{status // 100}xx").inc()
        self._duration(alias, target).observe(total_s)
        if first_byte_s is not None:
            self._first_byte(alias, target).observe(first_byte_s)

    def fell_back(self, alias: str, target: str) -> None:
        """``target`` answers instead."""
        self._fallbacks.labels(*self._labels(alias, target)).inc()

    def mirrored(self, alias: str, target: str, outcome: str, total_s: float | None = None) -> None:
        """A copy's answer came whole, after ``total_s``; or something else became of it."""
        alias, target = self._labels(alias, target)
        self._mirrored.labels(alias, target, outcome).inc()
        if total_s is not None:
            self._mirrored_s.labels(alias, target).observe(total_s)

    def _labels(self, alias: str, target: str) -> tuple[str, str]:
        pair = alias, target
        if pair in self._pairs:
            return pair
        if len(self._pairs) >= LABELS:
            return OTHER, OTHER
        self._pairs.add(pair)
        return pair
