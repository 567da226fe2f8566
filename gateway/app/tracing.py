"""Traces of this process, where the settings want some."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from gateway.api.exchange.request_tracing import RequestTracing
from gateway.jobs.tracing import JobTracing
from gateway.observability.gauges import Family, FamilyCollector, single
from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings
from gateway.uplink.tracing import UplinkTracing
from shared.process.tracing.context import TraceSampler
from shared.process.tracing.export import SpanExporter, span_exporter
from shared.process.tracing.settings import check_installed

LAST_SPANS_S = 2.0
"""For the last spans, when the gateway stops."""

SERVICE = "trunkline-gateway"


class GatewayTraces:
    """The exporter, and what gives requests, jobs and a parent's requests their traces; all None where
    nothing is traced."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Raises ConfigError where OpenTelemetry is missing."""
        table = settings.otel
        check_installed(table)
        self._exporter = span_exporter(table, SERVICE, settings.cluster.process)
        self.requests: RequestTracing | None = None
        self.jobs: JobTracing | None = None
        self.uplink: UplinkTracing | None = None
        if (exporter := self._exporter) is not None:
            sampler = TraceSampler(table.sample_ratio)
            self.requests = RequestTracing(sampler, exporter, metrics)
            self.jobs, self.uplink = JobTracing(sampler, exporter), UplinkTracing(exporter)
            metrics.exemplars = True
            FamilyCollector(metrics.registry, lambda: span_figures(exporter))

    @asynccontextmanager
    async def exported(self) -> AsyncIterator[None]:
        """Inside, spans leave."""
        exporter = self._exporter
        if exporter is None:
            yield
            return
        exporter.start()
        try:
            yield
        finally:
            await asyncio.to_thread(exporter.stop, LAST_SPANS_S)


def span_figures(exporter: SpanExporter) -> Iterator[Family]:
    """What became of spans, as metrics."""
    dropped: dict[tuple[str, ...], float] = {
        (reason,): float(spans) for reason, spans in exporter.dropped.items()
    }
    yield single("spans_exported", "Spans that the collector took.", exporter.exported, counter=True)
    yield Family(
        "spans_dropped",
        "Spans that the collector did not get, because too many waited or because it did not take them.",
        ["reason"],
        dropped,
        counter=True,
    )
