"""Tables of metrics: a class with one row for each metric, and of its instances one call for each row.

The row ``queued = histogram("trunkline_queue_seconds", "Time waited for a slot.", "model", "tier")`` makes
the call ``metrics.queued(model, tier, wait_s)``. Some are made for every request, so counters and histograms
with labels keep plain numbers, without locks, and become families when somebody reads them. They are counted
on the event loop's thread alone; what has no labels may be counted in any thread.
"""

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

OTHER = "other"
"""Counts values of labels that have no series of their own."""

_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


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


Recorder = Callable[..., None]


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class _Counts(dict[tuple[str, ...], Count]):
    """By labels; made when they are first looked up."""

    def __missing__(self, labels: tuple[str, ...]) -> Count:
        return self.setdefault(labels, Count())


class RecordedCounter(Collector):
    """One counter's series: a number for each combination of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounded: Mapping[str, str]) -> None:
        self._described = name, text, labels
        self._bounded = bounded
        self._series = _Counts()

    def describe(self) -> list[CounterMetricFamily]:
        name, text, labels = self._described
        return [CounterMetricFamily(name, text, labels=labels)]

    def collect(self) -> Iterator[CounterMetricFamily]:
        """In any thread."""
        for family in self.describe():
            for labels, series in list(self._series.items()):
                family.add_metric(labels, series.value)
            yield family

    def series(self, first: str, *others: str) -> Count:
        """That of these labels, to be kept by who adds to it often."""
        return self._series[(self._bounded[first], *others)]

    def recorder(self) -> Recorder:
        bounded, found = self._bounded, self._series

        def add_one(first: str, amount: float = 1) -> None:
            found[(bounded[first],)].value += amount

        def add_two(first: str, second: str, amount: float = 1) -> None:
            found[bounded[first], second].value += amount

        def add_three(first: str, second: str, third: str, amount: float = 1) -> None:
            found[bounded[first], second, third].value += amount

        def add_four(first: str, second: str, third: str, fourth: str, amount: float = 1) -> None:
            found[bounded[first], second, third, fourth].value += amount

        return (add_one, add_two, add_three, add_four)[len(self._described[2]) - 1]


class Distribution:
    """One series of a histogram."""

    __slots__ = ("buckets", "counts", "exemplars", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        """Their upper bounds."""
        self.counts = [0] * (len(buckets) + 1)
        """For each bucket and for what is beyond them, without what is in those below."""
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] | None = None
        """The latest of each bucket; None: there is none."""

    def observe(self, amount: float) -> None:
        self.counts[bisect_left(self.buckets, amount)] += 1
        self.total += amount


class _Distributions(dict[tuple[str, ...], Distribution]):
    """By labels; made when they are first looked up."""

    def __init__(self, buckets: Sequence[float]) -> None:
        super().__init__()
        self._buckets = buckets

    def __missing__(self, labels: tuple[str, ...]) -> Distribution:
        return self.setdefault(labels, Distribution(self._buckets))


class RecordedHistogram(Collector):
    """One histogram's series, for each combination of one to three labels."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounded: Mapping[str, str],
        buckets: Sequence[float],
    ) -> None:
        self._described = name, text, labels
        self._bounded = bounded
        self._buckets = tuple(map(float, buckets))
        self._names = [*map(floatToGoString, self._buckets), "+Inf"]
        self._series = _Distributions(self._buckets)

    def describe(self) -> list[HistogramMetricFamily]:
        name, text, labels = self._described
        return [HistogramMetricFamily(name, text, labels=labels)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """In any thread."""
        for family in self.describe():
            for labels, series in list(self._series.items()):
                counts = accumulate(list(series.counts))
                buckets: list[Any] = list(zip(self._names, counts, strict=True))
                for place, exemplar in list((series.exemplars or {}).items()):
                    buckets[place] = (*buckets[place], exemplar)
                family.add_metric(labels, buckets, series.total)
            yield family

    def series(self, first: str, *others: str) -> Distribution:
        """That of these labels, to be kept by who adds to it often."""
        return self._series[(self._bounded[first], *others)]

    def add(self, labels: Sequence[str], counts: Sequence[int], total: float) -> None:
        """So many observations more in each bucket and beyond them, which together are ``total``."""
        series = self.series(*labels)
        series.counts[:] = map(operator.add, series.counts, counts)
        series.total += total

    def note_exemplar(self, labels: Sequence[str], amount: float, trace_id: str, wall_s: float) -> None:
        """Of what was observed with ``labels`` as ``amount``, the trace shows how it came about."""
        first, *others = labels
        series = self._series.get((self._bounded[first], *map(str, others)))
        if series is None:
            return
        if series.exemplars is None:
            series.exemplars = {}
        exemplar = Exemplar({"trace_id": trace_id}, amount, wall_s)
        series.exemplars[bisect_left(self._buckets, amount)] = exemplar

    def recorder(self) -> Recorder:
        bounded, buckets, found = self._bounded, self._buckets, self._series

        def observe_one(first: str, amount: float) -> None:
            series = found[(bounded[first],)]
            series.counts[bisect_left(buckets, amount)] += 1
            series.total += amount

        def observe_two(first: str, second: str, amount: float) -> None:
            # str: the member of an enumeration would take a call to be found
            series = found[bounded[first], str(second)]
            series.counts[bisect_left(buckets, amount)] += 1
            series.total += amount

        def observe_three(first: str, second: str, third: str, amount: float) -> None:
            series = found[bounded[first], second, str(third)]
            series.counts[bisect_left(buckets, amount)] += 1
            series.total += amount

        return (observe_one, observe_two, observe_three)[len(self._described[2]) - 1]


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
        self._buckets = buckets

    def __get__(self, instance: object, owner: type) -> Recorder:
        """For the type checker: an instance of the table has its own attribute in place of this."""
        raise AttributeError(self._name)

    def recorder(
        self,
        registry: CollectorRegistry,
        bounds: Mapping[str, Mapping[str, str]],
        counters: dict[str, RecordedCounter],
        histograms: dict[str, RecordedHistogram],
    ) -> Recorder:
        """Make the metric in ``registry``; what is returned records it. ``bounds`` has the values of first
        labels that must be bounded, by the label's name. What has labels is put into ``counters`` or
        ``histograms``."""
        name, text, labels = self._name, self._text, self._labels
        if not labels:
            whole = self._kind(name, text, registry=registry)
            return whole.inc if isinstance(whole, Counter | Gauge) else whole.observe
        bounded = bounds.get(labels[0], _ANY)
        if self._kind is Gauge:
            return _gauge(Gauge(name, text, labels, registry=registry), bounded)
        recorded: RecordedCounter | RecordedHistogram
        if self._kind is Counter:
            recorded = counters[name] = RecordedCounter(name, text, labels, bounded)
        else:
            recorded = histograms[name] = RecordedHistogram(name, text, labels, bounded, self._buckets)
        registry.register(recorded)
        return recorded.recorder()


def _gauge(metric: Gauge, bounded: Mapping[str, str]) -> Recorder:
    """Of one label."""

    @cache
    def series(value: str) -> Gauge:
        return metric.labels(value)

    return lambda first, amount: series(bounded[first]).set(amount)


counter = partial(Row, Counter)
gauge = partial(Row, Gauge)
histogram = partial(Row, Histogram)


class MetricTable:
    """What has rows as class attributes."""

    def __init__(
        self, registry: CollectorRegistry, bounds: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """``bounds`` is as of :meth:`Row.recorder`."""
        self.counters: dict[str, RecordedCounter] = {}
        """Those with labels, by name."""
        self.histograms: dict[str, RecordedHistogram] = {}
        """Likewise."""
        for name, row in vars(type(self)).items():
            if isinstance(row, Row):
                vars(self)[name] = row.recorder(registry, bounds or {}, self.counters, self.histograms)
