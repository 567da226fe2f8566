"""One request of a connection and the way of its answer: uvicorn's cycle, made for many small answers.

An answer's head and its body go out in one write where they come in one turn of the event loop. The head's
fields are checked once, together. A body that is there already is taken without waiting. Clients of HTTP/1.0
know no chunks: for them a body without a length ends with its connection.

The application finds the cycle as an extension of the request's ASGI scope. Under another server it finds
none, and goes the ordinary way over ASGI.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.pipeline.client_head import HeadFacts

CYCLE = "trunkline.cycle"
"""The cycle's name among the scope's ``extensions``."""

_ANY_LENGTH = sys.maxsize
"""The length of a body that ends with its connection."""

_HARMLESS = bytes(code for code in range(256) if code == 0x09 or (code >= 0x20 and code != 0x7F))
"""What a header field may hold: with anything else somebody else could end the head."""

_LINE_END = b"\r\n"

_join_lines, _join_field = _LINE_END.join, b": ".join

Fields = Iterable[tuple[bytes, bytes]]


class SwitchedReceiver(Protocol):
    """Takes what comes over a connection that speaks another protocol from now on (RFC 9110 §7.8)."""

    def data_received(self, data: bytes) -> None: ...
    def writing_resumed(self) -> None: ...
    def connection_lost(self) -> None: ...


class DirectWay(Protocol):
    """A :class:`gateway.api.server.response_writers.DirectWriter`."""

    @property
    def sent_bytes(self) -> int: ...
    def flush(self) -> None: ...
    def note_other_write(self) -> None: ...
    def detach(self) -> None: ...


class DirectBatch(Protocol):
    """A :class:`gateway.api.server.response_writers.WriteBatch`."""

    def add(self, direct: DirectWay) -> None: ...


class Connection(Protocol):
    """Whom a cycle answers for; :class:`gateway.api.server.protocol.BoundedHttpProtocol`."""

    def on_response_complete(self) -> None: ...
    def close_in_time(self) -> None: ...


class AnswerCycle(RequestResponseCycle):
    """Has the attributes of uvicorn's, which its protocol reads and sets.

    ``fields`` are the request's header fields, the first of each name, and ``facts`` what is known of its
    head already. ``connection`` is told when the answer is complete.
    """

    logger = logging.getLogger("uvicorn.error")

    def __init__(
        self,
        scope: Any,
        fields: Mapping[bytes, bytes],
        transport: asyncio.Transport,
        flow: FlowControl,
        loop: asyncio.AbstractEventLoop,
        default_headers: list[tuple[bytes, bytes]],
        expects_continue: bool,
        keep_alive: bool,
        connection: Connection,
        facts: HeadFacts | None = None,
        batch: DirectBatch | None = None,
    ) -> None:
        self.scope = scope
        self.facts = facts
        self.fields = fields
        self.transport = transport
        self.flow = flow
        self.default_headers = default_headers
        self._connection: Connection | None = connection
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expects_continue
        self.response_complete = False
        self.loop = loop
        self.body: bytes | bytearray = b""  # type: ignore[assignment]
        """What has come and was not received yet."""
        self.more_body = True
        self.response_started = False
        self.chunked_encoding: bool | None = None
        self.expected_content_length = 0
        self.task: asyncio.Task[None] | None = None
        """Answers it, while it does. Then it is in ``tasks`` no more."""
        self._untold = False
        """Something of the body, or its end, came and was not received yet."""
        self._received = False
        self._news: asyncio.Event | None = None
        self.batch = batch
        """Of the server, for its direct way to clients; None: it has none."""
        self.direct: DirectWay | None = None
        """The direct way for this answer, from when it was opened until the application has ended."""
        self.on_gone: Callable[[], None] | None = None
        """What :meth:`when_gone` was told; None: nothing is called."""
        self.switch: Callable[[SwitchedReceiver], None] | None = None
        """Has what comes over the connection go to another receiver; there where the request asks for
        another protocol."""
        self._head = b""
        """The head of the answer, while it waits for what follows in the same turn of the event loop."""
        self._flushing: asyncio.Handle | None = None

    tasks: set[asyncio.Task[None]]
    """Those of the server. Only once it has its task."""

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """Set when the body, the client's end or the answer's has something to tell. Made for whoever
        waits."""
        if self._news is None:
            self._news = asyncio.Event()
        return self._news

    # --- The request ---

    def feed(self, data: bytes) -> None:
        """A piece of the body came."""
        if not self.body:
            self.body = data
        elif isinstance(self.body, bytearray):
            self.body += data
        else:
            self.body = bytearray(self.body) + data
        self._untold = True
        if self._news is not None:
            self._news.set()

    def end_request(self) -> None:
        """All of the body came."""
        self.more_body = False
        self._untold = True
        if self._news is not None:
            self._news.set()

    def take_whole(self, most_bytes: int) -> bytes | None:
        """All of the body, if it is here, not longer than that, and nothing of it was received yet; None: it
        has to be received."""
        if self.more_body or not self._untold or self._received or len(self.body) > most_bytes:
            return None
        if self.disconnected or self.waiting_for_100_continue:
            return None
        data, self.body, self._untold = self.body, b"", False
        return data if type(data) is bytes else bytes(data)

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not (self.disconnected or self.response_complete):
            self.flow.resume_reading()
        while not (self._untold or self.disconnected or self.response_complete):
            self.message_event.clear()
            await self.message_event.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        data, self.body, self._untold = bytes(self.body), b"", False
        self._received = True
        return {"type": "http.request", "body": data, "more_body": self.more_body}

    def when_gone(self, callback: Callable[[], None]) -> bool:
        """Have ``callback`` called once when the client leaves before its answer is complete, unless
        :attr:`on_gone` is emptied before. The request must have been read to its end. False: it has left
        already."""
        self.on_gone = callback
        if self.flow.read_paused:
            self.flow.resume_reading()  # a connection that is not read does not tell of its end
        return not self.disconnected

    def gone(self) -> None:
        """The server says: the client has left. Comes before its socket is closed."""
        self.detach()
        if not self.response_complete:
            self.disconnected = True
            if self._news is not None:
                self._news.set()
            callback, self.on_gone = self.on_gone, None
            if callback is not None:
                callback()

    def detach(self) -> None:
        """The connection is about to close, or belongs to another request or protocol."""
        if self.direct is not None:
            self.direct.detach()

    # --- The answer ---

    @property
    def is_stuck(self) -> bool:
        """The client does not read, or is gone."""
        return self.flow.write_paused or self.disconnected

    async def send(self, message: MutableMapping[str, Any]) -> None:  # type: ignore[override]
        """ASGI's way. Raises RuntimeError for what cannot be said now."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self.write(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"An answer has no part of the type {message['type']}.")

    async def start(self, status: int, headers: Fields, *, body_follows: bool = False) -> None:
        """Send the head, whose names are in lower case; with what follows it at once if ``body_follows``.
        Raises RuntimeError for one that cannot be sent."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_started:
            raise RuntimeError("The answer has begun already.")
        self.response_started = True
        self.waiting_for_100_continue = False
        self._head = self._format_head(status, headers)
        if not body_follows:
            self._flushing = self.loop.call_soon(self.flush_head)

    def send_whole(self, status: int, headers: Fields, data: bytes) -> None:
        """Send an answer that is all there: what :meth:`start` and :meth:`write` do where nothing has to be
        waited for, and the client is there. Raises RuntimeError as they do."""
        if self.response_started:
            raise RuntimeError("The answer has begun already.")
        self.response_started = True
        self.waiting_for_100_continue = False
        head = self._format_head(status, headers)
        exactly = not self.chunked_encoding and len(data) == self.expected_content_length
        if exactly and self.scope["method"] != "HEAD":
            self.expected_content_length = 0
            self.transport.write(head + data)
            self._complete()
        else:
            self._head = head
            self._write_now(data, more=False)

    def flush_head(self) -> None:
        """Write the head if it still waits."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        head, self._head = self._head, b""
        if head and not self.disconnected:
            self.transport.write(head)

    def _format_head(self, status: int, headers: Fields) -> bytes:
        """The head's bytes; decides how the body is framed."""
        fields = [*self.default_headers, *headers]
        parts = [*map(_join_field, fields)]
        # that all is printable, as nearly always, is found three times as fast as that nothing is harmful
        printable = b"".join(parts).decode("latin-1").isprintable()
        parts.append(b"")
        lines = _join_lines(parts)
        if not printable and lines.translate(None, _HARMLESS) != _LINE_END * len(fields):
            raise RuntimeError("A header field of the answer holds control characters.")
        named = dict(fields)
        head = STATUS_LINE[status] + lines
        length = named.get(b"content-length", b"")
        if b"connection" in named and _closes(fields):
            self.keep_alive = False
        elif not self.keep_alive:
            head += b"connection: close\r\n"
        if length:
            self.chunked_encoding = False
            self.expected_content_length = int(length)
        else:
            head += self._frame_unbounded(status)
        return head + b"\r\n"

    def _frame_unbounded(self, status: int) -> bytes:
        """What the head says besides of an answer without a length."""
        if status in (204, 304):
            self.chunked_encoding = False
        elif self.scope["http_version"] == "1.0":
            self.chunked_encoding = False
            self.expected_content_length = _ANY_LENGTH
        elif self.scope["method"] != "HEAD":
            self.chunked_encoding = True
            return b"transfer-encoding: chunked\r\n"
        return b""

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send the next bytes of the body; without ``more`` it ends. Returns when the socket's buffer had
        room for them. Raises RuntimeError for what contradicts the head."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected:
            self._write_now(data, more=more)

    def _write_now(self, data: bytes, *, more: bool) -> None:
        if not self.response_started or self.response_complete:
            raise RuntimeError("The answer has not begun yet, or is complete already.")
        out, expected_bytes = data, self.expected_content_length
        if not self.chunked_encoding and len(data) == expected_bytes and self.scope["method"] != "HEAD":
            self.expected_content_length = 0  # all of it at once, as most answers are
        elif data or expected_bytes or self.chunked_encoding:
            out = self._framed(data, more)
        if self._head:
            if self._flushing is not None:
                self._flushing.cancel()
                self._flushing = None
            out, self._head = self._head + out, b""
        if out:
            self.transport.write(out)
            if self.direct is not None:
                self.direct.note_other_write()
        if not more:
            self._complete()

    def _framed(self, data: bytes, more: bool) -> bytes:
        """What goes out for a piece of the body."""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            return b""
        if self.chunked_encoding:
            framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            return framed if more else framed + b"0\r\n\r\n"
        if len(data) > self.expected_content_length:
            raise RuntimeError("The answer is longer than its Content-Length.")
        self.expected_content_length -= len(data)
        return data

    def switch_protocols(self, head: bytes, receiver: SwitchedReceiver) -> None:
        """Send the head of the answer, with which HTTP ends on this connection."""
        if self.switch is None or self.response_started:
            raise RuntimeError("The connection cannot change its protocol now.")
        if self.disconnected:
            return
        self.response_started, self.keep_alive = True, False
        self.switch(receiver)
        self.transport.write(head)

    def end_switched(self) -> None:
        """The other protocol is over, and with it the connection. Idempotent."""
        if not self.response_complete and self.response_started:
            self.response_complete = True
            self.transport.close()
            if self._connection is not None:
                self._connection.on_response_complete()

    def _complete(self) -> None:
        if 0 < self.expected_content_length <= _ANY_LENGTH // 2:  # it does not end with its connection
            raise RuntimeError("The answer is shorter than its Content-Length.")
        self.response_complete = True
        if self._news is not None:
            self._news.set()
        if not self.keep_alive:
            self.transport.close()
        if self._connection is not None:
            self._connection.on_response_complete()

    async def run_asgi(self, app: Callable[..., Awaitable[None]]) -> None:
        """As uvicorn does it. An answer that stays unended ends its connection."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException:
            self.logger.exception("Exception in ASGI application")
        if not (self.response_complete or self.disconnected):
            if self.response_started:
                self.flush_head()
                if self._connection is not None:
                    self._connection.close_in_time()
            else:
                await self.send_500_response()
        self._connection = None  # which would keep this, and be kept by it
        if self.switch is not None:
            self.switch = None
        if self.direct is not None:
            self.direct.detach()
            self.direct = None  # each would keep the other
        if self.task is not None:
            self.tasks.discard(self.task)
            self.task = None


def _closes(fields: Fields) -> bool:
    """Whether one of them says that the connection ends with the answer."""
    return any(name == b"connection" and b"close" in value.lower() for name, value in fields)
