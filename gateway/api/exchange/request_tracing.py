"""Gives requests their traces, and hands them on when they are over."""

import time
from collections.abc import Callable

from gateway.api.exchange.exchange import HttpExchange
from gateway.domain.errors import EngineRefused, RequestError
from gateway.domain.request import Request
from gateway.observability.metrics import Metrics
from gateway.observability.request_trace import TRACEPARENT, RequestTrace, TracedRequest, with_traceparent
from gateway.observability.span_attributes import request_attributes
from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceSampler
from shared.process.tracing.export import SpanExporter
from shared.process.tracing.spans import Attribute
from shared.protocol.messages import Headers

_UNTRACED = frozenset({"health", "metrics"})
"""Asked every few seconds by machines."""

_FIELD = TRACEPARENT.encode("ascii")

PATH_CHARS = 200

_FAILED = 500
"""From this status on the server failed (semantic conventions for HTTP server spans)."""


class RequestTracing:
    """Only there where traces are wanted."""

    def __init__(
        self,
        sampler: TraceSampler,
        exporter: SpanExporter,
        metrics: Metrics | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Histograms of ``metrics`` name the traces of what they count."""
        self._metrics = metrics
        self._sampler = sampler
        self._exporter = exporter
        self._wall_ns = wall_ns

    def begin(self, exchange: HttpExchange) -> None:
        """A request has come; from now on it has a trace, if it is to have one."""
        given = exchange.fields.get(_FIELD)
        parent = self._sampler.decide(None if given is None else given.decode("latin-1"))
        if parent is not None:
            new_id = self._sampler.new_span_id
            exchange.trace = RequestTrace(parent, new_id(), exchange.arrived_s, self._wall_ns(), new_id)

    def finished(
        self, exchange: HttpExchange, status: int, failure: RequestError | None, total_s: float
    ) -> None:
        """It is over. Costs the event loop a list and a few numbers; spans are made elsewhere."""
        trace = exchange.trace
        if trace is not None and exchange.route not in _UNTRACED:
            traced = _traced(exchange, status, failure, total_s)
            self._exporter.put(trace.span_count, lambda: trace.spans(traced))
            if self._metrics is not None and exchange.request is not None:
                _note_exemplars(self._metrics, exchange, exchange.request, trace.trace_id, total_s)


def _note_exemplars(
    metrics: Metrics, exchange: HttpExchange, request: Request, trace_id: str, total_s: float
) -> None:
    """The histograms that count the request name its trace."""
    histograms, model, tier, wall_s = metrics.histograms, request.model, request.tier, time.time()
    whole = histograms["trunkline_request_seconds"]
    whole.note_exemplar((model, exchange.route, tier), total_s, trace_id, wall_s)
    response, reply = exchange.response, exchange.reply
    if response is not None:
        waits = histograms["trunkline_queue_seconds"]
        waits.note_exemplar((model, tier), response.queue_s, trace_id, wall_s)
    if reply.event_stream and reply.first_byte_s is not None:
        first = histograms["trunkline_time_to_first_token_seconds"]
        first.note_exemplar((model, tier), reply.first_byte_s - exchange.began_s, trace_id, wall_s)


def _traced(
    exchange: HttpExchange, status: int, failure: RequestError | None, total_s: float
) -> TracedRequest:
    request, response, reply = exchange.request, exchange.response, exchange.reply
    operation = names.operation_of(exchange.route)
    found: dict[str, Attribute] = {
        names.HTTP_METHOD: exchange.method,
        names.URL_PATH: exchange.raw_path[:PATH_CHARS],
        names.HTTP_STATUS: status,
        names.REQUEST_ID: exchange.id,
        names.ROUTE: exchange.route,
    }
    model = ""
    if exchange.principal is not None:
        found[names.TENANT] = exchange.principal.tenant
    if request is not None:
        model = request.alias or request.model
        found |= request_attributes(request, operation, model, response)
    if request is not None and request.streaming and reply.first_byte_s is not None:
        found[names.RESPONSE_TIME_TO_FIRST_CHUNK] = reply.first_byte_s - exchange.began_s
    name = f"{operation} {model}" if model else f"{exchange.method} {exchange.route}"
    return TracedRequest(name, total_s, found, _error(status, failure), operation, model)


def _error(status: int, failure: RequestError | None) -> str | None:
    """What makes the span one of an error: the server's fault, or a client that went."""
    if failure is not None and not isinstance(failure, EngineRefused):
        return failure.code
    return str(status) if status >= _FAILED else None


def submitted_headers(exchange: HttpExchange, headers: Headers) -> Headers:
    """The ``headers`` of a job that this request submits: its trace goes on with the job, if it has one."""
    return headers if exchange.trace is None else with_traceparent(headers, exchange.trace.traceparent)
