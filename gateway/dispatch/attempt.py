"""One try of one request: a stream on one deployment, the slot it holds, and the body on its way up."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gateway.dispatch.decisions.decision import Decision
from gateway.dispatch.recovery import SpliceFailed
from gateway.dispatch.response import EngineResponse
from gateway.domain.request import Request, RequestBody, TracedAttempt
from gateway.fleet.deployment import Deployment
from gateway.scheduling.base import Outcome
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode, SessionClosed, StreamHalfClosed
from shared.protocol.limits import SEND_BUFFER_BYTES
from shared.protocol.messages import UPGRADED, RequestHead, ResponseHead, Trailers
from shared.protocol.progress import Progress

EVENT_BYTES = 256
"""The size of an event with one token, or a bit more; a larger piece holds several events."""


class Tasks(Protocol):
    """:class:`gateway.dispatch.context.DispatchContext`."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task and own it until it is done."""
        ...


class StreamUpload:
    """One body on its way up one stream.

    What was read of the body already goes up without a task, piece by piece as the send buffer empties. The
    rest is read only then, so a request that its agent refuses can still be given to another one.
    """

    def __init__(
        self, body: RequestBody, stream: Stream, failed: Callable[[Exception], None], tasks: Tasks
    ) -> None:
        """``failed`` is told when the rest of the body could not be read."""
        self._body = body
        self._pieces = list(reversed(body.pieces))
        self._stream = stream
        self._failed = failed
        self._tasks = tasks
        self._offset, self._stopped = 0, False
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Event | None = None

    def send_on(self) -> None:
        """The stream is open, or takes more."""
        if self._stopped:
            return
        if self._writable is not None:
            self._writable.set()
        else:
            self._send_prefix()

    def stop(self) -> None:
        """Stop sending the rest of the body. Idempotent."""
        self._stopped = True
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()

    def _send_prefix(self) -> None:
        pieces = self._pieces
        try:
            while pieces:
                piece = self._next_piece()
                if piece and not self._stream.send_data(piece) and (pieces or self._body.rest):
                    return
            if self._body.rest is None:
                self._stopped = True
                self._stream.end()
            else:
                self._task = self._tasks.spawn(self._send_rest())
        except (StreamHalfClosed, SessionClosed):
            self._stopped = True  # the stream's handler is told why

    def _next_piece(self) -> bytes:
        """The next bytes of what was read, as many as fit into the send buffer at most."""
        whole, size = self._pieces[-1], SEND_BUFFER_BYTES
        piece = whole[self._offset : self._offset + size]
        self._offset += len(piece)
        if self._offset >= len(whole):
            self._pieces.pop()
            self._offset = 0
        return piece

    async def _send_rest(self) -> None:
        rest = self._body.rest
        assert rest is not None
        self._writable = asyncio.Event()
        self._body.rest_begun = True
        try:
            async for chunk in rest:
                for start in range(0, len(chunk), SEND_BUFFER_BYTES):
                    if self._stopped:
                        return
                    await self._send(chunk[start : start + SEND_BUFFER_BYTES])
            if not self._stopped:
                self._stream.end()
        except (StreamHalfClosed, SessionClosed):
            pass
        except Exception as error:  # whatever the client's side raises is handed on to who awaits the answer
            if not self._stopped:
                self._failed(error)

    async def _send(self, piece: bytes) -> None:
        assert self._writable is not None
        self._writable.clear()
        if not self._stream.send_data(piece):
            await self._writable.wait()


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class AttemptOwner(Protocol):
    """Who is told what becomes of an attempt; see :class:`gateway.dispatch.exchange.RequestExchange`."""

    @property
    def request(self) -> Request: ...
    def answered(self, attempt: "Attempt", head: ResponseHead) -> None: ...
    def began(self, attempt: "Attempt") -> None:
        """The first of a stream's answer is there."""

    def progressed(self) -> None: ...
    def complete(self, attempt: "Attempt", trailers: Trailers | None) -> None: ...
    def lost(self, attempt: "Attempt", code: ErrorCode, reason: str) -> None: ...
    def unjoinable(self, attempt: "Attempt", reason: str) -> None: ...
    def suspended(self, attempt: "Attempt") -> None: ...
    def resumed(self, attempt: "Attempt") -> None: ...
    def engine_lost(self, attempt: "Attempt") -> None: ...
    def body_failed(self, error: Exception) -> None: ...
    def closed(self, attempt: "Attempt") -> None: ...


class Attempt:
    """One stream on one deployment (a StreamHandler). It holds its slot until both ends have let go."""

    # What hardly any attempt sets, or is asked for, is here and in no object.
    probed_s: float | None = None
    """When its tunnel was probed; None once that is answered."""
    stalled = False
    """It was quiet for longer than its rhythm explains."""
    suspended_s: float | None = None
    """Since when its tunnel is gone or silent; None while it is not."""

    def __init__(
        self, owner: AttemptOwner, deployment: Deployment, head: RequestHead, work: float, now: float
    ) -> None:
        """Opens the stream. Raises SessionClosed or TooManyStreams; nothing is held then."""
        request = self.request = owner.request
        self.owner, self.deployment, self.work = owner, deployment, work
        self.opened_s = now
        self.quiet_s = now
        """When bytes were last found to have come."""
        self.received_bytes = self._pieces = 0
        """Bytes of the response's body that are counted: all, once it is over. What comes by the stream's
        path before that is counted when somebody asks for ``pieces``."""
        self._heard = False
        self._noted = self._noted_bytes = 0
        self._later: tuple[RequestBody, Tasks] | None = None
        """What is sent once the stream is upgraded."""
        self.given_up = False
        """The attempt was cancelled; it holds its slot until the engine has stopped."""
        self.refused = False
        """Its engine had enough to do and did not begin on it."""
        self.first_byte_s: float | None = None
        """When the head came."""
        self.first_piece_s: float | None = None
        """When the first of a streamed body came."""
        self.away_s = 0.0
        """How long its tunnel was away, all told."""
        self.response: EngineResponse | None = None
        self.upload: StreamUpload | None = None
        """None for a body that left at once."""
        self.followed: int | None = None
        """The ticket's number by which the scheduler is to hear its end; None: it is not."""
        self.outcome: Outcome | None = None
        """What the scheduler is to learn of it; None: nothing."""
        self.kv_tokens: int | None = None
        """What it holds of its deployment's memory for context, where that is known."""
        self.gpu_began_s: float | None = None
        """What its deployment's :class:`~shared.protocol.gpu_time.GpuClock` said at its start; None while it
        does not count there."""
        self.gpu_s: float | None = None
        """GPU-seconds that it used, as its agent measured; None: the agent did not say."""
        self.decision: Decision | None = None
        """What is noted of it; None: nothing."""
        self.traced: TracedAttempt | None = None
        """What is recorded of it; None: its request has no trace."""
        if (trace := request.dispatch_trace) is not None:
            self.traced = trace.attempt(head, deployment.key, deployment.agent, deployment.kind, now)
        self.stream: Stream = deployment.session.endpoint.open(head, self)
        if trace is not None:
            trace.begin(self.traced)

    def send(self, body: RequestBody, tasks: Tasks) -> None:
        """Send ``body`` up the stream: what the send buffer holds whole at once, anything else bit by bit.
        Where a WebSocket is asked for, only once there is one: an agent that refuses the request has seen
        nothing of it."""
        if self.request.upgrade:
            self._later = body, tasks
            return
        if body.rest is not None or body.held_bytes > SEND_BUFFER_BYTES:
            self.upload = StreamUpload(body, self.stream, self.upload_failed, tasks)
            self.upload.send_on()
            return
        try:
            self.stream.send_whole(body.pieces)
        except (StreamHalfClosed, SessionClosed):
            pass  # the handler is told why

    @property
    def heard(self) -> bool:
        """Whether bytes came since this was last reset."""
        if self.stream.path is not None:
            self._count_path()
        return self._heard

    @heard.setter
    def heard(self, heard: bool) -> None:
        if self.stream.path is not None:
            self._count_path()
        self._heard = heard

    def take_heard(self, now: float) -> bool:
        """Whether bytes came since ``heard`` was last reset, as it is with this. If so, it is quiet from now
        on."""
        path = self.stream.path
        if path is not None and path.pieces:
            self._count_path()
        elif not self._heard:
            return False
        self._heard = False
        self.quiet_s = now
        return True

    @property
    def pieces(self) -> int:
        """In which the response's body came."""
        if self.stream.path is not None:
            self._count_path()
        return self._pieces

    def _count_path(self) -> None:
        """Count what came by way of the stream's path, which is not reported as it comes."""
        path = self.stream.path
        if path is not None and path.pieces:
            self._heard = True
            self._pieces += path.pieces
            self.received_bytes += path.taken_bytes
            path.pieces = path.taken_bytes = 0

    def give_up(self, code: ErrorCode, reason: str = "") -> None:
        """Cancel the attempt and discard its answer."""
        self.given_up = True
        self.response = None
        self._note_tokens()
        if self.upload is not None:
            self.upload.stop()
        self.stream.reset(code, reason)

    def on_head(self, head: ResponseHead) -> None:
        self._heard = True
        if self.traced is not None:
            self.traced.status = head.status
        if not self.given_up:
            self.owner.answered(self, head)
        if self._later is not None and not self.given_up:
            self._begin_messages(head.status, *self._later)

    def _begin_messages(self, status: int, body: RequestBody, tasks: Tasks) -> None:
        """The engine has taken the WebSocket that was asked for, or answers as to any request."""
        self._later = None
        if status == UPGRADED:
            self.upload = StreamUpload(body, self.stream, self.upload_failed, tasks)
            self.upload.send_on()
            return
        try:
            self.stream.end()
        except (StreamHalfClosed, SessionClosed):
            pass  # the handler is told why

    def on_progress(self, progress: Progress) -> None:
        self._heard = True
        if not self.given_up:
            self.owner.progressed()
            if self.request.on_progress is not None:
                self.request.on_progress(progress)

    def on_data(self, data: bytes) -> None:
        self._heard = True
        self.received_bytes += len(data)
        if not self._pieces and self.request.streaming:
            self.owner.began(self)
        self._pieces += 1
        if self.response is None:
            self.stream.consumed(len(data))
            return
        try:
            self.response.feed(data)
        except SpliceFailed as error:
            self.owner.unjoinable(self, str(error))

    def on_end(self, trailers: Trailers | None) -> None:
        if self.upload is not None:
            self.upload.stop()
        if trailers is not None:
            self.gpu_s = trailers.gpu_s
            if self.traced is not None:
                self.traced.trailers = trailers
        if not self.given_up:
            self._note_tokens()
            self.owner.complete(self, trailers)

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        if self.upload is not None:
            self.upload.stop()
        if not self.given_up:
            self.given_up = True
            self._note_tokens()
            self.owner.lost(self, code, reason)

    def on_writable(self) -> None:
        if self.upload is not None:
            self.upload.send_on()

    def suspend(self, now: float) -> None:
        """No time counts against the engine while its tunnel is away."""
        if self.suspended_s is None:
            self.suspended_s = now

    def resume(self, now: float) -> float:
        """How long it was away; what it was waited for until then is waited for that much longer."""
        away_s = 0.0 if self.suspended_s is None else now - self.suspended_s
        self.suspended_s = self.probed_s = None
        self.away_s += away_s
        self.quiet_s += away_s
        return away_s

    def on_suspended(self) -> None:
        if not self.given_up:
            self.owner.suspended(self)

    def on_resumed(self) -> None:
        if not self.given_up:
            self.owner.resumed(self)

    def on_engine_lost(self) -> None:
        """Its agent has declared its engine lost."""
        if not self.given_up:
            self.owner.engine_lost(self)

    def on_closed(self) -> None:
        if self.upload is not None:
            self.upload.stop()
            self.upload = None
        self.owner.closed(self)

    def upload_failed(self, error: Exception) -> None:
        if not self.given_up:
            self.owner.body_failed(error)

    def _note_tokens(self) -> None:
        """The request has had what came; each piece is noted once, as a token, or as several."""
        if self.stream.path is not None:
            self._count_path()
        received_bytes = self.received_bytes
        seen = received_bytes // EVENT_BYTES
        if seen < self._pieces:
            seen = self._pieces
        self.request.seen_tokens += seen - self._noted
        self.request.seen_bytes += received_bytes - self._noted_bytes
        self._noted, self._noted_bytes = seen, received_bytes
