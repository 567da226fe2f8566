"""Has an engine stream the answer to a request for one in one piece, and puts it together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from gateway.dispatch.recovery import NotContinuable
from gateway.dispatch.request_heads import is_event_stream
from gateway.domain.errors import StreamBroken
from gateway.domain.request import Request, RequestBody, StreamedOutput
from gateway.pipeline.accumulation.accumulators import ACCUMULATORS, Accumulator, NotAccumulable
from gateway.pipeline.accumulation.streamed_form import may_be_streamed, streamed_body, usage_mode
from gateway.pipeline.body_response import BodyResponse
from gateway.pipeline.relay import Response, Run, as_request_error
from shared.process.server_sent_events import EventTooLong, ServerSentEventReader
from shared.protocol.messages import Headers, Trailers, UsageMode

EVENT_BYTES = 16 * 1024 * 1024
"""The longest event that is read: the last of a response holds all of it."""
MOST_REMEMBERED = 256
"""Models whose streams are known to tell less than their answers in one piece."""

_READ_HERE_BYTES = 8 * 1024
"""So much is read on the event loop, which takes a quarter of a millisecond; more is read in a thread."""
_COMMENT = b": waiting\n\n"
_ASKED_OTHERWISE = frozenset((400, 404, 405, 406, 415, 422, 501))
"""Statuses after which the same is asked in one piece: it may be the stream that is refused. If it is not,
the engine's words are those for the request that its client made."""
_OF_STREAMS = frozenset(
    (
        "content-type",
        "content-length",
        "cache-control",
        "transfer-encoding",
        "connection",
        "x-accel-buffering",
    )
)


@dataclass(frozen=True, slots=True)
class _InOnePiece:
    """A request as its client wrote it."""

    body: RequestBody
    headers: Headers
    usage: UsageMode
    version: str | None

    @classmethod
    def of(cls, request: Request) -> "_InOnePiece":
        return cls(request.body, request.headers, request.usage, request.version)

    def restore(self, request: Request) -> None:
        request.body, request.headers, request.usage = self.body, self.headers, self.usage
        request.version, request.continuing, request.streaming = self.version, False, False


class AccumulatedRun:
    """A stage before dispatch, for requests with a ``streamed_output``; all others pass unchanged."""

    def __init__(self, dispatch: Run, continues: Callable[[str, str], bool]) -> None:
        """``continues(model, route)`` says whether an engine is there that can go on with an answer."""
        self._dispatch = dispatch
        self._continues = continues
        self._in_one_piece: dict[str, None] = {}
        """Models that are asked so, the latest last."""

    async def __call__(self, request: Request) -> Response:
        """Raises what ``dispatch`` raises, StateError of the output, and NotContinuable for a begun answer
        that cannot be put together."""
        output = request.streamed_output
        if output is None or not may_be_streamed(request):
            return await self._dispatch(request)
        if request.begun is None and not self._is_worth_it(request):
            return await self._dispatch(request)
        body = await asyncio.to_thread(streamed_body, request.route, request.body.prefix)
        if body is None:
            return await self._dispatch(request)
        return await self._run(request, output, body)

    def _is_worth_it(self, request: Request) -> bool:
        return request.model not in self._in_one_piece and self._continues(request.model, request.route)

    async def _run(self, request: Request, output: StreamedOutput, body: bytes) -> Response:
        before = _InOnePiece.of(request)
        _ask_for_stream(request, body)
        try:
            response = await self._streamed(request, output)
        except BaseException:
            before.restore(request)  # it may be asked once more elsewhere
            request.streaming = request.seen_tokens > 0  # what it used is what was seen of it
            raise
        before.restore(request)
        return await self._dispatch(request) if response is None else response

    async def _streamed(self, request: Request, output: StreamedOutput) -> Response | None:
        """None: the answer is to be asked for in one piece."""
        response = await self._dispatch(request)
        if response.status in _ASKED_OTHERWISE:
            response.abort()
            return None
        if response.status != 200 or not is_event_stream(response.headers):
            return response  # of an engine that knows no streams, it is the answer
        try:
            return AccumulatedResponse(response, await self._accumulate(request, response, output))
        except NotAccumulable as error:
            await output.drop()
            if request.begun is not None:
                raise NotContinuable(str(error)) from error
            self._remember(request.model)
            return None

    async def _accumulate(self, request: Request, response: Response, output: StreamedOutput) -> bytes:
        """The whole answer. Raises NotAccumulable, RequestError."""
        ended = False
        try:
            await output.begin(request, response.headers, response.version)
            while chunks := await response.next_chunks():
                await output.append(b"".join(map(_without_comments, chunks)))
                response.consumed(sum(map(len, chunks)))
            ended = True
        except StreamBroken as broken:
            raise as_request_error(broken) from broken
        finally:
            if not ended:
                response.abort()
        return await accumulated(ACCUMULATORS[request.route](), output)

    def _remember(self, model: str) -> None:
        if len(self._in_one_piece) >= MOST_REMEMBERED:
            del self._in_one_piece[next(iter(self._in_one_piece))]
        self._in_one_piece[model] = None


def _ask_for_stream(request: Request, body: bytes) -> None:
    length = ("content-length", str(len(body)))
    request.headers = tuple(length if field[0] == length[0] else field for field in request.headers)
    request.body = RequestBody(body, None, len(body))
    request.usage, request.streaming = usage_mode(request), True


def _without_comments(data: bytes) -> bytes:
    """What a client is told while its answer pauses is no part of the answer."""
    while data.startswith(_COMMENT):
        data = data[len(_COMMENT) :]
    return data


async def accumulated(accumulator: Accumulator, output: StreamedOutput) -> bytes:
    """The answer whose events are in ``output``. Raises NotAccumulable, StateError."""
    reader = ServerSentEventReader(EVENT_BYTES)

    def feed(data: bytes) -> None:
        for event in reader.feed(data):
            accumulator.feed(event)

    def finish() -> bytes:
        for event in reader.finish():
            accumulator.feed(event)
        return orjson.dumps(accumulator.answer())

    size_bytes = 0
    try:
        async for piece in output.pieces():
            size_bytes += len(piece)
            if len(piece) <= _READ_HERE_BYTES:
                feed(piece)
            else:
                await asyncio.to_thread(feed, piece)
        return finish() if size_bytes <= _READ_HERE_BYTES else await asyncio.to_thread(finish)
    except EventTooLong as error:
        raise NotAccumulable(str(error)) from error
    except orjson.JSONEncodeError as error:
        raise NotAccumulable("the answer is nested too deeply") from error


class AccumulatedResponse(BodyResponse):
    """A whole answer that was put together, as the relay takes it."""

    def __init__(self, streamed: Response, body: bytes) -> None:
        """``streamed`` is over."""
        super().__init__(body)
        kept = tuple(field for field in streamed.headers if field[0] not in _OF_STREAMS)
        self.headers: Headers = (
            *kept,
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        )
        self.agent = streamed.agent
        self.ran_by = streamed.ran_by
        self.version = streamed.version
        self.queue_s = streamed.queue_s
        self.attempts = streamed.attempts
        self._streamed = streamed

    @property
    def trailers(self) -> Trailers | None:
        return self._streamed.trailers

    @property
    def continued(self) -> bool:
        return self._streamed.continued
