"""What is counted of reuse. Labels are bounded: a model's name is one where the operator's rules name it."""

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.observability.metrics import MODEL_LABELS, OTHER
from gateway.pipeline.cache.cache import AnswerCache


class ReuseFigures:
    """The counters of one gateway."""

    def __init__(self, registry: CollectorRegistry, cache: AnswerCache) -> None:
        self._requests = Counter(
            "trunkline_cache_requests",
            "Requests whose answer might be reused: hit, miss, coalesced with another, or bypass.",
            ["model", "outcome"],
            registry=registry,
        )
        self._models: frozenset[str] = frozenset()
        registry.register(_CacheFigures(cache))

    def know_models(self, models: Collection[str]) -> None:
        """Those with labels of their own, as far as there is room."""
        self._models = frozenset(sorted(models)[:MODEL_LABELS])

    def count(self, model: str, outcome: str) -> None:
        """One request."""
        self._requests.labels(model if model in self._models else OTHER, outcome).inc()


class _CacheFigures(Collector):
    """Read when somebody looks."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See prometheus_client's Collector."""
        cache = self._cache
        yield GaugeMetricFamily(
            "trunkline_cache_bytes",
            "Memory for answers that are kept or being collected.",
            value=cache.kept_bytes + cache.held_bytes,
        )
        yield GaugeMetricFamily("trunkline_cache_entries", "Answers that are kept.", value=len(cache))
        yield CounterMetricFamily(
            "trunkline_cache_evictions", "Answers that went to make room for others.", value=cache.evicted
        )
