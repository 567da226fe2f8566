"""Engine to client: opaque bytes, and credit that follows what the client's socket took."""

import re
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import orjson

from gateway.dispatch.request_heads import is_encoded, is_event_stream
from gateway.dispatch.response_stream import Sink
from gateway.domain.engine_paths import REWRITTEN, check_redirect, rewritten_headers
from gateway.domain.errors import (
    DeadlineExceeded,
    EngineError,
    EngineRefused,
    ReadTooSlowly,
    RequestError,
    ShuttingDown,
    StreamBroken,
)
from gateway.domain.remembered import Remembered
from gateway.domain.request import Request
from gateway.domain.surface import EngineTarget
from shared.protocol.errors import ErrorCode
from shared.protocol.header_fields import FIELD_NAME, HOP_BY_HOP
from shared.protocol.messages import Headers, Trailers

HeaderList = list[tuple[bytes, bytes]]

WRITE_BYTES = 64 * 1024
"""A client's connection is given so much at once: more would wait there, beside what waits here, and nobody
could tell how much of it was taken."""

REFUSAL_BYTES = 64 * 1024
"""As much of an engine's refusal is read to tell it to a client whose stream has already begun."""

_NOT_RELAYED = HOP_BY_HOP.union(
    # what this server says itself
    ("date", "server", "x-request-id", "request-id", "content-length"),
    # what speaks for the whole origin, which is the gateway's and not the engine's
    ("set-cookie", "set-cookie2", "strict-transport-security", "alt-svc", "clear-site-data"),
    ("public-key-pins", "service-worker-allowed", "nel", "report-to", "accept-ch"),
    # what proxies in front obey: files and addresses of theirs to send instead
    ("x-accel-redirect", "x-accel-expires", "x-accel-charset", "x-accel-limit-rate"),
    ("x-sendfile", "x-lighttpd-send-file", "x-reproxy-url"),
)
_NOT_RELAYED_PREFIXES = ("x-trunkline-", "access-control-", "x-ratelimit-")
_NOT_RELAYED_EVENTS = frozenset(("cache-control", "x-accel-buffering"))
_BODILESS = frozenset((204, 304))
"""Whatever their header fields say, the next answer begins behind their heads (RFC 9112 §6.3)."""
_LENGTH = re.compile(r"[0-9]{1,18}\Z")
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")


class Response(Protocol):
    """What :class:`gateway.dispatch.dispatcher.EngineResponse` offers."""

    status: int
    headers: Headers
    agent: str
    ran_by: str
    version: str
    queue_s: float
    attempts: int

    @property
    def trailers(self) -> Trailers | None: ...
    @property
    def continued(self) -> bool: ...
    def take_whole(self) -> bytes | None: ...
    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]: ...
    def consumed(self, size_bytes: int) -> None: ...
    def abort(self) -> None: ...


Run = Callable[[Request], Awaitable[Response]]
"""Has a request answered: admission, queue, scheduler and dispatch, or a stage before them."""


class ClientReply(Protocol):
    """Where the bytes go; :class:`gateway.api.exchange.reply.Reply` over ASGI."""

    @property
    def started(self) -> bool: ...
    @property
    def direct(self) -> Sink | None: ...
    @property
    def comments(self) -> object | None: ...
    @property
    def tells_waiting(self) -> bool: ...
    async def settle(self) -> None: ...
    async def end_waiting(self) -> None: ...
    async def start(
        self, status: int, headers: HeaderList, *, event_stream: bool = False, body_follows: bool = False
    ) -> None: ...
    def send_whole(self, status: int, headers: HeaderList, data: bytes) -> bool: ...
    async def write(self, data: bytes) -> None: ...
    async def end(self, data: bytes = b"") -> None: ...


async def relay(
    response: Response,
    answer: ClientReply,
    facts: bool = True,
    more: Sequence[tuple[bytes, bytes]] = (),
    target: EngineTarget | None = None,
) -> None:
    """Pass ``response`` on until its end. Raises :class:`RequestError` when it breaks.

    A body that is all there goes out in one piece with its end. Of any other, one ``write`` for what has
    arrived, ``WRITE_BYTES`` at most, and only after it these bytes are taken: the
    gateway holds what was granted, and what the client's key may leave unread
    (:mod:`gateway.dispatch.response_buffers`), and no more. While the client keeps up, and its server has a
    short way for the body, pieces take that one as they come, and this sleeps until there is something to
    wait for. ``facts`` adds the headers that say who answered and how long it waited; ``more`` are further
    ones, and comments in a stream that has begun. ``target`` is what the engine was asked for: addresses in
    its header fields are passed on as far as they lie under it
    (:mod:`gateway.domain.engine_paths.references`).
    """
    ended = False
    try:
        if answer.comments is not None:
            await answer.settle()
        if answer.started:
            await _join_events(response, answer, more)
        else:
            bodiless = response.status in _BODILESS
            whole = None if bodiless else response.take_whole()
            headers, event_stream = _head(response, bodiless, facts, more, target)
            if whole is not None:
                if event_stream or not answer.send_whole(response.status, headers, whole):
                    await _send_whole(response, answer, headers, whole, event_stream=event_stream)
                response.consumed(len(whole))
                ended = True
                return
            await answer.start(response.status, headers, event_stream=event_stream)
            if bodiless:
                await _drop_body(response)
        while chunks := await response.next_chunks(answer.direct):
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if len(data) > WRITE_BYTES:
                await _write_in_pieces(response, answer, data)
            else:
                await answer.write(data)
                response.consumed(len(data))
        ended = True
        await answer.end()
    except StreamBroken as broken:
        raise as_request_error(broken) from broken
    finally:
        if not ended:
            response.abort()


async def _join_events(response: Response, answer: ClientReply, more: Sequence[tuple[bytes, bytes]]) -> None:
    """The head is out, so ``more`` become comments."""
    await _require_events(response)
    if more:
        await answer.write(b"".join(b": %s: %s\n\n" % field for field in more))


async def _send_whole(
    response: Response, answer: ClientReply, headers: HeaderList, whole: bytes, *, event_stream: bool
) -> None:
    """Something of it may have to be waited for."""
    await answer.start(response.status, headers, event_stream=event_stream, body_follows=True)
    await answer.end(whole)


async def _write_in_pieces(response: Response, answer: ClientReply, data: bytes) -> None:
    for start in range(0, len(data), WRITE_BYTES):
        piece = data[start : start + WRITE_BYTES]
        await answer.write(piece)
        response.consumed(len(piece))


def _head(
    response: Response,
    bodiless: bool,
    facts: bool,
    more: Sequence[tuple[bytes, bytes]],
    target: EngineTarget | None,
) -> tuple[HeaderList, bool]:
    """The header fields for the client, and whether what they begin is a stream of events."""
    status, given = response.status, response.headers
    event_stream = not bodiless and is_event_stream(given)
    if 300 <= status < 400:
        check_redirect(status, target)
    headers = relayed_headers(given, event_stream, status, target)
    if bodiless:
        headers = [field for field in headers if field[0] != b"content-length"]
    if facts:
        queue_s, attempts = response.queue_s, response.attempts
        waited = _WAITED_NOT if queue_s < _NO_WAIT_S else (_WAITED, b"%.1f" % (queue_s * 1000))
        tried = _TRIED_ONCE if attempts == 1 else (_TRIED, b"%d" % attempts)
        headers += (_AGENTS[response.agent], waited, tried)
        if response.ran_by:
            headers.append((b"x-trunkline-ran-by", response.ran_by.encode("latin-1", "replace")))
    if more:
        headers += more
    return headers, event_stream


_WAITED, _TRIED = b"x-trunkline-queue-ms", b"x-trunkline-attempts"
_WAITED_NOT, _TRIED_ONCE = (_WAITED, b"0.0"), (_TRIED, b"1")
"""What most answers say of themselves."""

_NO_WAIT_S = 0.00004
"""Less is written as no wait."""

_AGENTS: Remembered[str, tuple[bytes, bytes]] = Remembered(
    lambda agent: (b"x-trunkline-agent", agent.encode("latin-1", "replace")), 4096
)


async def _drop_body(response: Response) -> None:
    """Discard the body of a response that must not have one: a client would read it as the next response."""
    while chunks := await response.next_chunks():
        response.consumed(sum(map(len, chunks)))


async def _require_events(response: Response) -> None:
    """The client was already promised a stream of events. Raises what the engine says instead of one."""
    if response.status == 200 and is_event_stream(response.headers):
        return
    if response.status < 400:
        what = "a compressed one" if is_encoded(response.headers) else "something else"
        raise EngineError(f"The engine answered a request for a stream with {what}.")
    body = bytearray()
    while len(body) < REFUSAL_BYTES and (chunks := await response.next_chunks()):
        for chunk in chunks:
            body += chunk
            response.consumed(len(chunk))
    raise engine_refusal(response.status, bytes(body))


class _Condition(Enum):
    """On what it depends whether and how an engine's field of some name is passed on."""

    NO_EVENTS = auto()
    """It is dropped from a stream of events."""
    ADDRESS = auto()
    """It may lead elsewhere."""
    LENGTH = auto()


_OF_LENGTH, _ADDRESS = _Condition.LENGTH, _Condition.ADDRESS
"""Members of enumerations for the path of every request: a global is found faster."""


def _passing(name: str) -> tuple[bytes, _Condition | None]:
    """How a header field's name is written to clients; empty for a field that is never passed on."""
    if name == "content-length":
        return b"content-length", _Condition.LENGTH
    if name in _NOT_RELAYED or name.startswith(_NOT_RELAYED_PREFIXES) or not FIELD_NAME.fullmatch(name):
        return b"", None
    written = name.encode("ascii")
    if name in REWRITTEN:
        return written, _Condition.ADDRESS
    return written, _Condition.NO_EVENTS if name in _NOT_RELAYED_EVENTS else None


_PASSINGS = Remembered(_passing, 256)


def relayed_headers(
    headers: Headers, event_stream: bool, status: int = 200, target: EngineTarget | None = None
) -> HeaderList:
    """The header fields of an engine's answer to ``target`` for the client, who may have it
    (:func:`~gateway.domain.engine_paths.references.check_redirect`).

    A stream of events loses its length, because comments and a last error may be added to it. Raises
    :class:`EngineError` for lengths that contradict, and as
    :func:`gateway.domain.engine_paths.references.rewritten_headers` does.
    """
    kept: HeaderList = []
    length: str | None = None
    for name, value in headers:
        written, condition = _PASSINGS[name]
        if condition is None:
            if written:
                kept.append((written, value.encode("latin-1", "replace")))
        elif condition is _OF_LENGTH:
            length = value.strip() if length is None or value.strip() == length else ""
        elif condition is _ADDRESS:
            for _, found in rewritten_headers(status, ((name, value),), target):
                kept.append((written, found.encode("latin-1", "replace")))
        elif not event_stream:
            kept.append((written, value.encode("latin-1", "replace")))
    if length is not None and not event_stream:
        if not _LENGTH.match(length):
            raise EngineError("The engine announced a length that is none.")
        kept.insert(0, (b"content-length", length.encode("ascii")))
    return kept


def as_request_error(broken: StreamBroken) -> RequestError:
    """What to tell a client whose answer broke off."""
    if broken.read_slowly:
        return ReadTooSlowly(broken.reason)
    if broken.code is ErrorCode.DRAINING:
        return ShuttingDown(broken.reason)
    if broken.code is ErrorCode.DEADLINE:
        return DeadlineExceeded(broken.reason)
    if broken.not_continued:
        return EngineError(broken.reason, code="stream_not_continuable")
    return EngineError(broken.reason)


def _text(value: object) -> str:
    """An engine's words, or its JSON as text; nothing of what is nested too deeply."""
    try:
        return str(value or "")
    except RecursionError:
        return ""


def engine_refusal(status: int, body: bytes) -> RequestError:
    """An engine's own error as ours; its message is found in OpenAI's shape or its common variants."""
    message, kind, code = f"The engine refused the request with status {status}.", None, None
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    detail = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(detail, dict):
        message = _text(detail.get("message") or detail.get("detail")) or message
        kind, code = detail.get("type"), detail.get("code")
    elif isinstance(detail, str):
        message = detail
    named = isinstance(code, str) and _CODE.match(code)
    error = EngineRefused(message, code=code if named else "engine_refused")
    error.status = status
    fallback = "invalid_request_error" if status < 500 else "server_error"
    error.type = kind if isinstance(kind, str) else fallback
    return error
