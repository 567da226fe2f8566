"""A stream's way through the engine and back.

Both directions are held back by whoever is slower: a request's bytes are credited once the engine's socket
took them, and the engine's connection is not read while the tunnel does not take the response.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

from agent.capacity.places import EngineSlot
from agent.engines.backend import BackendError, BackendRequest
from agent.engines.error_responses import (
    PATH_BODY_BYTES,
    PATH_STATUSES,
    REFUSING,
    lacks_path,
    refusal_of,
)
from agent.engines.memory_errors import MESSAGE_BYTES, tells_of_memory
from agent.requests.event_usage import EventUsage
from agent.requests.gathered_body import GatheredBody
from agent.requests.received_body import ReceivedBody
from agent.requests.tracing import EngineOutcome, EngineTrace
from agent.requests.usage import UsageReader, reader_for
from shared.link.progress import ProgressReporter
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode, LocalError
from shared.protocol.messages import Headers, Refusal, ResponseHead, Trailers, Usage, UsageMode
from shared.protocol.other_requests import ToldRequest
from shared.protocol.peers import GPU_SECONDS, PROGRESS
from shared.protocol.progress import Progress
from shared.protocol.routes import need_of_path
from shared.speedups import OutPath

_NO_ERROR, _STRIP = ErrorCode.NO_ERROR, UsageMode.STRIP
"""Members of enumerations for the path of every request: a global is found faster."""

log = structlog.get_logger("agent.request")


class RunOwner(Protocol):
    """Who has requests run."""

    clock: Callable[[], float]
    """That of the registry, by which places say when they were entered."""

    def left(self, run: "RequestRun") -> float:
        """The engine has let go; the gateway has not heard of the end. Called once. Returns the GPU-seconds
        that were used there, from all sessions' requests."""

    def closed(self, run: "RequestRun") -> None:
        """The stream is closed."""


class RequestRun(ReceivedBody):
    """One request, with its body. Implements :class:`shared.protocol.stream_handler.StreamHandler` and
    :class:`agent.engines.backend.ResponseReceiver`.
    """

    __slots__ = (  # more attributes than a dictionary may share its keys for
        *("__weakref__", "_agreed", "_deadline", "_first_byte_s", "_gathered", "_head_waits", "_headers"),
        *("_message", "_need", "_out_path", "_owner", "_progress", "_reader", "_request", "_rest", "_usage"),
        *("_watching", "_whole", "_writable", "began_s", "code", "engine_failed", "lacks", "on_first_token"),
        *("out_of_memory", "reason", "refusal", "seat", "status", "told", "trace"),
    )

    _deadline: asyncio.TimerHandle | None
    _first_byte_s: float | None
    _gathered: GatheredBody | None
    """There where nobody reads the response before it is whole."""
    _head_waits: bool
    """The response's head waits until its body shows why the engine refused the request."""
    _headers: Headers
    """The response's."""
    _message: bytes
    """How an error's body begins."""
    _need: str | None
    """What the engine may turn out not to have (:func:`shared.protocol.routes.need_of_path`)."""
    _out_path: OutPath | None
    """There for a stream of events."""
    _progress: ProgressReporter | None
    """There once there is some to tell."""
    _reader: UsageReader | None
    """There once the response has begun."""
    _request: BackendRequest | None
    """There while the engine has it."""
    _rest: bytes
    """The last of the body, which waits until it may be sent."""
    _usage: Usage | None
    """As the engine counted it, once that is known."""
    _watching: bool
    """The body may say why the engine did not do what was asked."""
    _whole: bool
    """All of the response is there: its head leaves with its body and its end."""
    began_s: float
    """When it was given its place."""
    code: ErrorCode
    """Why the stream is reset; NO_ERROR when it ends in order."""
    lacks: str
    """What its engine turned out not to have."""
    on_first_token: "Callable[[RequestRun], None] | None"
    """Called once when a streamed response begins; None where nobody needs to know."""
    refusal: Refusal | None
    """Why the engine refused it, where that can be told."""
    status: int
    """The response's; 0 when there is none."""
    told: ToldRequest | None
    """What other sessions are told of it; None where there are none."""
    trace: EngineTrace | None
    """What is recorded of it; None: its trace is not."""

    def __init__(
        self, stream: Stream, seat: EngineSlot, owner: RunOwner, agreed: Collection[str] = ()
    ) -> None:
        """``agreed`` are the capabilities that are agreed on with the gateway."""
        self.stream, self.seat = stream, seat
        self._owner, self._agreed = owner, agreed
        self._pieces, self.untaken_bytes, self._moved = [], 0, None
        self._complete = self.ended = self._over = False
        self.began_s = seat.entered_s
        self.status, self._headers, self._rest, self._message = 0, (), b"", b""
        self._whole = self._watching = self._head_waits = self.engine_failed = self.out_of_memory = False
        self._writable = True
        self.code, self.reason, self.lacks = _NO_ERROR, "", ""
        self._request = self._reader = self._usage = self._first_byte_s = self._need = self.refusal = None
        self._deadline = self._gathered = self._out_path = self._progress = None
        self.on_first_token = self.told = self.trace = None
        if stream.head.gather_s:
            call_later = asyncio.get_running_loop().call_later
            self._gathered = GatheredBody(stream.send_data, stream.head.gather_s, self._fail, call_later)

    @property
    def tells_progress(self) -> bool:
        """The gateway hears of the request's progress."""
        return PROGRESS in self._agreed

    # --- what the session says

    def on_head(self, head: ResponseHead) -> None:
        raise AssertionError("an agent receives no response")

    def on_progress(self, progress: Progress) -> None:
        """From the backend: a gateway says nothing of progress."""
        if self._over or not self.tells_progress:
            return
        if self._progress is None:
            call_later = asyncio.get_running_loop().call_later
            self._progress = ProgressReporter(self.stream.send_progress, call_later)
        self._progress.report(progress)

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        """The rest of the response is not wanted. After its end NO_ERROR concerns the request's body."""
        if not self._over:
            self.give_up(ErrorCode.CANCELLED)
        elif code is not ErrorCode.NO_ERROR:
            self.stream.reset(ErrorCode.CANCELLED)

    def on_writable(self) -> None:
        if self._gathered is not None and not self._gathered.writable():
            return
        self._writable = True
        if self._request is not None:
            self._request.resume()
        elif self._rest and not self._over:
            self._end()

    # The engine works on meanwhile, as far as credit goes; who waits is told by on_writable.
    def on_suspended(self) -> None: ...
    def on_resumed(self) -> None: ...

    def on_closed(self) -> None:
        """Before our end only when the session is lost; a stream whose request was whole hears no reset."""
        if not self._over:
            self.give_up(ErrorCode.CANCELLED)
        self._owner.closed(self)

    # --- what is done

    def begin(self) -> None:
        """Gives the request to its engine."""
        if self._over:
            return
        head = self.stream.head
        if head.deadline_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(head.deadline_s, self._out_of_time)
        try:
            request = self.seat.place.engine.backend.request(head, self, self)
        except Exception as error:
            self._fail(error)
        else:
            if not self._over:
                self._request = request

    @property
    def in_engine(self) -> bool:
        """It has its place."""
        return not self._over

    @property
    def has_begun(self) -> bool:
        """The first of a streamed response has come."""
        return self._first_byte_s is not None and self.stream.head.streaming

    def outcome(self) -> EngineOutcome:
        """What became of it, once the engine has let go."""
        error = None if self.code is ErrorCode.NO_ERROR else self.code.name.lower()
        if error is None and self.status >= 500:
            error = str(self.status)
        total_s = self._owner.clock() - self.began_s
        return EngineOutcome(self.seat.engine, self.status, error, self._first_byte_s, total_s, self._usage)

    def give_up(self, code: ErrorCode, reason: str = "") -> None:
        """The engine is to let go of the request, and the stream is reset."""
        if self._over:
            return
        request, self._request = self._request, None
        if request is not None:
            request.let_go()
        self.code, self.reason = code, reason
        self._leave()
        self.stream.reset(code, reason)
        if self.untaken_bytes:
            self.drop()

    def _out_of_time(self) -> None:
        self.give_up(ErrorCode.DEADLINE, "the request's time was up")

    # --- what the backend says

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> OutPath | None:
        head = self.stream.head
        self.status, self._headers = status, headers
        self._reader = reader_for(head.usage, headers)
        if status >= 400:
            if status in PATH_STATUSES and head.method == "POST":
                self._need = need_of_path(head.path)
            self._head_waits = self._need is not None or status in REFUSING
            self._watching = self._head_waits or status >= 500
            if self._head_waits:
                return None
        if whole:
            self._whole = True
            return None
        self.stream.send_head(self._head())
        if self._reader.takes_whole_events and self._gathered is None:
            self._out_path = self.stream.out_path()
        return self._out_path

    def on_body(self, piece: bytes) -> bool:
        """Pass a piece of the engine's body on to the gateway. Raises LocalError if the request was
        cancelled."""
        if self._watching:
            piece = self._watch(piece)
            if not piece:
                return True
        is_first = self._first_byte_s is None
        if is_first:
            self._first_byte_s = self._owner.clock() - self.began_s
            if self.on_first_token is not None:
                self.on_first_token(self)
        assert self._reader is not None
        data = self._reader.feed(piece)
        if self._whole:
            self._rest += data
            return True
        send = self.stream.send_data if self._gathered is None else self._gathered.send
        ready = not data or send(data)
        if is_first and self.stream.head.streaming:
            self.stream.hasten()
        if self._out_path is not None:
            self._out_path.open = ready and self._reader.takes_whole_events
        if not ready:
            self._writable = False
        return ready

    def on_over(self, error: Exception | None) -> None:
        """The engine has said all: what of it waits to leave needs no engine."""
        self._request = None
        if error is not None:
            self._fail(error)
            return
        try:
            if self.status >= 400:
                self._look_at_refusal()
            assert self._reader is not None
            self._rest += self._reader.finish()
            if self._gathered is not None:
                self._rest, self._writable = self._gathered.take() + self._rest, self._gathered.ready
        except Exception as failure:
            self._fail(failure)
            return
        if self._writable or not self._rest:
            self._end()

    def _head(self) -> ResponseHead:
        headers = self._headers
        if self.stream.head.usage is _STRIP and isinstance(self._reader, EventUsage):
            # A response that may lose its usage chunk must not promise its length.
            headers = tuple([field for field in headers if field[0] != "content-length"])
        if self.status < 400:
            return ResponseHead(self.status, headers)
        return ResponseHead(self.status, headers, bool(self.lacks), self.refusal)

    def _watch(self, piece: bytes) -> bytes:
        """What of a body that is watched is to be passed on now, when ``piece`` has come."""
        self._message += piece
        if not self._head_waits:
            self._watching = len(self._message) < MESSAGE_BYTES
            return piece
        return b"" if len(self._message) <= PATH_BODY_BYTES else self._send_waiting_head()

    def _send_waiting_head(self) -> bytes:
        """What there is of the body, which is to follow the head."""
        self._head_waits = self._watching = False
        self.refusal = refusal_of(self.status, self._message, self.seat.others)
        self.stream.send_head(self._head())
        return self._message

    def _look_at_refusal(self) -> None:
        """The answer of 4xx or 5xx is whole."""
        if self._head_waits:
            self._say_why_it_waited()
        if self.status >= 500 or self.status in REFUSING:
            self.out_of_memory = tells_of_memory(self._message)

    def _say_why_it_waited(self) -> None:
        path = self.stream.head.path
        if self._need is not None and lacks_path(self.status, self._headers, self._message, path):
            self.lacks = self._need
        if waiting := self._send_waiting_head():
            self.on_body(waiting)

    def _end(self) -> None:
        """Ends the stream in the turn in which the response ended, so that both leave together."""
        try:
            assert self._reader is not None
            if self._rest and not self._whole:
                self.stream.send_data(self._rest)
            usage = self._usage = self._reader.usage()
        except Exception as error:
            self._fail(error)
            return
        gpu_s = self._leave()
        trailers = Trailers(
            usage,
            0.0,  # a request goes to its engine at once: who waits, waits at the gateway
            self._first_byte_s,
            self._owner.clock() - self.began_s,
            gpu_s if GPU_SECONDS in self._agreed else None,
        )
        try:
            if self._whole:
                self.stream.send_answer(self._head(), self._rest, trailers)
            else:
                self.stream.end(trailers)
        except LocalError:
            pass  # the stream ended under us, its place is free all the same
        if self.untaken_bytes:
            self.drop()

    def _fail(self, error: Exception) -> None:
        """The engine has let go, for an error of its own or of ours."""
        head = self.stream.head
        code, reason = ErrorCode.INTERNAL, "the agent failed; its log says why"
        if isinstance(error, BackendError):
            code, reason = error.code, error.reason
            self.engine_failed = code not in (ErrorCode.REFUSED, ErrorCode.PROTOCOL_ERROR)
        elif isinstance(error, LocalError):
            code, reason = ErrorCode.CANCELLED, ""  # the stream ended under us
        elif isinstance(error, MemoryError):
            code, reason = ErrorCode.OVERLOADED, "the agent is out of memory"
            log.error("request failed, the agent is out of memory", request=head.request_id, exc_info=error)
        else:
            log.error("request failed", request=head.request_id, model=head.model, exc_info=error)
        self.lacks, self.out_of_memory = "", False
        self.give_up(code, reason)

    def _leave(self) -> float:
        """Returns the GPU-seconds of :meth:`RunOwner.left`."""
        self._over = True
        if self._progress is not None:
            self._progress.stop()
        if self._gathered is not None:
            self._gathered.take()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        return self._owner.left(self)
