"""Spans as OTLP over HTTP. The only module that imports OpenTelemetry, which is in the extra ``otel``."""

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from shared.process.startup import program_version
from shared.process.tracing.conventions import ERROR_TYPE, SCHEMA_URL
from shared.process.tracing.spans import SpanData, SpanRole

_KINDS = {
    SpanRole.SERVER: SpanKind.SERVER,
    SpanRole.CLIENT: SpanKind.CLIENT,
    SpanRole.INTERNAL: SpanKind.INTERNAL,
    SpanRole.CONSUMER: SpanKind.CONSUMER,
}


class _GivenIds(IdGenerator):
    """The ids of the span that is made next: others have heard of them while the request ran."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Finished(SpanProcessor):
    """Keeps spans that have ended until they are taken."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: Any) -> None:
        self.spans.append(span)


class OtlpSender:
    """Implements :class:`shared.process.tracing.export.SpanSender`. What was sampled was decided before."""

    def __init__(
        self, url: str, service: str, process: str | None, headers: Mapping[str, str], timeout_s: float
    ) -> None:
        facts = {"service.name": service, "service.version": program_version()}
        if process is not None:
            facts["service.instance.id"] = process
        self._ids, self._finished = _GivenIds(), _Finished()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(facts),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._finished)
        self._tracer = provider.get_tracer("trunkline", program_version(), schema_url=SCHEMA_URL)
        self._exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=timeout_s)

    def send(self, spans: Sequence[SpanData]) -> bool:
        for each in spans:
            self._make(each)
        made, self._finished.spans = self._finished.spans, []
        return bool(self._exporter.export(made) is SpanExportResult.SUCCESS)

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call, unused-ignore]

    def _make(self, data: SpanData) -> None:
        self._ids.trace_id, self._ids.span_id = data.trace_id, data.span_id
        context = None
        if data.parent_id:
            parent = SpanContext(data.trace_id, data.parent_id, True, TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(parent))
        attributes = dict(data.attributes)
        if data.error is not None:
            attributes[ERROR_TYPE] = data.error
        span = self._tracer.start_span(
            data.name, context, kind=_KINDS[data.role], attributes=attributes, start_time=data.start_ns
        )
        if data.error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(data.end_ns)
