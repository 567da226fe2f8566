"""One request of the parent on its way through this gateway: from a stream of the uplink to a deployment and
back, at the pace at which the parent takes the answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import orjson
import structlog

from gateway.dispatch.exchange import RequestExchange
from gateway.dispatch.response import EngineResponse
from gateway.domain.errors import (
    DeadlineExceeded,
    EngineBusy,
    EngineError,
    NoDeployment,
    NoSlotFree,
    Overloaded,
    RequestDeclined,
    RequestError,
    RouteNotSupported,
    ShuttingDown,
    StreamBroken,
)
from gateway.domain.request import Request, RequestBody
from gateway.observability.request_trace import RequestTrace
from gateway.uplink.capacity import UplinkSlot
from shared.link.progress import ProgressReporter
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode, LocalError
from shared.protocol.messages import RequestHead, ResponseHead, Trailers
from shared.protocol.other_requests import ToldRequest
from shared.protocol.progress import Progress

_log = structlog.get_logger(__name__)

MIB = 1024 * 1024

HELD_BYTES = MIB
"""So much of a request's body is read before it goes to an agent, so that it can go to another one as well.
There is a slot for each request, so all that is held is bounded by the slots."""

_SERVER_ERROR = 500
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (ShuttingDown, ErrorCode.DRAINING),
    (DeadlineExceeded, ErrorCode.DEADLINE),
    (EngineBusy, ErrorCode.OVERLOADED),
    (Overloaded, ErrorCode.OVERLOADED),
    (EngineError, ErrorCode.ENGINE_FAILED),
)
"""What the parent is told of errors that are no answers, in this order."""

_TOO_BUSY = 429


def refusal_code(error: RequestError, *, declines: bool, tried: bool = False) -> ErrorCode:
    """What the parent is told of a request that no engine here has seen. ``declines``: it knows DECLINED;
    ``tried``: the request was sent to an agent here."""
    not_now = tried or isinstance(error, NoSlotFree)
    lasting = isinstance(error, RequestDeclined) or (isinstance(error, NoDeployment) and not not_now)
    return ErrorCode.DECLINED if lasting and declines else ErrorCode.REFUSED


class UplinkDispatch(Protocol):
    """What a run needs; :class:`gateway.uplink.runner.UplinkRunner`."""

    def request(self, head: RequestHead, body: RequestBody, slot: UplinkSlot) -> Request: ...
    def submit(
        self, request: Request, slot: UplinkSlot, settle: Callable[[EngineResponse | Exception], None]
    ) -> RequestExchange: ...
    def device(self, deployment: str) -> str: ...
    def first_byte(self, run: "UplinkRun") -> None: ...
    def now(self) -> float: ...
    def over(self, run: "UplinkRun") -> None: ...


class UplinkRun:
    """Implements :class:`shared.protocol.stream_handler.StreamHandler`."""

    def __init__(
        self,
        stream: Stream,
        slot: UplinkSlot,
        dispatch: UplinkDispatch,
        *,
        declines: bool = False,
        tells_progress: bool = False,
    ) -> None:
        """``declines``: the parent knows DECLINED; ``tells_progress``: and PROGRESS."""
        self.stream = stream
        self.slot = slot
        self.request: Request | None = None
        """None before it was given to the dispatcher."""
        self.response: EngineResponse | None = None
        self.first_byte_s: float | None = None
        self.began_s = dispatch.now()
        self.error: Exception | None = None
        """Why there was no answer, or no whole one."""
        self.cancelled = False
        """The parent gave it up, or its session is over."""
        self.told: ToldRequest | None = None
        """As the parent's other processes are told of it."""
        self.trace: RequestTrace | None = None
        """What is recorded of it; None: its trace is not."""
        self._dispatch = dispatch
        self._declines = declines
        self._tells_progress = tells_progress
        self._progress: ProgressReporter | None = None  # once there is some to tell
        self._body = _Body(stream)
        self._exchange: RequestExchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = True
        self._moved: asyncio.Event | None = None
        self._over = False

    # --- What the session says

    def on_head(self, head: ResponseHead) -> None:
        raise AssertionError("an agent receives no response")

    def on_progress(self, progress: Progress) -> None:
        raise AssertionError("an agent is told of no progress")

    def on_data(self, data: bytes) -> None:
        if self._over:
            self.stream.consumed(len(data))
            return
        self._body.put(data)
        if self.request is None and self._body.is_long:
            self._submit()

    def on_end(self, trailers: Trailers | None) -> None:
        self._body.end()
        if self.request is None and not self._over:
            self._submit()

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        """The rest of the answer is not wanted. After its end NO_ERROR concerns the request's body."""
        if not self._over:
            self._cancel()
        if code is not ErrorCode.NO_ERROR or self.cancelled:
            self.stream.reset(ErrorCode.CANCELLED)

    def on_writable(self) -> None:
        self._writable = True
        if self._moved is not None:
            self._moved.set()

    # What the agents send meanwhile waits for credit, as for any client that reads slowly.
    def on_suspended(self) -> None: ...
    def on_resumed(self) -> None: ...

    def on_closed(self) -> None:
        if not self._over:
            self._cancel()

    # --- Steps

    def begin_messages(self) -> None:
        """The client asks for a WebSocket. The parent sends nothing before there is one (PROTOCOL §5.5), so
        the request goes to an agent at once; what the client says then follows as its body."""
        self._submit()

    def cut_off(self) -> None:
        """This gateway ends: another one gets the request, or goes on with its answer."""
        if not self._over:
            self._let_go()
            self._finish(ShuttingDown("This gateway is shutting down."))
            self.stream.reset(ErrorCode.DRAINING, "the gateway ends")

    def _submit(self) -> None:
        try:
            self.request = self._dispatch.request(self.stream.head, self._body.content(), self.slot)
            if self._tells_progress:
                self.request.on_progress = self._progressed
            if (trace := self.trace) is not None:
                self.request.dispatch_trace, self.request.trace = trace, trace.traceparent
            exchange = self._dispatch.submit(self.request, self.slot, self._settled)
        except Exception as error:
            self._fail(error)
            return
        if not self._over:
            self._exchange = exchange

    def _progressed(self, progress: Progress) -> None:
        """The agent says how far its engine is."""
        if self._over:
            return
        if self._progress is None:
            call_later = asyncio.get_running_loop().call_later
            self._progress = ProgressReporter(self.stream.send_progress, call_later)
        self._progress.report(progress)

    def _settled(self, outcome: EngineResponse | Exception) -> None:
        if isinstance(outcome, Exception):
            self._fail(outcome)
        else:
            self.response = outcome
            self._task = asyncio.get_running_loop().create_task(self._relay(outcome))

    async def _relay(self, response: EngineResponse) -> None:
        head = ResponseHead(response.status, response.headers, ran_by=self._ran_by(response))
        try:
            self.stream.send_head(head)
            while chunks := await response.next_chunks(self._take):
                data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                while not self._writable:
                    await self._until_writable()
                self._note_first_byte()
                self._writable = self.stream.send_data(data)
                response.consumed(len(data))
        except StreamBroken as broken:
            self._broke(broken)
        except LocalError:
            self._cancel()  # the stream ended under us
        except Exception as error:
            _log.exception("uplink_failed", request=self.stream.head.request_id)
            response.abort()
            self._finish(error)
            self.stream.reset(ErrorCode.INTERNAL, "the gateway failed; its log says why")
        else:
            self._end(response)

    def _take(self, piece: bytes) -> bool:
        """Implements :data:`gateway.dispatch.response.Sink`: the way of most pieces."""
        if not self._writable:
            return False
        try:
            self._writable = self.stream.send_data(piece)
        except LocalError:
            return False  # the stream ended under us, as the reader will find
        self._note_first_byte()
        return True

    async def _until_writable(self) -> None:
        self._moved = self._moved or asyncio.Event()
        self._moved.clear()
        await self._moved.wait()

    def _note_first_byte(self) -> None:
        if self.first_byte_s is None:
            self.first_byte_s = self._dispatch.now() - self.began_s
            self._dispatch.first_byte(self)

    def _end(self, response: EngineResponse) -> None:
        request, said = self.request, response.trailers
        assert request is not None
        self._finish(None)
        ran_at = request.attempts[-1] if request.attempts else ""
        trailers = Trailers(
            None if said is None else said.usage,
            response.queue_s,
            self.first_byte_s,
            self._dispatch.now() - self.began_s,
            request.gpu_s,
            self._ran_by(response),
            (said.device if said is not None else "") or self._dispatch.device(ran_at),
        )
        try:
            self.stream.end(trailers)
        except LocalError:
            _log.debug("uplink_stream_gone", request=request.id)

    def _ran_by(self, response: EngineResponse) -> str:
        return f"{response.agent}/{response.ran_by}" if response.ran_by else response.agent

    def _broke(self, broken: StreamBroken) -> None:
        if self._over:
            return  # it was given up
        self._finish(broken)
        # SESSION_LOST is never sent (PROTOCOL §9).
        lost = broken.code is ErrorCode.SESSION_LOST
        self.stream.reset(ErrorCode.ENGINE_FAILED if lost else broken.code, broken.reason)

    def _fail(self, error: Exception) -> None:
        """There is no answer."""
        if self._over:
            return
        self._finish(error)
        if isinstance(error, RequestError) and error.status < _SERVER_ERROR and error.status != _TOO_BUSY:
            self._answer(error)
            return
        if not isinstance(error, RequestError):
            _log.error("uplink_failed", request=self.stream.head.request_id, exc_info=error)
            self.stream.reset(ErrorCode.INTERNAL, "the gateway failed; its log says why")
            return
        code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
        if code is None:
            worked_on = self.request is not None and self.request.was_worked_on
            tried = self.request is not None and bool(self.request.attempts)
            refusal = refusal_code(error, declines=self._declines, tried=tried)
            code = ErrorCode.DRAINING if worked_on else refusal
        self.stream.reset(code, str(error))

    def _answer(self, error: RequestError) -> None:
        """The request itself is at fault, wherever it goes: the answer says so, as an engine's would."""
        body = orjson.dumps(error.openai_body())
        headers = ("content-type", "application/json"), ("content-length", str(len(body)))
        try:
            self.stream.send_head(ResponseHead(error.status, headers, isinstance(error, RouteNotSupported)))
            self.stream.send_data(body)
            self.stream.end(Trailers())
        except LocalError:
            _log.debug("uplink_stream_gone", request=self.stream.head.request_id)

    def _cancel(self) -> None:
        self.cancelled = True
        self._let_go()
        self._finish(None)

    def _let_go(self) -> None:
        if self.response is not None:
            self.response.abort()
        elif self._exchange is not None:
            self._exchange.cancel()
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()

    def _finish(self, error: Exception | None) -> None:
        """Books it, and gives its place back."""
        self._over = True
        self.error = error
        self._body.drop()
        if self._progress is not None:
            self._progress.stop()
        self._dispatch.over(self)


def _current_task() -> "asyncio.Task[None] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class _Body:
    """What has come of a request's body."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._uncredited_bytes = 0
        self._ended = False
        self._rest: asyncio.Event | None = None
        """There once the request is on its way and more of its body is to come."""

    @property
    def is_long(self) -> bool:
        return self._held_bytes > HELD_BYTES

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._rest is None:
            self._stream.consumed(len(data))
        else:
            self._uncredited_bytes += len(data)
            self._rest.set()

    def end(self) -> None:
        self._ended = True
        if self._rest is not None:
            self._rest.set()

    def drop(self) -> None:
        """Nobody reads what is left."""
        self._pieces = []
        left_bytes, self._uncredited_bytes = self._uncredited_bytes, 0
        if left_bytes:
            self._stream.consumed(left_bytes)

    def content(self) -> RequestBody:
        """The body as far as it has come, and the rest of it."""
        pieces, self._pieces = self._pieces or [b""], []
        if self._ended:
            return RequestBody(pieces, None, self._held_bytes)
        self._rest = asyncio.Event()
        return RequestBody(pieces, self._read(self._rest), _length(self._stream.head))

    async def _read(self, moved: asyncio.Event) -> AsyncIterator[bytes]:
        while True:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
                self._uncredited_bytes -= len(piece)
                self._stream.consumed(len(piece))
            if not pieces:
                if self._ended:
                    return
                moved.clear()
                await moved.wait()


def _length(head: RequestHead) -> int | None:
    said = next((text for name, text in head.headers if name == "content-length"), "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 19 else None
