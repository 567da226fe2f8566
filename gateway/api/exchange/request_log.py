"""What is recorded of every finished request: one line in the log, one count, and in the audit log one record
of who is known. Facts only: no body, no prompt, no key, no query."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from gateway.api.exchange.exchange import HttpExchange
from gateway.dispatch.decisions.records import RequestRecords
from gateway.domain.errors import EngineRefused, RequestError
from gateway.domain.quotas import Price
from gateway.domain.request import Principal, Request, Tier
from gateway.observability.audit import RequestFacts
from gateway.observability.metrics import Metrics
from gateway.pipeline.aliases import AliasFigures
from gateway.pipeline.relay import Response
from shared.process.logs import EventLog, LoggedEvents
from shared.process.tracing.context import read_traceparent

_UNLOGGED = frozenset({"health", "metrics"})
"""Asked every few seconds by machines; logged only when they fail."""

_POLLED = frozenset({"models"})
"""Asked by clients at every turn; logged below ``info`` while it goes well."""

PATH_CHARS = 200

_THEIRS = 400
"""From this status on there is no answer of a model."""

_OURS = 500
"""From this status on the fault is not the client's, and the error's words hold nothing of its request unless
they are an engine's."""


@dataclass(frozen=True)
class RequestLog:
    """An observer for :class:`gateway.api.exchange.middleware.RequestMiddleware`."""

    counter: Metrics
    aliases: AliasFigures | None = None
    lines: bool = True
    audit: "RequestAudit | None" = None
    finish_trace: Callable[[HttpExchange, int, RequestError | None, float], None] | None = None
    """Hands on the trace of a request that has one; None: nothing is traced."""
    log: EventLog = field(default_factory=lambda: LoggedEvents("gateway.request"))

    def __call__(self, exchange: HttpExchange, status: int, failure: RequestError | None) -> None:
        request, response, reply = exchange.request, exchange.response, exchange.reply
        who, trace, began_s = exchange.principal, exchange.trace, exchange.began_s
        total_s, first_s = exchange.ended_s - began_s, reply.first_byte_s
        if first_s is not None:
            first_s -= began_s
        tenant = None if who is None else who.tenant
        agent = None if response is None else response.agent
        if request is not None:
            self.counter.request_finished(
                exchange.route, request.model, status, total_s, request.tier, tenant, agent
            )
            if reply.event_stream and response is not None and first_s is not None and status < _THEIRS:
                self._count_stream(request, response, total_s, first_s)
            if request.alias is not None and self.aliases is not None:
                self.aliases.finished(request.alias, request.target, status, total_s, first_s)
        else:
            self.counter.request_finished(exchange.route, "", status, total_s, tenant=tenant, agent=agent)
        sent_bytes = reply.bytes_out()
        if self.audit is not None and who is not None:
            self.audit.record(exchange, who, status, failure, total_s, first_s, sent_bytes)
        if trace is not None and self.finish_trace is not None:
            self.finish_trace(exchange, status, failure, total_s)
        if self.lines and (exchange.route not in _UNLOGGED or status >= 500):
            well = exchange.route in _POLLED and status < 400
            found = facts(exchange, status, failure, total_s, first_s, sent_bytes)
            if trace is not None or (request is not None and request.trace is not None):
                found.trace_id = _trace_id(exchange)
            self.log.add("debug" if well else "info", "request", found)

    def _count_stream(self, request: Request, response: Response, total_s: float, first_s: float) -> None:
        """How soon and how fast its tokens went out."""
        usage = response.trailers.usage if response.trailers is not None else None
        tokens = None if usage is None else usage.completion_tokens
        self.counter.streamed(request.model, first_s, total_s - first_s, tokens, request.tier)


_NOTHING_ASKED: Any = SimpleNamespace(
    model=None,
    route=None,
    streaming=None,
    alias=None,
    target="",
    tier=None,
    attempts=(),
    troubles=None,
    gpu_s=0.0,
)
"""What is recorded of an exchange without a request; below, of one without an answer, and of an answer
without trailers."""
_NOTHING_ANSWERED: Any = SimpleNamespace(
    agent=None, attempts=None, version=None, queue_s=None, trailers=None, ran_by=""
)


class RequestLine(Struct, omit_defaults=True, gc=False):
    """What the log's line of a request says; times in milliseconds. Unknown facts are left out."""

    id: str
    method: str
    path: str
    status: int
    total_ms: float
    bytes_in: int
    bytes_out: int
    client: str | None = None
    key: str | None = None
    model: str | None = None
    route: str | None = None
    tier: Tier | None = None
    stream: bool | None = None
    alias: str | None = None
    target: str | None = None
    first_byte_ms: float | None = None
    agent: str | None = None
    attempts: int | None = None
    queue_ms: float | None = None
    ran_by: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    error: str | None = None
    reason: str | None = None
    trace_id: str | None = None
    event: str | None = None
    logger: str | None = None
    process: str | None = None
    level: str | None = None
    timestamp: datetime | None = None


def facts(
    exchange: HttpExchange,
    status: int,
    failure: RequestError | None,
    total_s: float,
    first_s: float | None,
    sent_bytes: int,
) -> RequestLine:
    """What is known of a request at its end."""
    request, response, who = exchange.request, exchange.response, exchange.principal
    asked = _NOTHING_ASKED if request is None else request
    answered = response or _NOTHING_ANSWERED
    trailers, queue_s = answered.trailers, answered.queue_s
    usage = None if trailers is None else trailers.usage
    found = RequestLine(
        exchange.id,
        exchange.method,
        exchange.raw_path[:PATH_CHARS],
        status,
        # a round to decimals would be made by way of text
        round(total_s * 100_000) / 100,
        exchange.inbound.received_bytes,
        sent_bytes,
        exchange.address or None,
        None if who is None else who.key_name,
        asked.model,
        asked.route,
        asked.tier,
        asked.streaming,
        asked.alias,
        None if asked.alias is None else asked.target,
        None if first_s is None else round(first_s * 100_000) / 100,
        answered.agent,
        answered.attempts,
        None if queue_s is None else round(queue_s * 10_000) / 10,
        answered.ran_by or None,
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.completion_tokens,
    )
    if failure is not None:
        found.error = failure.code
        if failure.status >= _OURS and not isinstance(failure, EngineRefused):
            found.reason = str(failure)
    return found


def _trace_id(exchange: HttpExchange) -> str | None:
    """The trace that a request belongs to, as its client says or as was decided here; None: to none."""
    if exchange.trace is not None:
        return exchange.trace.trace_id
    if exchange.request is None or exchange.request.trace is None:
        return None
    context = read_traceparent(exchange.request.trace)
    return None if context is None else f"{context.trace_id:032x}"


_UNRECORDED = frozenset({"health", "metrics", "models", "openapi"})
"""Nothing runs anywhere for these."""

_NOTHING_TOLD: Any = SimpleNamespace(usage=None, ran_by="", device="")


@dataclass(frozen=True)
class RequestAudit:
    """Puts together what is known of a request at its end. Costs the event loop a microsecond or two."""

    add: Callable[[RequestFacts], None] | None
    """Writes the audit log; None: requests are not in it."""
    price: Callable[[str], Price] | None = None
    """A model's now."""
    wall: Callable[[], float] = time.time
    records: RequestRecords | None = None
    """Keeps decision records; None: nobody does."""

    def record(
        self,
        exchange: HttpExchange,
        who: Principal,
        status: int,
        failure: RequestError | None,
        total_s: float,
        first_s: float | None,
        sent_bytes: int,
    ) -> None:
        """``first_s`` is how long after its arrival the first byte of its answer's body went out."""
        if exchange.route in _UNRECORDED:
            return
        request, price = exchange.request, None
        asked = _NOTHING_ASKED if request is None else request
        answered = exchange.response or _NOTHING_ANSWERED
        told = answered.trailers or _NOTHING_TOLD
        if request is not None and self.price is not None:
            price = request.price or self.price(request.model)
        found = RequestFacts(
            self.wall(),
            exchange.id,
            status,
            None if failure is None else _code(failure),
            who.key_id,
            who.tenant,
            exchange.route,
            asked.model,
            asked.alias,
            asked.target,
            answered.version,
            asked.tier,
            asked.attempts,
            asked.troubles,
            answered.queue_s,
            first_s,
            total_s,
            told.usage,
            asked.gpu_s,
            price,
            told.ran_by,
            told.device,
        )
        if self.add is not None:
            self.add(found)
        if self.records is not None:
            self.records.add(found, who.key_name, exchange.inbound.received_bytes, sent_bytes, request)


def _code(failure: RequestError) -> str:
    """An engine's own may be anything, and is left out."""
    return EngineRefused.code if isinstance(failure, EngineRefused) else failure.code
