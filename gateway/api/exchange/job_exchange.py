"""A job's request and its answer, as the pipeline takes those of a client's connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from time import monotonic

import orjson

from gateway.api.errors import HeaderList
from gateway.api.exchange.buffers import BodyReservation, BufferBudget, buffer_owner
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.exchange.multipart import FormScan
from gateway.domain.errors import BodyTooLarge, StreamBroken, Unauthenticated
from gateway.domain.jobs import JobRecord
from gateway.domain.request import BegunAnswer, Principal, Request, RequestBody, Tier
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import AnswerHead, OutputProgress, PartialOutput
from gateway.jobs.runs import TRIED_AGAIN, JobRun
from gateway.observability.request_trace import RequestTrace
from gateway.pipeline.bodies.facts import SHORT_BYTES, is_short
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.classify import TIER
from gateway.pipeline.client_body import BodyKind, ClientBody, body_kind
from gateway.pipeline.client_head import READ_TIMEOUT, ClientHead
from gateway.pipeline.job_requests import endpoint_of
from gateway.pipeline.relay import REFUSAL_BYTES, Response
from shared.protocol.errors import ErrorCode
from shared.protocol.followed import FOLLOWED, FollowedReader, NotFollowed
from shared.protocol.messages import Headers
from shared.protocol.progress import Progress
from shared.protocol.routes import Route

_NOT_OURS = frozenset((TIER, READ_TIMEOUT, b"content-length"))
"""Of the connection that submitted it, or the job's own."""

_TAKES_FOLLOWED = f"{FOLLOWED}, */*;q=0.5".encode("ascii")

FACTS = "x-trunkline-facts"
"""The field of a job's answer with what its engine said of its work (JSON); clients do not get it."""

_COMMENT = b": waiting\n\n"
"""What a client is told while its answer pauses is no part of the answer."""


@dataclass(frozen=True, slots=True)
class JobSources:
    """What requests of jobs are made with."""

    objects: ObjectOpener
    budget: BufferBudget
    limits: BodyLimits
    reader: BodyReader | None
    wall: Callable[[], float]


class JobReply:
    """Where the answer goes: the run's output, or memory for a refusal. Implements ``ClientReply``."""

    comments: object | None = None
    tells_waiting = False
    direct = None

    def __init__(self, output: PartialOutput, answering: Callable[[], None], began_s: float) -> None:
        """``answering`` is called when the answer begins."""
        self.started = False
        self.status = 0
        self.headers: tuple[tuple[str, str], ...] = ()
        self.refusal = bytearray()
        self.first_byte_s: float | None = None
        self.event_stream = False
        self.bytes_out = 0
        self.model = self.version = ""
        self.kept: tuple[OutputProgress, int] | None = None
        """What the answer goes on behind."""
        self.accumulated = False
        """The output has the events of which the answer was put together."""
        self.output = output
        self.answering = answering
        self.on_progress: Callable[[Progress], None] = lambda progress: None
        """Called with how far the engine is."""
        self._followed: FollowedReader | None = None
        """There while the engine works by itself, and is followed."""
        self._began_s = began_s

    async def settle(self) -> None:
        """Nothing is under way."""

    async def end_waiting(self) -> None:
        """Nobody hears of it."""

    def send_whole(self, status: int, headers: HeaderList, data: bytes) -> bool:
        """It is kept bit by bit."""
        return False

    async def start(
        self, status: int, headers: HeaderList, *, event_stream: bool = False, body_follows: bool = False
    ) -> None:
        self.started, self.status, self.event_stream = True, status, event_stream
        fields = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        self.headers = tuple(field for field in fields if field[1])
        self.answering()
        if ("content-type", FOLLOWED) in self.headers:
            self._followed = FollowedReader()
        else:
            await self._keep()

    async def _keep(self) -> None:
        if self._is_kept and not self.accumulated:
            head = AnswerHead(self.status, self.headers, self.model, self.version)
            await self.output.begin(head, *(self.kept or ()))

    async def write(self, data: bytes) -> None:
        if self._followed is not None:
            data = await self._follow(self._followed, data)
        while data.startswith(_COMMENT):
            data = data[len(_COMMENT) :]
        if not data:
            return
        if self.first_byte_s is None:
            self.first_byte_s = monotonic() - self._began_s
        self.bytes_out += len(data)
        if self.status >= 400:
            self.refusal += data[: REFUSAL_BYTES - len(self.refusal)]
        if self.accumulated and self._is_kept:
            self.output.answer(data)
        elif self._is_kept:
            await self.output.append(data)

    async def end(self, data: bytes = b"") -> None:
        await self.write(data)
        if self._followed is not None:
            raise StreamBroken(
                ErrorCode.ENGINE_FAILED, "the engine's work was followed, and came to no answer"
            )

    async def _follow(self, followed: FollowedReader, data: bytes) -> bytes:
        """What of ``data`` is of the answer's body. Raises StreamBroken."""
        try:
            body = followed.feed(data)
        except NotFollowed as error:
            raise StreamBroken(ErrorCode.ENGINE_FAILED, f"the answer cannot be followed: {error}") from None
        if followed.progress is not None:
            self.on_progress(Progress(followed.progress))
        answer = followed.answer
        if answer is not None:
            self._followed, self.status = None, answer.status
            facts = orjson.dumps(answer.facts or {}).decode()
            self.headers = (*answer.headers, (FACTS, facts)) if answer.facts else answer.headers
            await self._keep()
        return body

    @property
    def _is_kept(self) -> bool:
        """Whether the body is the job's answer, if the last attempt gives it."""
        return self.status < 400 or (self.status < 500 and self.status not in TRIED_AGAIN)


class AccumulatedOutput:
    """Keeps the events of a job's answer in the output of its reply. Implements
    :class:`gateway.domain.request.StreamedOutput`."""

    def __init__(self, reply: JobReply) -> None:
        self._reply = reply

    async def begin(self, request: Request, headers: Headers, version: str) -> None:
        reply = self._reply
        if reply.output.begun:
            await self.drop()
        reply.answering()
        reply.accumulated = True
        head = AnswerHead(200, tuple(headers), request.model, version)
        await reply.output.begin(head, *(reply.kept or ()), accumulated=True)

    async def append(self, data: bytes) -> None:
        await self._reply.output.append(data)

    def pieces(self) -> AsyncIterator[bytes]:
        return self._reply.output.pieces()

    async def drop(self) -> None:
        self._reply.accumulated, self._reply.kept = False, None
        await self._reply.output.drop()


class JobExchange:
    """One attempt at a job. Implements ``ClientExchange``; ended by :meth:`close`."""

    def __init__(self, run: JobRun, sources: JobSources, begun: BegunAnswer | None = None) -> None:
        """``begun``: what earlier runs have of its answer, which is gone on with. Raises RouteNotFound, and
        BadRequest for a path that cannot be read."""
        job = run.job
        self.began_s = monotonic()
        self.principal: Principal | None = None
        self.request: Request | None = None
        self.response: Response | None = None
        self.trace: RequestTrace | None = None
        """What is recorded of it; None: its trace is not."""
        self.reply = JobReply(run.output, run.answering, self.began_s)
        self.reply.on_progress = run.progress
        self._job = job
        self._given_up = run.given_up
        self._streamed_output = AccumulatedOutput(self.reply)
        self._sources = sources
        self._begun = begun
        self._reservation: BodyReservation | None = None
        self.head = _head_of(job, asyncio.get_running_loop().time())

    @property
    def job_id(self) -> str:
        return self._job.id

    @property
    def job_reply(self) -> JobReply:
        return self.reply

    @property
    def route(self) -> str:
        return self.head.endpoint.route

    upgrading = None

    def credential(self) -> str:
        """The id of the job's key, for :class:`gateway.auth.jobs.JobKeys`."""
        return self._job.new.key_id

    def set_principal(self, principal: Principal) -> None:
        """Raises Unauthenticated for the key of another tenant."""
        if principal.tenant != self._job.new.tenant:
            raise Unauthenticated("The job's key belongs to another tenant by now.", code="key_moved")
        self.principal = principal

    def set_limit_headers(self, headers: Callable[[], HeaderList]) -> None:
        """Nobody would read what was left then."""

    async def body(self) -> ClientBody:
        """As much as classification needs. Raises BodyTooLarge, BuffersFull, BadRequest, StateError."""
        job, sources, fields = self._job.new, self._sources, self.head.fields
        objects = await sources.objects()
        stop = job.body.stop
        if stop is None:
            stop = await objects.size_bytes(job.body.name)
        size_bytes = stop - job.body.start
        pieces = objects.read(job.body.name, job.body.start, stop)
        kind = body_kind(self.head.endpoint, self.head.method, fields)
        reservation = self._reservation = BodyReservation(
            sources.budget, buffer_owner(job.tenant, job.key_id)
        )
        if kind is BodyKind.JSON:
            if size_bytes > sources.limits.body_bytes:
                raise BodyTooLarge(
                    f"The request's body has {size_bytes} bytes, and {sources.limits.body_bytes} are taken."
                )
            reservation.grow(size_bytes)
            return await self._json([piece async for piece in pieces], size_bytes)
        scan = FormScan(fields[b"content-type"]) if kind is BodyKind.FORM else None
        held: list[bytes] = []
        held_bytes, scanned, rest = 0, scan is None, aiter(pieces)
        while (held_bytes < sources.limits.prefix_bytes or not scanned) and held_bytes < size_bytes:
            piece = await anext(rest)
            held_bytes += len(piece)
            reservation.grow(held_bytes)
            held.append(piece)
            scanned = scan is None or scan.feed(piece) or b"x-model" in fields
        whole = held_bytes >= size_bytes
        if scan is not None and whole:
            scan.finish()
        content = RequestBody(held, None if whole else rest, size_bytes)
        return ClientBody(kind, content, {} if scan is None else scan.members)

    async def _json(self, pieces: list[bytes], size_bytes: int) -> ClientBody:
        content, reader = RequestBody(pieces, None, size_bytes), self._sources.reader
        if reader is None or size_bytes <= SHORT_BYTES or is_short(pieces):
            return ClientBody(BodyKind.JSON, content)
        owner = buffer_owner(self._job.new.tenant, self._job.new.key_id)
        return ClientBody(BodyKind.JSON, content, facts=await reader.read(pieces, owner))

    def set_request(self, request: Request) -> None:
        """Note what is asked for, and give it the job's deadline and what there is of its answer."""
        deadline_s = self._job.new.deadline_s
        if deadline_s is not None:
            left_s = max(0.0, deadline_s - self._sources.wall())
            request.deadline_s = min(self.head.arrived_s + left_s, request.deadline_s or float("inf"))
        request.gives_way = request.tier is Tier.BATCH
        request.begun, request.counted_later = self._begun, self._given_up
        request.streamed_output, request.on_progress = self._streamed_output, self.reply.on_progress
        if self.trace is not None:
            request.dispatch_trace, request.trace = self.trace, self.trace.traceparent
        self.request = request

    def waiting(self, request: Request) -> contextlib.AbstractContextManager[object]:
        """Whoever runs the job cancels the task."""
        return contextlib.nullcontext()

    def set_response(self, request: Request, response: Response) -> None:
        self.request, self.response = request, response
        self.reply.model, self.reply.version = request.model, response.version

    def close(self) -> None:
        """Give back what it held."""
        if self._reservation is not None:
            self._reservation.release()
        if self.request is not None:
            self.request.body, self.request.begun = RequestBody(b""), None


def _head_of(job: JobRecord, now: float) -> ClientHead:
    """Raises RouteNotFound, BadRequest, PathTooLong."""
    endpoint, aimed_at = endpoint_of(job.new.path)
    sent = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in job.new.headers
    ]
    headers = [field for field in sent if field[0] not in _NOT_OURS]
    if endpoint.route == Route.VIDEOS:
        headers = [field for field in headers if field[0] != b"accept"] + [(b"accept", _TAKES_FOLLOWED)]
    if not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    headers.append((TIER, job.new.tier.encode("latin-1")))
    fields = dict(reversed(headers))
    return ClientHead(job.id, "POST", endpoint, aimed_at, headers, fields, now)
