"""What is counted of the audit log, read when somebody looks."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.observability.audit.writer import AuditWriter


class AuditFigures(Collector):
    """Of one writer."""

    def __init__(self, registry: CollectorRegistry, writer: AuditWriter) -> None:
        self._writer = writer
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See prometheus_client's Collector."""
        writer = self._writer
        yield CounterMetricFamily(
            "trunkline_audit_records", "Lines of the audit log on the disk.", value=writer.written
        )
        yield CounterMetricFamily(
            "trunkline_audit_dropped", "Records that found no room and are lost.", value=writer.dropped
        )
        yield GaugeMetricFamily(
            "trunkline_audit_blocked",
            "1 while the audit log cannot be written.",
            value=int(writer.blocked),
        )
