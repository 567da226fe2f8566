"""A client's request that may become a job while it is being answered: on the same stream, so that nothing of
its answer is computed twice."""

import asyncio
import contextlib
from collections.abc import Callable

from msgspec.structs import replace

from gateway.api.errors import HeaderList
from gateway.api.exchange.buffers import BodyReservation, BufferBudget, buffer_owner
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.job_exchange import AccumulatedOutput, JobReply
from gateway.api.exchange.reply import Reply
from gateway.dispatch.response_stream import Sink
from gateway.domain.request import Principal, Request, RequestBody
from gateway.jobs.leases import RunningJob
from gateway.jobs.output import PartialOutput
from gateway.jobs.tracing import job_span_id
from gateway.observability.request_trace import RequestTrace
from gateway.pipeline.client_body import ClientBody
from gateway.pipeline.client_head import READ_TIMEOUT, ClientHead
from gateway.pipeline.relay import Response
from shared.protocol.progress import Progress, newest

_OF_THE_CLIENT = frozenset((b"prefer", b"idempotency-key", READ_TIMEOUT))
"""How its client waits is no concern of an engine's."""


class DeferrableReply:
    """The way to the client until the request is a job, and then to the job's output. Implements
    ``ClientReply``."""

    def __init__(self, client: Reply, job: JobReply) -> None:
        self.client = client
        self.job = job
        self._target: Reply | JobReply = client
        self._decided: asyncio.Event | None = None
        """While it is not known where an answer goes that begins now."""

    tells_waiting = False

    @property
    def started(self) -> bool:
        return self._target.started

    @property
    def direct(self) -> Sink | None:
        return self._target.direct

    @property
    def comments(self) -> object | None:
        return self._target.comments

    def hold(self) -> None:
        """Until :meth:`decide` an answer that begins waits. To be called before any has begun."""
        assert not self.started
        self._decided = asyncio.Event()

    def decide(self, *, job: bool) -> None:
        """Whether the request is a job."""
        assert self._decided is not None
        if job:
            self._target = self.job
        self._decided.set()

    async def settle(self) -> None:
        """A reply that may be a job's has no comments."""

    async def end_waiting(self) -> None:
        """Whoever waits for the client's exchange does that."""

    def send_whole(self, status: int, headers: HeaderList, data: bytes) -> bool:
        """Whose it is may have to be waited for."""
        return False

    async def start(
        self, status: int, headers: HeaderList, *, event_stream: bool = False, body_follows: bool = False
    ) -> None:
        if self._decided is not None:
            await self._decided.wait()
        await self._target.start(status, headers, event_stream=event_stream, body_follows=body_follows)

    async def write(self, data: bytes) -> None:
        await self._target.write(data)

    async def end(self, data: bytes = b"") -> None:
        await self._target.end(data)


class DeferrableExchange:
    """Implements ``ClientExchange``. Its body is here already, all of it; ended by :meth:`close`."""

    def __init__(self, exchange: HttpExchange, job_id: str, body: ClientBody, output: PartialOutput) -> None:
        """``output`` is that of the job ``job_id``, which there is not yet."""
        assert body.content.rest is None
        self.job_id = job_id
        self.output = output
        self.began_s = exchange.began_s
        self.route = exchange.route
        self.principal: Principal | None = None
        self.request: Request | None = None
        self.response: Response | None = None
        self.trace: RequestTrace | None = None
        """What is recorded of the job's run; None: it is no job yet, or its trace is not recorded."""
        self.model = ""
        """As its client called it."""
        self.pieces = tuple(body.content.pieces)
        """As they came: what is read of them may change them."""
        self.reply = DeferrableReply(exchange.reply, JobReply(output, self._answering, exchange.began_s))
        self.head = _without_client(exchange.head)
        self._exchange = exchange
        self._body = body
        self._running: RunningJob | None = None
        self._reservation: BodyReservation | None = None
        self.reply.job.on_progress = self._progressed
        self._streamed_output = AccumulatedOutput(self.reply.job)
        self._progress: Progress | None = None
        """What its engine has said last while it was no job."""

    @property
    def job_reply(self) -> JobReply:
        return self.reply.job

    @property
    def is_job(self) -> bool:
        return self._running is not None

    @property
    def tier(self) -> str:
        assert self.request is not None
        return self.request.tier.value

    upgrading = None
    """A request for a WebSocket becomes no job."""

    def credential(self) -> str:
        """Raises :class:`~gateway.domain.errors.Unauthenticated`."""
        return self._exchange.credential()

    def set_principal(self, principal: Principal) -> None:
        self.principal = principal
        self._exchange.set_principal(principal)

    def set_limit_headers(self, headers: Callable[[], HeaderList]) -> None:
        self._exchange.set_limit_headers(headers)

    async def body(self) -> ClientBody:
        return self._body

    def set_request(self, request: Request) -> None:
        """Note what is asked for, and give it a place for the events of its answer."""
        self.model = self.model or request.model
        request.streamed_output, request.counted_later = self._streamed_output, self._given_up
        self.request = request
        if not self.is_job:
            self._exchange.ask_progress(request)
            self._exchange.set_request(request)
        elif self.trace is not None:
            request.dispatch_trace, request.trace = self.trace, self.trace.traceparent
        request.on_progress = self._progressed

    def waiting(self, request: Request) -> contextlib.AbstractContextManager[object]:
        """Whoever waits for it cancels the task when the client leaves."""
        return contextlib.nullcontext()

    def set_response(self, request: Request, response: Response) -> None:
        self.request, self.response = request, response
        self.reply.job.model, self.reply.job.version = request.model, response.version
        if not self.is_job:
            self._exchange.set_response(request, response)

    # --- Becoming a job ---

    def reserve(self, budget: BufferBudget) -> None:
        """Take memory for the body beside what its client's exchange has of it. Raises BuffersFull."""
        assert self.principal is not None
        owner = buffer_owner(self.principal.tenant, self.principal.key_id)
        self._reservation = BodyReservation(budget, owner)
        self._reservation.grow(sum(map(len, self.pieces)))

    def become(self, running: RunningJob) -> None:
        """It is a job now: its client's exchange may be closed."""
        self._running = running
        if self._exchange.trace is not None:
            self.trace = self._exchange.trace
            self._exchange.trace = self.trace.hand_over(job_span_id(self.job_id))
        if self._progress is not None:
            running.tell(self._progress)
        self._exchange.hand_over()
        self.reply.decide(job=True)

    def remain(self) -> None:
        """It is none, and its client goes on waiting."""
        if self._reservation is not None:
            self._reservation.release()
        self.reply.decide(job=False)

    def close(self) -> None:
        """Give back what it held. As long as it is no job, its client's exchange does so."""
        if self._reservation is not None:
            self._reservation.release()
        if self.is_job and self.request is not None:
            self.request.body = RequestBody(b"")

    def _progressed(self, progress: Progress) -> None:
        if self._running is not None:
            self._running.tell(progress)
            return
        self._progress = newest(self._progress, progress)
        if self.reply.client.progress is not None:
            self.reply.client.progress.tell(progress)

    def _answering(self) -> None:
        if self._running is not None:
            self._running.answering = True

    def _given_up(self) -> bool:
        return self._running is not None and self._running.given_up


def _without_client(head: ClientHead) -> ClientHead:
    headers = [field for field in head.headers if field[0].lower() not in _OF_THE_CLIENT]
    fields = {name: value for name, value in head.fields.items() if name not in _OF_THE_CLIENT}
    return replace(head, headers=headers, fields=fields)
