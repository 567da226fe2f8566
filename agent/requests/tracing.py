"""Spans of requests at their engines, in the traces that the gateway began."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceContext, TraceSampler, read_traceparent
from shared.process.tracing.export import SpanExporter
from shared.process.tracing.spans import Attribute, SpanData, SpanRole
from shared.protocol.messages import Headers, RequestHead, Usage
from shared.protocol.routes import ANY_ROUTE, need_of_path, route_of

TRACEPARENT = "traceparent"


@dataclass(slots=True)
class EngineTrace:
    """One request whose trace is recorded. The gateway's span is its parent."""

    parent: TraceContext
    span_id: int
    wall_ns: int
    """When it came, as Unix time."""

    @property
    def trace_id(self) -> str:
        return f"{self.parent.trace_id:032x}"


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """What became of a request. Times in seconds from its arrival."""

    engine: str
    """Its name, which is its kind where the operator gave it no other."""
    status: int
    """0: there was no answer."""
    error: str | None
    """A code that says what failed; None: nothing did."""
    first_byte_s: float | None
    total_s: float
    usage: Usage | None


class EngineTracing:
    """Only there where spans are wanted."""

    def __init__(self, exporter: SpanExporter, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._exporter = exporter
        self._wall_ns = wall_ns
        self._new_id = TraceSampler(0.0).new_span_id

    def begin(self, head: RequestHead) -> EngineTrace | None:
        """A request has come; None: its trace is not recorded. Its engine gets this span as the parent."""
        parent = read_traceparent(head.trace)
        if parent is None or not parent.sampled:
            return None
        trace = EngineTrace(parent, self._new_id(), self._wall_ns())
        head.headers = _with_parent(head.headers, TraceContext(parent.trace_id, trace.span_id))
        return trace

    def finished(self, trace: EngineTrace, head: RequestHead, outcome: EngineOutcome) -> None:
        """It is over: its span is made in the thread that sends it."""
        self._exporter.put(1, lambda: [_span(trace, head, outcome)])


def _span(trace: EngineTrace, head: RequestHead, outcome: EngineOutcome) -> SpanData:
    need = need_of_path(head.path)
    operation = names.operation_of(ANY_ROUTE if need is None else route_of(need))
    found: dict[str, Attribute] = {
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: outcome.engine,
        names.REQUEST_MODEL: head.model,
        names.REQUEST_STREAM: head.streaming,
        names.REQUEST_ID: head.request_id,
        names.TIER: head.tier,
        names.DEPLOYMENT: head.deployment,
        names.ENGINE_S: outcome.total_s,
    }
    if outcome.status:
        found[names.HTTP_STATUS] = outcome.status
    if outcome.first_byte_s is not None:
        found[names.FIRST_BYTE_S] = outcome.first_byte_s
    if (usage := outcome.usage) is not None:
        found[names.USAGE_INPUT_TOKENS] = usage.prompt_tokens
        found[names.USAGE_OUTPUT_TOKENS] = usage.completion_tokens
        found[names.USAGE_CACHE_READ_INPUT_TOKENS] = usage.cached_tokens
    end_ns = trace.wall_ns + round(outcome.total_s * 1e9)
    ids = trace.parent.trace_id, trace.span_id, trace.parent.span_id
    name = f"{operation} {head.model}"
    return SpanData(name, *ids, trace.wall_ns, end_ns, SpanRole.CLIENT, found, outcome.error)


def _with_parent(headers: Headers, parent: TraceContext) -> Headers:
    kept = tuple(field for field in headers if field[0] != TRACEPARENT)
    return (*kept, (TRACEPARENT, parent.traceparent))
