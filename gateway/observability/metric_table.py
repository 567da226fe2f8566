"""Tables of metrics: a class with one row for each metric, and of its instances one call for each row.

The row ``queued = histogram("trunkline_queue_seconds", "Time waited for a slot.", "model", "tier")`` makes
the call ``metrics.queued(model, tier, wait_s)``. A call looks its series up in one step, since some are made
for every request.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OTHER = "other"
"""Counts values of labels that have no series of their own."""

_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_VERBS: Mapping[type, str] = {Counter: "inc", Gauge: "set", Histogram: "observe"}


class BoundedLabels(dict[str, str]):
    """Values of one label: the first ``most`` of them stand for themselves, all others for ``other``."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, value: str) -> str:
        """Give ``value`` a series of its own while there is room; what it counts under."""
        if value in self or len(self) < self._most:
            return self.setdefault(value, value)
        return OTHER

    def __missing__(self, value: str) -> str:
        return OTHER


class OpenLabels(BoundedLabels):
    """Values that are added when they are first counted: only their number needs a bound."""

    def __missing__(self, value: str) -> str:
        return self.add(value)


class _Any(dict[str, str]):
    def __missing__(self, value: str) -> str:
        return value


_ANY = _Any()
"""Values that need no bound."""


class Row:
    """One metric, recorded by a call with the values of its ``labels`` in their order, then the amount. A
    counter without an amount counts one."""

    def __init__(
        self,
        kind: type[Counter | Gauge | Histogram],
        name: str,
        text: str,
        *labels: str,
        buckets: Sequence[float] = _LATENCIES_S,
    ) -> None:
        self._kind = kind
        self._name = name
        self._text = text
        self._labels = labels
        self._options: dict[str, Any] = {"buckets": buckets} if kind is Histogram else {}

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        """For the type checker: an instance of the table has its own attribute in place of this."""
        raise AttributeError(self._name)

    def recorder(
        self, registry: CollectorRegistry, bounds: Mapping[str, Mapping[str, str]]
    ) -> Callable[..., None]:
        """Make the metric in ``registry``; what is returned records it. ``bounds`` has the values of first
        labels that must be bounded, by the label's name."""
        metric = self._kind(self._name, self._text, self._labels, registry=registry, **self._options)
        verb = _VERBS[self._kind]
        if not self._labels:
            record: Callable[..., None] = getattr(metric, verb)
            return record

        @cache
        def series(*values: str) -> Callable[[float], None]:
            found: Callable[[float], None] = getattr(metric.labels(*values), verb)
            return found

        bounded = bounds.get(self._labels[0], _ANY)
        match len(self._labels):
            case 1:
                return lambda first, amount=1: series(bounded[first])(amount)
            case 2:
                return lambda first, second, amount=1: series(bounded[first], second)(amount)
            case _:
                return lambda first, second, third, amount=1: series(bounded[first], second, third)(amount)


counter = partial(Row, Counter)
gauge = partial(Row, Gauge)
histogram = partial(Row, Histogram)


class MetricTable:
    """What has rows as class attributes."""

    def __init__(
        self, registry: CollectorRegistry, bounds: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """``bounds`` is as of :meth:`Row.recorder`."""
        for name, row in vars(type(self)).items():
            if isinstance(row, Row):
                vars(self)[name] = row.recorder(registry, bounds or {})
