"""A request whose dialect its engine does not speak, sent as one of chat completions."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
from msgspec.structs import replace

from agent.engines.backend import (
    BackendBody,
    BackendFailed,
    BackendRequest,
    ResponseReceiver,
    WholeBody,
    read_whole,
)
from agent.engines.dialects.chat import ChatChunkReader, NoChatAnswer, answer_of, error_of
from agent.engines.dialects.dialect import CHAT_PATH, AnswerWriter, JsonObject, Translation, Untranslatable
from agent.engines.error_responses import PATH_BODY_BYTES, PATH_STATUSES, lacks_path
from shared.process.server_sent_events import EventTooLong
from shared.protocol.messages import Headers, RequestHead
from shared.protocol.progress import Progress
from shared.speedups import OutPath

REQUEST_BYTES = 32 * 1024 * 1024
"""Longest request that is translated: it is read whole for that."""

ANSWER_BYTES = 8 * 1024 * 1024
"""Longest answer in one piece that is translated."""

PARSED_HERE_BYTES = 64 * 1024
"""A request up to this is parsed on the event loop, which takes less than a millisecond."""

_DROPPED = frozenset(
    ("content-length", "content-type", "transfer-encoding", "content-encoding", "anthropic-version")
)
_JSON = ("content-type", "application/json")

Send = Callable[[RequestHead, BackendBody, ResponseReceiver], BackendRequest]


class TranslatedCall:
    """Implements :class:`agent.engines.backend.BackendRequest`.

    ``on_found`` is given where it is not known whether the engine speaks the dialect: the engine is then
    asked in it first, and ``on_found`` is told what it turned out to be.
    """

    def __init__(
        self,
        dialect: Translation,
        head: RequestHead,
        body: BackendBody,
        receiver: ResponseReceiver,
        send: Send,
        on_found: Callable[[bool], None] | None = None,
    ) -> None:
        self._dialect = dialect
        self._head = head
        self._body = body
        self._receiver = receiver
        self._send = send
        self._on_found = on_found
        self._request: BackendRequest | None = None
        self._answer: TranslatedAnswer | None = None
        self._task: asyncio.Task[None] | None = asyncio.create_task(self._begin())

    def resume(self) -> None:
        if self._answer is not None:
            self._answer.resume()
        if self._request is not None:
            self._request.resume()

    def let_go(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._request is not None:
            self._request.let_go()

    async def _begin(self) -> None:
        """Reads the request and sends it in its dialect, or translated."""
        try:
            body = await self._read()
        except Exception as error:
            self._give_up(error)
            return
        if self._on_found is None:
            await self._send_translated(body)
            return
        receiver = AskedInDialect(
            self._head.path, self._receiver, self._on_found, lambda: self._translate_later(body)
        )
        self._task = None
        self._begin_sending(self._head, body, receiver)

    def _translate_later(self, body: bytes) -> None:
        self._request = None
        self._task = asyncio.create_task(self._send_translated(body))

    async def _send_translated(self, body: bytes) -> None:
        try:
            small = len(body) <= PARSED_HERE_BYTES
            translated = self._translate(body) if small else await asyncio.to_thread(self._translate, body)
        except Exception as error:
            self._give_up(error)
            return
        self._task = None
        chat, writer = translated
        kept = [(name, text) for name, text in self._head.headers if name.lower() not in _DROPPED]
        head = replace(self._head, path=CHAT_PATH, headers=(*kept, _JSON, ("content-length", str(len(chat)))))
        self._answer = TranslatedAnswer(self._dialect, writer, self._receiver)
        self._begin_sending(head, chat, self._answer)

    def _begin_sending(self, head: RequestHead, body: bytes, receiver: ResponseReceiver) -> None:
        try:
            request = self._send(head, WholeBody(body), receiver)
        except Exception as error:
            self._receiver.on_over(error)
        else:
            if self._task is None:  # else the answer was there at once, and it is asked once more
                self._request = request

    async def _read(self) -> bytes:
        """The whole request. Raises :class:`Untranslatable` for one that is too long."""
        body = await read_whole(self._body, REQUEST_BYTES)
        if body is None:
            raise Untranslatable(f"A request of more than {REQUEST_BYTES} bytes is not translated.")
        return body

    def _translate(self, body: bytes) -> tuple[bytes, AnswerWriter]:
        try:
            request = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise Untranslatable("The body is no JSON.") from None
        if not isinstance(request, dict):
            raise Untranslatable("The body must be a JSON object.")
        try:
            return orjson.dumps(self._dialect.request(request)), self._dialect.answer(request)
        except orjson.JSONEncodeError:
            raise Untranslatable("The request is nested too deeply.") from None

    def _give_up(self, error: Exception) -> None:
        """Nothing is sent. Who asked for what cannot be translated is told so, in the dialect's shape."""
        self._task = None
        if not isinstance(error, Untranslatable):
            self._receiver.on_over(error)
            return
        said = {"message": error.message, "type": "invalid_request_error", "param": error.param}
        body = orjson.dumps(self._dialect.error(400, said | {"code": "not_translatable"}))
        failed: Exception | None = None
        try:
            self._receiver.on_response(400, (_JSON, ("content-length", str(len(body)))))
            self._receiver.on_body(body)
        except Exception as raised:
            failed = raised
        self._receiver.on_over(failed)


class AskedInDialect:
    """A :class:`agent.engines.backend.ResponseReceiver` that hands on to ``receiver`` unless the engine has
    nothing at the ``path``; then ``on_lacking`` is called in place of :meth:`on_over`."""

    tells_progress: bool
    on_progress: Callable[[Progress], None]

    def __init__(
        self,
        path: str,
        receiver: ResponseReceiver,
        on_found: Callable[[bool], None],
        on_lacking: Callable[[], None],
    ) -> None:
        self._path = path
        self._receiver = receiver
        self._on_found = on_found
        self._on_lacking = on_lacking
        self.tells_progress, self.on_progress = receiver.tells_progress, receiver.on_progress
        self._status = 0
        self._headers: Headers = ()
        self._held: bytearray | None = None
        """How a body begins that may say that nothing is there."""

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> OutPath | None:
        self._status, self._headers = status, headers
        if status in PATH_STATUSES:
            self._held = bytearray()
            return None
        if status < 500:
            self._on_found(True)
        return self._receiver.on_response(status, headers, whole=whole)

    def on_body(self, piece: bytes) -> bool:
        if self._held is None:
            return self._receiver.on_body(piece)
        self._held += piece
        return len(self._held) <= PATH_BODY_BYTES or self._release()

    def on_over(self, error: Exception | None) -> None:
        if self._held is not None and error is None:
            if lacks_path(self._status, self._headers, bytes(self._held), self._path):
                self._on_found(False)
                self._on_lacking()
                return
            try:
                self._release()
            except Exception as raised:
                error = raised
        self._receiver.on_over(error)

    def _release(self) -> bool:
        """It is the engine's own answer."""
        held, self._held = bytes(self._held or b""), None
        self._on_found(True)
        self._receiver.on_response(self._status, self._headers)
        return not held or self._receiver.on_body(held)


class TranslatedAnswer:
    """A :class:`agent.engines.backend.ResponseReceiver` of a chat completion that hands on to ``receiver``
    what it is in another dialect. Answers in one piece and errors are handed on when they are whole."""

    tells_progress: bool
    on_progress: Callable[[Progress], None]

    def __init__(self, dialect: Translation, writer: AnswerWriter, receiver: ResponseReceiver) -> None:
        self._dialect = dialect
        self._writer = writer
        self._receiver = receiver
        self.tells_progress, self.on_progress = receiver.tells_progress, receiver.on_progress
        self._status = 0
        self._headers: Headers = ()
        self._chunks: ChatChunkReader | None = None
        self._held = bytearray()
        self._ready = True
        """The receiver takes more."""
        self._rest = b""
        """The last of a stream, which waits until the receiver takes more."""

    def resume(self) -> None:
        """The receiver takes more."""
        self._ready = True
        if self._rest:
            self._end(None)

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        self._status = status
        self._headers = tuple(
            field for field in headers if field[0] not in ("content-length", "content-type")
        )
        kind = next((text for name, text in headers if name == "content-type"), "")
        if status == 200 and kind.lower().startswith("text/event-stream"):
            try:
                self._chunks = ChatChunkReader(self._writer.events())
            except NoChatAnswer as error:
                raise BackendFailed(str(error)) from error
            self._receiver.on_response(200, (*self._headers, ("content-type", kind)))

    def on_body(self, piece: bytes) -> bool:
        """Raises :class:`BackendFailed` for what is no chat completion."""
        if self._chunks is not None:
            try:
                data = self._chunks.feed(piece)
            except (NoChatAnswer, EventTooLong) as error:
                raise BackendFailed(str(error)) from error
            self._ready = not data or self._receiver.on_body(data)
            return self._ready
        self._held += piece
        if len(self._held) > ANSWER_BYTES:
            raise BackendFailed(f"the engine's answer is longer than {ANSWER_BYTES} bytes")
        return True

    def on_over(self, error: Exception | None) -> None:
        if error is None:
            try:
                self._finish()
            except Exception as raised:
                error = raised
        if error is not None or self._ready or not self._rest:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        rest, self._rest = self._rest, b""
        try:
            if rest and error is None:
                self._receiver.on_body(rest)
        except Exception as raised:
            error = raised
        self._receiver.on_over(error)

    def _finish(self) -> None:
        try:
            self._rest = self._whole() if self._chunks is None else self._chunks.finish()
        except (NoChatAnswer, EventTooLong) as error:
            raise BackendFailed(str(error)) from error
        if self._chunks is None:
            length = ("content-length", str(len(self._rest)))
            self._receiver.on_response(self._status, (*self._headers, _JSON, length))

    def _whole(self) -> bytes:
        value: Any
        try:
            value = orjson.loads(bytes(self._held))
        except orjson.JSONDecodeError:
            value = bytes(self._held[:1000]).decode(errors="replace").strip() or None
        said: JsonObject
        if self._status >= 400:
            said = self._dialect.error(self._status, error_of(value, self._status))
        else:
            said = self._writer.whole(answer_of(value))
        return orjson.dumps(said)
