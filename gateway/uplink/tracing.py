"""Spans of the parent's requests, in the traces that the parent began."""

import time
from collections.abc import Callable

from gateway.domain.request import Request
from gateway.observability.request_trace import RequestTrace, TracedRequest
from gateway.observability.span_attributes import AnsweredRequest, request_attributes
from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceSampler, read_traceparent
from shared.process.tracing.export import SpanExporter
from shared.process.tracing.spans import Attribute
from shared.protocol.messages import RequestHead
from shared.protocol.routes import ANY_ROUTE, need_of_path, route_of


class UplinkTracing:
    """Only there where traces are wanted. A gateway begins none for its parent's requests, as an agent does
    not: which are recorded was decided where their clients are."""

    def __init__(self, exporter: SpanExporter, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._exporter = exporter
        self._wall_ns = wall_ns
        self._new_id = TraceSampler(0.0).new_span_id

    def begin(self, head: RequestHead, began_s: float) -> RequestTrace | None:
        """A request has come, at ``began_s`` on the event loop's clock; None: its trace is not recorded."""
        parent = read_traceparent(head.trace)
        if parent is None or not parent.sampled:
            return None
        return RequestTrace(parent, self._new_id(), began_s, self._wall_ns(), self._new_id)

    def finished(
        self,
        trace: RequestTrace,
        head: RequestHead,
        answered: tuple[Request | None, AnsweredRequest | None],
        ended: tuple[int, str | None, float],
    ) -> None:
        """It is over. ``answered`` is what was asked of the fleet and what answered it, ``ended`` the status,
        the code of an error, and the seconds that it took."""
        (request, response), (status, error, total_s) = answered, ended
        need = need_of_path(head.path)
        operation = names.operation_of(ANY_ROUTE if need is None else route_of(need))
        found: dict[str, Attribute] = {names.REQUEST_ID: head.request_id, names.HTTP_STATUS: status}
        if request is not None:
            found |= {names.ROUTE: request.route, names.TENANT: request.principal.tenant}
            found |= request_attributes(request, operation, head.model, response)
        name = f"{operation} {head.model}"
        traced = TracedRequest(name, total_s, found, error, operation, head.model)
        self._exporter.put(trace.span_count, lambda: trace.spans(traced))
