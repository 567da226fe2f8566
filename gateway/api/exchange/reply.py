"""The one owner of the way to a request's client: what was said to the client, and how it may go on."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

from gateway.api.errors import HeaderList, error_event, error_line, http_error, id_headers
from gateway.api.exchange.progress_writer import ProgressForm, ProgressWriter, Writer
from gateway.api.server.answer_cycle import AnswerCycle
from gateway.api.server.response_writers import UNDRAINED_BYTES, DirectWriter, open_direct
from gateway.api.server.websocket import ClientWebSocket
from gateway.dispatch.response_stream import Sink
from gateway.domain.errors import RequestError
from gateway.pipeline.websocket_head import Subprotocols
from shared.protocol.messages import UPGRADED
from shared.protocol.routes import Dialect

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NOT_BUFFERED = b"x-accel-buffering", b"no"
EVENT_STREAM_HEADERS: HeaderList = [(b"cache-control", b"no-cache"), NOT_BUFFERED]
"""No cache and no proxy in between may hold events back."""

EVENTS = b"text/event-stream"
LINES = b"application/x-ndjson"
_JSON = b"content-type", b"application/json"

COMMENT = b": waiting\n\n"

_NO_SUBPROTOCOLS = Subprotocols()

_EVENT_ENDS = b"\n\n", b"\r\n\r\n", b"\r\r"

EARLY_S = 1.5
"""After so long a client hears what it waits for, if there is something to say of it. Quick errors still get
a status of their own."""


class AsgiWriter:
    """Another server's way to the client, used as a cycle of ours is."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, status: int, headers: HeaderList, *, body_follows: bool = False) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class Reply:
    """An answer on its way. Every write returns when the server's socket buffer has room again.

    While an event stream waits for its first byte, :meth:`keep_alive` has comments sent, the first of which
    commits to status 200; from then on errors go out as the stream's last event.
    """

    __slots__ = (
        "_closing",
        "_cycle",
        "_dialect",
        "_direct",
        "_id",
        "_last",
        "_sent_bytes",
        "_writer",
        "comments",
        "direct",
        "ended",
        "event_stream",
        "first_byte_s",
        "latest",
        "line_stream",
        "more",
        "progress",
        "socket",
        "started",
        "status",
        "subprotocols",
        "tells_waiting",
    )

    def __init__(
        self,
        send: Send,
        request_id: str,
        dialect: Dialect,
        closing: bool = False,
        cycle: AnswerCycle | None = None,
    ) -> None:
        """``closing`` tells the client not to send further requests on this connection; ``cycle`` takes the
        place of ``send``, if the server has one."""
        self._cycle = cycle
        self._writer: Writer = AsgiWriter(send) if cycle is None else cycle
        self._id = request_id
        self._dialect = dialect
        self._closing = closing
        self.socket: ClientWebSocket | None = None
        """The client's WebSocket, where it asked for one."""
        self.subprotocols = _NO_SUBPROTOCOLS
        """Those that it offered."""
        self.tells_waiting = False
        """The client hears something while it waits; :meth:`end_waiting` ends that."""
        self.comments: _Comments | None = None
        """While they are sent; :meth:`settle` ends that."""
        self.progress: ProgressWriter | None = None
        """Where the client asked for it."""
        self.direct: Sink | None = None
        """A short way for pieces of the body, once its first bytes are out
        (:mod:`gateway.api.server.response_writers`)."""
        self._direct: DirectWriter | None = None
        """The same."""
        self._last = b""
        self._sent_bytes = 0
        self.more: Sequence[tuple[bytes, bytes]] = ()
        """Header fields that every answer gets besides."""
        self.latest: Callable[[], HeaderList] | None = None
        """Says further ones, true at the moment at which the head goes out."""
        self.status = 0
        self.first_byte_s: float | None = None
        """When the first byte of the body went out; seconds of ``time.monotonic``."""
        self.started = False
        self.ended = False
        self.event_stream = False
        """What has begun is a stream of events."""
        self.line_stream = False
        """What has begun is a stream of JSON lines."""

    def bytes_out(self) -> int:
        """How much of the body went out."""
        socket, direct = self.socket, self._direct
        if socket is not None and self.status == UPGRADED:
            return socket.bytes_out
        return self._sent_bytes if direct is None else self._sent_bytes + direct.sent_bytes

    async def start(
        self, status: int, headers: HeaderList, *, event_stream: bool = False, body_follows: bool = False
    ) -> None:
        """Send the head, after :meth:`settle`. ``headers`` are complete but for the request's id.
        ``body_follows``: the first of the body, or its end, is written at once."""
        assert not self.started
        self.started, self.status, self.event_stream = True, status, event_stream
        await self._writer.start(status, self._completed(headers), body_follows=body_follows)

    def send_whole(self, status: int, headers: HeaderList, data: bytes) -> bool:
        """Send an answer that is all there and no stream of events, after :meth:`settle`. False: something
        has to be waited for, and nothing was done; :meth:`start` and :meth:`end` wait."""
        cycle = self._writer
        if type(cycle) is not AnswerCycle or cycle.flow.write_paused or cycle.disconnected:
            return False
        assert not self.started
        self.started, self.status = True, status
        completed = self._completed(headers)
        if data:
            self.first_byte_s = monotonic()
        self.ended = True
        self._sent_bytes += len(data)
        cycle.send_whole(status, completed, data)
        return True

    def _completed(self, headers: HeaderList) -> HeaderList:
        """The header fields of an answer, with those that this says itself."""
        if not self.event_stream and _JSON not in headers:  # which nearly every other answer has
            self.line_stream = dict(headers).get(b"content-type", b"").startswith(LINES)
        headers = [*headers, *id_headers(self._dialect, self._id), *self.more]
        if self.latest is not None:
            headers += self.latest()
        if self.event_stream:
            headers += EVENT_STREAM_HEADERS
        elif self.line_stream and all(name != NOT_BUFFERED[0] for name, _ in headers):
            headers.append(NOT_BUFFERED)
        if self._closing:
            headers.append((b"connection", b"close"))
        return headers

    async def start_events(self, headers: HeaderList | None = None) -> None:
        """Send the head of an event stream, with further ``headers``."""
        kind = b"content-type", EVENTS + b"; charset=utf-8"
        await self.start(200, [kind, *(headers or [])], event_stream=True)

    async def send_events(self, pieces: AsyncGenerator[bytes]) -> None:
        """Send ``pieces`` as an event stream until they end, and close them. The head waits for the first
        one: what that raises may still be answered with a status of its own."""
        async with aclosing(pieces):
            first = await anext(pieces, b"")
            await self.start_events()
            if first:
                await self.write(first)
            async for piece in pieces:
                await self.write(piece)
        await self.end()

    def upgrade(self, headers: HeaderList, subprotocol: str | None) -> ClientWebSocket:
        """Give the client the WebSocket it asked for. The answer ends when that is closed."""
        socket = self.socket
        assert socket is not None
        assert not self.started
        self.started, self.status = True, UPGRADED
        headers = [*headers, *id_headers(self._dialect, self._id)]
        if self.latest is not None:
            headers += self.latest()
        socket.on_closed = self._socket_closed
        socket.accept(headers, self.subprotocols.chosen(subprotocol))
        return socket

    def _socket_closed(self) -> None:
        self.ended = True

    async def write(self, data: bytes) -> None:
        """Send the next bytes of the body."""
        if self.direct is not None:
            self._end_direct()
        elif self.first_byte_s is None:
            self.first_byte_s = monotonic()
            if self._cycle is not None:
                self.direct = self._direct = open_direct(self._cycle)
        self._last = data
        self._sent_bytes += len(data)
        await self._writer.write(data, more=True)
        if len(data) > UNDRAINED_BYTES:
            await self._writer.write(b"", more=True)

    async def end(self, data: bytes = b"") -> None:
        """Send the last bytes of the body."""
        if self._direct is not None:
            self._direct.flush()
        elif data and self.first_byte_s is None:
            self.first_byte_s = monotonic()
        self.ended = True
        self._sent_bytes += len(data)
        await self._writer.write(data, more=False)

    def _end_direct(self) -> None:
        """What goes the ordinary way follows what took the short one."""
        assert self._direct is not None
        self._direct.flush()
        self._direct.last = b""

    async def whole(
        self, status: int, content_type: bytes, body: bytes, headers: HeaderList | None = None
    ) -> None:
        """Send an answer that is there in one piece."""
        length = str(len(body)).encode("ascii")
        await self.start(
            status,
            [(b"content-type", content_type), (b"content-length", length), *(headers or [])],
            body_follows=True,
        )
        await self.end(body)

    async def fail(self, error: RequestError) -> None:
        """Say what went wrong in the way that is still open.

        Before the head: a status and a body. In a stream of events: a last event. In one of JSON lines: a
        last line, as Ollama ends those that fail. In the middle of any other body nothing is sent and the
        answer stays unended, which makes the server close the connection, so that the client sees it
        broken."""
        await self.settle()
        if self._direct is not None:
            self._direct.flush()
        if self.ended:
            return
        if not self.started:
            headers, body = http_error(error, self._dialect, self._id)
            await self.start(error.status, headers, body_follows=True)
            await self.end(body)
            return
        last = self._written_last
        if self.event_stream:
            gap = b"" if last.endswith(_EVENT_ENDS) else b"\n\n"
            await self.end(gap + error_event(error, self._dialect, self._id))
        elif self.line_stream:
            await self.end((b"" if last.endswith(b"\n") else b"\n") + error_line(error))

    @property
    def _written_last(self) -> bytes:
        """How what went out of the body ends, once the direct way is flushed."""
        return self._last if self._direct is None else self._direct.last or self._last

    def keep_alive(
        self, interval_s: float, note: Callable[[], str | None] | None = None, early_s: float = EARLY_S
    ) -> None:
        """From now until the head is sent, write a comment every ``interval_s`` seconds. ``note`` says in one
        line what is waited for, or None for nothing special; the first of these comes after ``early_s``."""
        self.tells_waiting = True
        self.comments = _Comments(self, interval_s, note, min(early_s, interval_s))

    async def comment(self, note: str | None = None) -> None:
        """Write one comment, after the head of an event stream if nothing has been sent yet."""
        await self.interject(COMMENT if note is None else b": %b\n\n" % note.encode())

    def tell_progress(
        self, form: ProgressForm, *, may_begin: bool, on_delivered: Callable[[float], None]
    ) -> ProgressWriter:
        """From now on the client is told what the writer is told; see there."""
        self.tells_waiting = True
        self._writer = self.progress = ProgressWriter(
            self, self._writer, form, may_begin=may_begin, on_delivered=on_delivered
        )
        return self.progress

    def between_events(self) -> bool:
        """See :class:`~gateway.api.exchange.progress_writer.InterruptedReply`."""
        if self._cycle is not None and self._cycle.is_stuck:
            return False
        if self._direct is not None:
            self._direct.flush()
        last = self._written_last
        return not last or last.endswith(_EVENT_ENDS)

    async def interject(self, data: bytes) -> None:
        """Write ``data``, which is whole events or comments, behind what went out; after the head of an event
        stream if nothing has been sent yet."""
        if not self.started:
            await self.start_events()
        if data:
            self._last = data
            if self.direct is not None:
                self._end_direct()
            await self._writer.write(data, more=True)

    async def settle(self) -> None:
        """No comment comes after this; one that is being written is let finish."""
        comments, self.comments = self.comments, None
        if comments is not None:
            await comments.stop()

    async def end_waiting(self) -> None:
        """Nothing that tells of waiting or of progress comes after this. Idempotent."""
        if self.comments is not None:
            await self.settle()
        if self.progress is not None:
            await self.progress.close()


class _Comments:
    """Owns the timer and the task that write a reply's comments. No task exists between two of them."""

    def __init__(
        self, reply: Reply, interval_s: float, note: Callable[[], str | None] | None, early_s: float
    ) -> None:
        self._reply = reply
        self._interval_s = interval_s
        self._note = note
        self._early_s = early_s if note is not None else interval_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._early_s, self._due, self._interval_s - self._early_s)

    def _due(self, wait_s: float = 0.0) -> None:
        """Write a comment. Without anything to say of the wait it comes ``wait_s`` later."""
        note = None if self._note is None else self._note()
        if note is None and wait_s:
            self._timer = self._loop.call_later(wait_s, self._due)
        else:
            self._task = self._loop.create_task(self._write(note))

    async def _write(self, note: str | None) -> None:
        await self._reply.comment(note)
        self._timer = self._loop.call_later(self._interval_s, self._due)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task
        self._timer.cancel()
