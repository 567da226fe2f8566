"""A stream's way through the engine and back.

Both directions are held back by whoever is slower: a request's bytes are credited once the engine's socket
took them, and the engine's connection is not read while the tunnel does not take the response.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from agent.capacity.roster import Roster, RosterEntry
from agent.engines.backend import BackendError, BackendRefused, BackendResponse
from agent.engines.error_responses import (
    MESSAGE_BYTES,
    PATH_BODY_BYTES,
    PATH_STATUSES,
    REFUSING,
    lacks_path,
    refusal_of,
    tells_of_memory,
)
from agent.requests.event_usage import EventUsage
from agent.requests.usage import PassThrough, UsageReader, reader_for
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode, LocalError
from shared.protocol.messages import Refusal, ResponseHead, Trailers, UsageMode
from shared.protocol.routes import need_of_path

log = structlog.get_logger("agent.request")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a request ended: in order with ``trailers``, or with a code to reset its stream with."""

    trailers: Trailers | None = None
    code: ErrorCode = ErrorCode.NO_ERROR
    reason: str = ""
    engine_failed: bool = False
    out_of_memory: bool = False
    lacks: str = ""
    """What its engine turned out not to have (:func:`shared.protocol.routes.need_of_path`)."""
    status: int = 0
    """The answer's; 0 when there is none."""


class RequestRunner:
    """Runs each stream in a task of ``tasks``; how many there are is bounded by the roster's slots."""

    def __init__(
        self, roster: Roster, tasks: asyncio.TaskGroup, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._roster = roster
        self._tasks = tasks
        self._clock = clock
        self._runs: set[_Run] = set()
        self._unreachable: dict[str, str] = {}
        """Engine → why requests do not reach it; so that it is said once, not for each of them."""
        self._empty = asyncio.Event()
        self._empty.set()

    async def idle(self) -> None:
        """Waits until no stream is open: all that engines answered is with the gateway."""
        await self._empty.wait()

    def cut_off(self) -> None:
        """End what runs because the agent ends: the gateway gives it to others, or goes on with it there."""
        for run in tuple(self._runs):
            run.cut_off()

    def open(self, session: Hashable, stream: Stream) -> None:
        """A request has come in ``session``. Refused at once when there is no place for it."""
        try:
            seat = self._roster.enter(session, stream.head.deployment)
        except BackendRefused as refusal:
            log.info("request refused", request=stream.head.request_id, reason=refusal.reason)
            stream.reset(ErrorCode.REFUSED, refusal.reason)
            return
        run = _Run(stream, seat, self._clock, self._forget)
        stream.handler = run
        self._runs.add(run)
        self._empty.clear()
        run.task = self._tasks.create_task(self._carry(run), name=f"request {stream.head.request_id}")
        run.task.add_done_callback(lambda task: self._finish(run, run.cut) if task.cancelled() else None)

    async def _carry(self, run: "_Run") -> None:
        """Ends the stream in the turn of the loop in which the answer ended, so that both leave together."""
        self._finish(run, await run.run())

    def _finish(self, run: "_Run", outcome: _Outcome) -> None:
        """The engine has let go: first the place is free, then the gateway hears of the end."""
        self._log_end(run, outcome)
        if outcome.lacks:
            self._roster.note_lack(run.seat, outcome.lacks)
        self._roster.leave(run.seat, failed=outcome.engine_failed, out_of_memory=outcome.out_of_memory)
        if run.refusal is Refusal.BUSY or 200 <= outcome.status < 300:
            self._roster.answered(run.seat, refused=run.refusal is Refusal.BUSY)
        run.finish(outcome)

    def _log_end(self, run: "_Run", outcome: _Outcome) -> None:
        engine = run.seat.engine
        if outcome.trailers is not None:
            if self._unreachable.pop(engine, None) is not None:
                log.info("requests reach the engine again", engine=engine)
        elif outcome.code is ErrorCode.ENGINE_UNREACHABLE:
            if self._unreachable.get(engine) != outcome.reason:
                self._unreachable[engine] = outcome.reason
                log.warning("requests do not reach the engine", engine=engine, reason=outcome.reason)
        elif outcome.engine_failed or outcome.code is ErrorCode.PROTOCOL_ERROR:
            log.warning("request failed", request=run.request_id, engine=engine, reason=outcome.reason)

    def _forget(self, run: "_Run") -> None:
        self._runs.discard(run)
        if not self._runs:
            self._empty.set()


class _Run:
    """One request. Implements :class:`shared.protocol.stream_handler.StreamHandler`."""

    task: "asyncio.Task[None]"

    def __init__(
        self, stream: Stream, seat: RosterEntry, clock: Callable[[], float], forget: "Callable[[_Run], None]"
    ) -> None:
        self.seat = seat
        self.request_id = stream.head.request_id
        self.cut = _Outcome(code=ErrorCode.CANCELLED)
        """What it comes to when its task is cancelled."""
        self._forget = forget
        self._stream = stream
        self._clock = clock
        self._began_s = clock()
        self._first_byte_s: float | None = None
        self._body = _Body(stream)
        self._response: BackendResponse | None = None
        self._reader: UsageReader = PassThrough()
        self._message = bytearray()
        """How an error's body begins."""
        self._head_waits = False
        """The answer's head waits until its body shows why the engine refused the request."""
        self.refusal: Refusal | None = None
        """Why the engine refused it, where that can be told."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False

    # --- what the session says

    def on_head(self, head: ResponseHead) -> None:
        raise AssertionError("an agent receives no response")

    def on_data(self, data: bytes) -> None:
        if self._over:
            self._stream.consumed(len(data))
            return
        self._body.put(data)

    def on_end(self, trailers: Trailers | None) -> None:
        self._body.end()

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        """The rest of the response is not wanted. After its end NO_ERROR concerns the request's body."""
        if not self._over:
            self.task.cancel()
        elif code is not ErrorCode.NO_ERROR:
            self._stream.reset(ErrorCode.CANCELLED)

    def on_writable(self) -> None:
        self._writable.set()
        if self._response is not None:
            self._response.resume()

    # The engine works on meanwhile, as far as credit goes; who waits is told by on_writable.
    def on_suspended(self) -> None: ...
    def on_resumed(self) -> None: ...

    def on_closed(self) -> None:
        """Before our end only when the session is lost; a stream whose request was whole hears no reset."""
        if not self._over:
            self.task.cancel()
        self._forget(self)

    # --- what is done

    def cut_off(self) -> None:
        if not self._over and not self.task.done():
            self.cut = _Outcome(code=ErrorCode.DRAINING, reason="the agent ends")
            self.task.cancel()

    async def run(self) -> _Outcome:
        head = self._stream.head
        try:
            async with asyncio.timeout(head.deadline_s):
                return await self._serve()
        except TimeoutError:
            return _Outcome(code=ErrorCode.DEADLINE, reason="the request's time was up")
        except BackendError as error:
            failed = error.code not in (ErrorCode.REFUSED, ErrorCode.PROTOCOL_ERROR)
            return _Outcome(code=error.code, reason=error.reason, engine_failed=failed)
        except LocalError:
            return _Outcome(code=ErrorCode.CANCELLED)  # the stream ended under us
        except MemoryError:
            log.exception("request failed, the agent is out of memory", request=head.request_id)
            return _Outcome(code=ErrorCode.OVERLOADED, reason="the agent is out of memory")
        except Exception:
            log.exception("request failed", request=head.request_id, model=head.model)
            return _Outcome(code=ErrorCode.INTERNAL, reason="the agent failed; its log says why")

    async def _serve(self) -> _Outcome:
        """Woken for the answer's head and for its end; its pieces go through :meth:`_pass_on`. Over once the
        engine has said all: what of it waits to leave needs no engine."""
        head, lacks = self._stream.head, ""
        async with self.seat.backend.request(head, self._body) as response:
            status = response.status
            reader = self._reader = reader_for(head.usage, response.headers)
            need = need_of_path(head.path) if status in PATH_STATUSES and head.method == "POST" else None
            self._head_waits = need is not None or status in REFUSING
            if not self._head_waits:
                self._send_head(response)
            failed = self._head_waits or status >= 500
            self._response = response
            try:
                await response.pour(partial(self._pass_error_on, response) if failed else self._pass_on)
            finally:
                self._response = None
            if self._head_waits:
                body = bytes(self._message)
                if need is not None and lacks_path(status, response.headers, body, head.path):
                    lacks = need
                self._send_what_waits(response, lacks_path=bool(lacks))
            rest = reader.finish()
            if rest:
                await self._writable.wait()
                self._stream.send_data(rest)
        trailers = Trailers(
            usage=reader.usage(),
            queue_s=0.0,  # a request goes to its engine at once: who waits, waits at the gateway
            first_byte_s=self._first_byte_s,
            total_s=self._clock() - self._began_s,
        )
        memory = (status >= 500 or status in REFUSING) and tells_of_memory(bytes(self._message))
        return _Outcome(trailers, out_of_memory=memory, status=status, lacks=lacks)

    def _send_head(self, response: BackendResponse, *, lacks_path: bool = False) -> None:
        headers = response.headers
        if self._stream.head.usage is UsageMode.STRIP and isinstance(self._reader, EventUsage):
            # A response that may lose its usage chunk must not promise its length.
            headers = tuple((name, text) for name, text in headers if name != "content-length")
        self._stream.send_head(ResponseHead(response.status, headers, lacks_path, self.refusal))

    def _send_what_waits(self, response: BackendResponse, *, lacks_path: bool = False) -> bool:
        """Send the head that waited, and what there is of the body."""
        self._head_waits = False
        self.refusal = refusal_of(response.status, bytes(self._message), self.seat.others)
        self._send_head(response, lacks_path=lacks_path)
        return not self._message or self._pass_on(bytes(self._message))

    def _pass_on(self, piece: bytes) -> bool:
        """The way of every token. Raises LocalError when nobody wants it any more."""
        if self._first_byte_s is None:
            self._first_byte_s = self._clock() - self._began_s
        data = self._reader.feed(piece)
        if not data or self._stream.send_data(data):
            return True
        self._writable.clear()
        return False

    def _pass_error_on(self, response: BackendResponse, piece: bytes) -> bool:
        """The next piece of a body that may say why the engine did not do what was asked."""
        if self._head_waits or len(self._message) < MESSAGE_BYTES:
            self._message += piece
        if not self._head_waits:
            return self._pass_on(piece)
        return len(self._message) <= PATH_BODY_BYTES or self._send_what_waits(response)

    def finish(self, outcome: _Outcome) -> None:
        """The engine has let go."""
        self._over = True
        if outcome.trailers is None:
            self._stream.reset(outcome.code, outcome.reason)
        else:
            with suppress(LocalError):  # the stream ended under us, its place is free all the same
                self._stream.end(outcome.trailers)
        self._body.drop()


class _Body:
    """What has come of a request's body. Implements :class:`agent.engines.backend.BackendBody`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: list[bytes] = []
        """Never more than was credited."""
        self._untaken_bytes = 0
        """Received and not yet said consumed."""
        self._complete = False
        self._moved: asyncio.Event | None = None

    @property
    def ended(self) -> bool:
        return self._complete and not self._pieces

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._untaken_bytes += len(data)
        self._wake()

    def end(self) -> None:
        self._complete = True
        self._wake()

    def drop(self) -> None:
        """Nobody will take the rest."""
        self._pieces.clear()
        self.taken(self._untaken_bytes)

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def taken(self, size_bytes: int) -> None:
        self._untaken_bytes -= size_bytes
        self._stream.consumed(size_bytes)

    async def more(self) -> None:
        while not self._pieces and not self._complete:
            self._moved = self._moved or asyncio.Event()
            self._moved.clear()
            await self._moved.wait()

    def _wake(self) -> None:
        if self._moved is not None:
            self._moved.set()
