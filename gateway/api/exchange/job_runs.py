"""Has jobs answered by engines, through the same pipeline as requests of clients, and books each attempt."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import structlog

from gateway.api.exchange.job_exchange import JobExchange, JobReply, JobSources
from gateway.dispatch.decisions.records import RequestRecords
from gateway.dispatch.recovery import NotContinuable
from gateway.domain.errors import RequestError
from gateway.domain.quotas import Price
from gateway.domain.request import BegunAnswer, Principal, Request
from gateway.jobs.output import OutputProgress
from gateway.jobs.runs import JobAnswer, JobRun
from gateway.jobs.tracing import JobTracing
from gateway.observability.audit import RequestFacts
from gateway.observability.metrics import NO_TIER, Metrics
from gateway.observability.request_trace import RequestTrace, TracedRequest
from gateway.observability.span_attributes import request_attributes
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.relay import Response
from gateway.storage.errors import ObjectMissing
from shared.process.server_sent_events import last_event_end
from shared.process.tracing import conventions as names
from shared.process.tracing.spans import Attribute, SpanRole
from shared.protocol.routes import CONTINUED_ROUTES

_log = structlog.get_logger("gateway.job")

_CANCELLED = 499
_FAILED = 500


class BookedExchange(Protocol):
    """What is known of an attempt at a job, or of a request that became one."""

    began_s: float
    principal: Principal | None
    request: Request | None
    response: Response | None
    trace: RequestTrace | None

    @property
    def job_id(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def job_reply(self) -> JobReply: ...


@dataclass(frozen=True, slots=True)
class JobBooks:
    """Where attempts at jobs are booked."""

    metrics: Metrics
    audit: Callable[[RequestFacts], None] | None = None
    """None: requests are not audited."""
    price: Callable[[str], Price] | None = None
    lines: bool = True
    """A line in the log for each."""
    wall: Callable[[], float] = time.time
    records: RequestRecords | None = None
    """Keeps decision records; None: nobody does."""
    traces: JobTracing | None = None
    """None: nothing is traced."""

    def book(self, exchange: BookedExchange, error: BaseException | None) -> None:
        """An attempt is over; ``error`` is what ended it, if not its answer."""
        if isinstance(error, NotContinuable):
            return  # nothing was asked
        request, response = exchange.request, exchange.response
        status = _status(exchange, error)
        total_s = monotonic() - exchange.began_s
        model, tier = ("", NO_TIER) if request is None else (request.model, request.tier)
        tenant = None if exchange.principal is None else exchange.principal.tenant
        agent = None if response is None else response.agent or None
        self.metrics.request_finished(exchange.route, model, status, total_s, tier, tenant, agent)
        code = error.code if isinstance(error, RequestError) else None if error is None else "broken"
        if self.lines:
            _log.info("job_attempt", **_facts(exchange, status, code, error, total_s))
        if exchange.trace is not None and self.traces is not None:
            self.traces.run_ended(exchange.trace, _traced(exchange, status, code, total_s))
        if exchange.principal is None:
            return
        if self.audit is not None:
            self.audit(self._record(exchange, status, code, total_s))
        if self.records is not None:
            name, found = exchange.principal.key_name, self._record(exchange, status, code, total_s)
            self.records.add(found, name, None, exchange.job_reply.bytes_out, request)

    def _record(
        self, exchange: BookedExchange, status: int, code: str | None, total_s: float
    ) -> RequestFacts:
        who, request, response = exchange.principal, exchange.request, exchange.response
        assert who is not None
        trailers = None if response is None else response.trailers
        price = self.price
        return RequestFacts(
            self.wall(),
            exchange.job_id,
            status,
            code,
            who.key_id,
            who.tenant,
            exchange.route,
            None if request is None else request.model,
            None if request is None else request.alias,
            "" if request is None else request.target,
            None if response is None else response.version,
            None if request is None else request.tier,
            () if request is None else request.attempts,
            None if request is None else request.troubles,
            None if response is None else response.queue_s,
            exchange.job_reply.first_byte_s,
            total_s,
            None if trailers is None else trailers.usage,
            0.0 if request is None else request.gpu_s,
            None if request is None or price is None else price(request.model),
            "" if trailers is None else trailers.ran_by,
            "" if trailers is None else trailers.device,
        )


class JobPipeline:
    """Implements :data:`gateway.jobs.runs.RunJob`."""

    def __init__(
        self, pipeline: Pipeline, resuming: Pipeline, sources: JobSources, books: JobBooks, kept_bytes: int
    ) -> None:
        """``pipeline`` identifies keys by their ids (:class:`gateway.auth.jobs.JobKeys`), ``resuming`` too,
        and reuses no answers. Of answers longer than ``kept_bytes`` none is gone on with."""
        self._pipeline = pipeline
        self._resuming = resuming
        self._sources = sources
        self._books = books
        self._kept_bytes = kept_bytes

    async def __call__(self, run: JobRun) -> JobAnswer:
        """Raises RequestError, StreamBroken, StateError."""
        kept = run.kept
        begun = None if kept is None else await self._begun(kept)
        if begun is not None and kept is not None:
            try:
                return await self._attempt(run, begun, kept)
            except NotContinuable as error:
                _log.info("job_starts_over", job=run.job.id, reason=str(error))
        return await self._attempt(run)

    async def _begun(self, kept: OutputProgress) -> BegunAnswer | None:
        """What can be gone on with of an earlier run's output: whole events."""
        head = kept.head
        events = any(name == "content-type" and "event-stream" in value for name, value in head.headers)
        if head.status != 200 or not events or not 0 < kept.size_bytes <= self._kept_bytes:
            return None
        objects, data = await self._sources.objects(), bytearray()
        try:
            for name, _ in kept.pieces:
                data += await objects.read_bytes(name, self._kept_bytes)
        except ObjectMissing:  # another run has it by now, and this one will learn so
            return None
        end = last_event_end(data, 0)
        return BegunAnswer(bytes(data[:end]), head.headers, head.model, head.version) if end else None

    async def _attempt(
        self, run: JobRun, begun: BegunAnswer | None = None, kept: OutputProgress | None = None
    ) -> JobAnswer:
        exchange = JobExchange(run, self._sources, begun)
        if begun is not None and exchange.route not in CONTINUED_ROUTES:
            raise NotContinuable("only streamed text can")
        if begun is not None and kept is not None:
            exchange.reply.kept = kept, len(begun.data)
        if (traces := self._books.traces) is not None:
            exchange.trace = traces.begin_run(run.job.new, exchange.head.arrived_s)
        error: BaseException | None = None
        try:
            await (self._pipeline if begun is None else self._resuming).serve(exchange)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._books.book(exchange, error)
            exchange.close()
            error = None
        reply = exchange.reply
        return JobAnswer(reply.status, reply.headers, bytes(reply.refusal))


def _status(exchange: BookedExchange, error: BaseException | None) -> int:
    """In HTTP's words."""
    if isinstance(error, RequestError):
        return error.status
    if error is None or exchange.job_reply.started:
        return exchange.job_reply.status
    return _FAILED if isinstance(error, Exception) else _CANCELLED


def _traced(exchange: BookedExchange, status: int, code: str | None, total_s: float) -> TracedRequest:
    request, operation = exchange.request, names.operation_of(exchange.route)
    found: dict[str, Attribute] = {
        names.JOB_ID: exchange.job_id,
        names.HTTP_STATUS: status,
        names.ROUTE: exchange.route,
    }
    model = ""
    if request is not None:
        model = request.alias or request.model
        found |= request_attributes(request, operation, model, exchange.response)
    error = code or (str(status) if status >= _FAILED else None)
    name = f"run {operation} {model}".rstrip()
    return TracedRequest(name, total_s, found, error, operation, model, SpanRole.CONSUMER)


def _facts(
    exchange: BookedExchange, status: int, code: str | None, error: BaseException | None, total_s: float
) -> dict[str, Any]:
    """Nothing of the request or of the engine's words stands in it."""
    found: dict[str, Any] = {"job": exchange.job_id, "route": exchange.route, "status": status}
    found["total_ms"] = round(total_s * 1000, 2)
    request, response = exchange.request, exchange.response
    if exchange.principal is not None:
        found["key"] = exchange.principal.key_name
    if request is not None:
        found |= {"model": request.model, "tier": str(request.tier), "stream": request.streaming}
    if response is not None and response.agent:
        found |= {"agent": response.agent, "attempts": response.attempts}
        usage = None if response.trailers is None else response.trailers.usage
        if usage is not None:
            found |= {"tokens_in": usage.prompt_tokens, "tokens_out": usage.completion_tokens}
    if exchange.trace is not None:
        found["trace_id"] = exchange.trace.trace_id
    if code is not None:
        found["error"] = code
    if isinstance(error, RequestError) and error.status >= _FAILED:
        found["reason"] = str(error)
    return found
