"""One connection to an engine, and the answers that come over it one after another.

The parser is made with the connection and serves all of its answers. Nothing here waits: what comes goes on
in the turn of the event loop that read it.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from agent.engines.backend import BackendFailed, BackendTimeout
from agent.engines.http.client.ending import ends_with_connection, unread
from shared.speedups import ChunkReader, HeaderCollector, OutPath

KIB = 1024

HEADER_LINE_BYTES = 16 * KIB
HEADER_LINES = 128

MUTE_BYTES = 64 * KIB
"""Received in a row without a head or a piece of a body: more than any head or trailers that are allowed."""

INTERIM_HEADS = 16
"""Answers of 1xx before the answer itself. One is usual (103)."""

SLICE_BYTES = 8 * KIB
"""So much is parsed before it is looked at whether anything came of it: the parser copies what it has of one
header line with each further piece of that line."""


class AnswerReceiver(Protocol):
    """Who sent the request that a connection has. What the first two raise ends the answer."""

    def on_answer(self) -> OutPath | None:
        """The answer's head has come: ``status`` and ``raw_headers`` of the connection. See
        :meth:`agent.engines.backend.ResponseReceiver.on_response`."""

    def on_body(self, piece: bytes) -> bool:
        """See :meth:`agent.engines.backend.ResponseReceiver.on_body`."""

    def on_over(self, error: Exception | None) -> None:
        """The answer was whole, or there will be no more of it. The connection is still the receiver's."""


class EngineConnection(asyncio.Protocol):
    """At rest, or with one request and its answer, from :meth:`begin` to :meth:`end`.

    ``on_closed`` is told when the connection closes at rest.
    """

    __slots__ = (  # more attributes than a dictionary may share its keys for
        *("__weakref__", "_collector", "_drained", "_feed", "_head_only", "_heads", "_held", "_keep_alive"),
        *("_limit_s", "_lines", "_loop", "_mute_bytes", "_on_closed", "_parser", "_path", "_pieces"),
        *("_reading", "_receiver", "_refused", "_timer", "_timer_s", "_told", "began_s", "chunks", "closed"),
        *("data_received", "full", "now", "on_body", "on_header", "raw_headers", "rests_since_s", "status"),
        *("transport", "whole"),
    )

    transport: asyncio.Transport
    data_received: Callable[[bytes], object]  # type: ignore[assignment]

    def __init__(self, on_closed: Callable[["EngineConnection"], None]) -> None:
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        """The loop's clock."""
        self.rests_since_s = 0.0
        self._pieces: list[bytes] = []
        """Pieces of the answer's body that were not passed on yet."""
        self.on_body = self._pieces.append  # the parser's; no frame of Python
        self._collector = HeaderCollector(self._take_line, HEADER_LINES, HEADER_LINE_BYTES)
        self.raw_headers: list[tuple[bytes, bytes]] = self._collector.fields
        """Of the answer, names in lower case."""
        self.on_header = self._collector  # so is this
        self.chunks = ChunkReader(self._receive, self.now, self._pieces)
        self.data_received = self.chunks
        """The way of every token, past :meth:`_receive` for those that the answer's path takes."""
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )  # what is in a header is looked at by :mod:`agent.engines.wire`
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self.full = False
        """The socket has not taken all that was written: wait for :meth:`drained`."""
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        """When the timer goes off, on the loop's clock."""
        self._reading = True
        self.closed = False
        """The engine closed the connection before its answer was whole."""
        self._refused: BackendFailed | None = None
        """Why the answer is rejected although the parser accepts it; None: it is not."""
        self.begin(None)

    # --- what the request asks for

    def begin(self, receiver: AnswerReceiver | None, *, head_only: bool = False) -> None:
        """The next answer goes to ``receiver``; nothing has come of it. ``head_only``: it has a head and no
        body, whatever its head says (HEAD)."""
        self._receiver = receiver
        self.status = 0
        """0 until the head has come."""
        collector = self._collector
        self.raw_headers.clear()
        collector.open = True
        self.began_s = self.chunks.heard_s = self.now()
        """``heard_s``: when something of the answer came last, or when it was last waited for anew."""
        self.whole = False
        """All of the answer has come; some of it may still have to be given."""
        self._head_only = head_only
        self._told = False
        """The receiver was told of the answer's head."""
        self._path: OutPath | None = None
        """Of the answer's body, where it may have one of its own."""
        self._held = False
        """The receiver wants no more of the body for now."""
        self._limit_s: float | None = None
        """The engine may be silent for so long; None: for ever."""
        self._mute_bytes = 0
        self._heads = 0
        """Answers of 1xx."""
        self._lines = 0
        """Trailers."""
        self._keep_alive = False

    async def drained(self) -> None:
        """Waits until the socket took what was written, or the connection is gone."""
        if self.full and not self.transport.is_closing():
            self._drained = self._loop.create_future()
            await self._drained

    def expect_within(self, limit_s: float | None) -> None:
        """From now on the engine may be silent for so long; None: for ever."""
        self._limit_s = limit_s
        self.chunks.heard_s = now = self.now()
        if limit_s is not None and now + limit_s < self._timer_s:
            self._set_timer(limit_s)

    def resume(self) -> None:
        """See :meth:`agent.engines.backend.BackendRequest.resume`."""
        if self._held:
            self._held = False
            self.chunks.heard_s = self.now()
            self._tell(0)

    def fail(self, error: Exception) -> None:
        """End the answer with ``error``, and the connection with it."""
        receiver = self._receiver
        if receiver is not None:
            self._receiver = self.chunks.path = None
            self.whole = self._keep_alive = False
            self.transport.abort()
            receiver.on_over(error)

    def end(self) -> None:
        """The receiver hears no more of the answer."""
        self._receiver = self.chunks.path = None
        if self._pieces:
            self._pieces.clear()
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def is_reusable(self) -> bool:
        """Another request may go over the connection."""
        return self.whole and self._keep_alive and not self.full and not self.transport.is_closing()

    @property
    def answered(self) -> bool:
        """Something of an answer has come, whatever it is."""
        return self.status != 0 or self._mute_bytes > 0

    # --- what the connection says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def _receive(self, data: bytes) -> None:
        """Takes what came, unless the answer's path took it."""
        if self._receiver is None:  # nobody asked for it
            self.transport.abort()
            return
        chunks = self.chunks
        chunks.heard_s = self.now()
        size_bytes = len(data)
        try:
            if size_bytes <= SLICE_BYTES:
                self._feed(data)
            else:
                self._feed_slices(memoryview(data))
        except (HttpParserError, HttpParserUpgrade) as error:
            self._malformed(error, size_bytes)
            return
        if chunks.pieces:
            chunks.pieces = self._mute_bytes = 0
        self._tell(size_bytes)
        if self._path is not None:
            self._follow(data)

    def eof_received(self) -> None:
        self._closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self._receiver is not None and not self.whole:
            answer = unread(self.transport)
            if answer:
                self._receive(answer)
        self._closed(exc)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        self._parser, self._timer, self._feed = None, None, _ignore  # the parser holds us
        self.chunks.close()
        self._collector.close()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    # --- what the parser says; what is wrong is only noted, as what it passed on before still counts

    def _take_line(self, name: bytes, value: bytes) -> None:
        """A header that is too long or one too many, or a trailer, of which nobody is told."""
        self._lines += 1
        if len(name) + len(value) > HEADER_LINE_BYTES:
            self._refuse(f"a header of more than {HEADER_LINE_BYTES} bytes")
        if self._lines > HEADER_LINES or not self.status:
            self._refuse(f"more than {HEADER_LINES} headers")

    def on_headers_complete(self) -> None:
        if self.status:
            return
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self.raw_headers.clear()
            self._heads += 1
            if self._heads > INTERIM_HEADS:
                self._refuse(f"more than {INTERIM_HEADS} answers of 1xx before the answer")
            return
        self.status = status
        self._collector.open = False
        self.whole = self._head_only

    def on_message_begin(self) -> None:
        if self.whole:
            raise HttpParserError("something after the answer")  # nobody asked for it, nobody shall get it

    def on_message_complete(self) -> None:
        if self.status and not self.whole:
            assert self._parser is not None
            self.whole = True
            # Some engines send a body with these all the same, which the next request would get.
            self._keep_alive = self.status not in (204, 304) and self._parser.should_keep_alive()

    def _refuse(self, why: str) -> None:
        """Stop the parser, which else goes on to the end of its input."""
        self._refused = _no_http(why)
        raise HttpParserError(why)

    # --- steps

    def _feed_slices(self, data: memoryview) -> None:
        fruitless_bytes = 0
        for start in range(0, len(data), SLICE_BYTES):
            before = self._progress()
            self._feed(data[start : start + SLICE_BYTES])  # type: ignore[arg-type]
            if before != self._progress():
                fruitless_bytes = 0
            else:
                fruitless_bytes += SLICE_BYTES
            if fruitless_bytes > 2 * HEADER_LINE_BYTES and not self.whole:
                self._refuse(f"a line of more than {HEADER_LINE_BYTES} bytes")

    def _progress(self) -> tuple[int, ...]:
        """What came of the answer so far."""
        return len(self._pieces), len(self.raw_headers), self._lines, self._heads, self.status

    def _tell(self, size_bytes: int, broken: Exception | None = None) -> None:
        """Pass on what has come of the answer, in order; ``broken``: there will be no more of it."""
        receiver, pieces = self._receiver, self._pieces
        if receiver is None:
            return
        try:
            if self.status and not self._told:
                self._told = True
                self._mute_bytes = 0
                if self._head_only:
                    pieces.clear()
                self._path = receiver.on_answer()
            if not pieces:
                self._mute_bytes += size_bytes
            elif not self._held and self._receiver is receiver:
                self._mute_bytes = 0
                piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                self._held = not receiver.on_body(piece)
        except Exception as error:
            broken = error
        if broken is not None or self.whole or self._held is self._reading or self._mute_bytes > MUTE_BYTES:
            self._settle(receiver, broken)

    def _follow(self, data: bytes) -> None:
        """Let the body, whose beginning is in ``data``, have its path if it comes in chunks and this is
        certain."""
        path, self._path = self._path, None
        fields = [field.lower() for name, field in self.raw_headers if name == b"transfer-encoding"]
        head_end = data.find(b"\n\r\n") + 3
        certain = data.startswith(b"HTTP/1.1 200 ") and not self._heads and b"\n\n" not in data[:head_end]
        if path is not None and certain and fields == [b"chunked"] and not self._head_only and not self.whole:
            self.chunks.follow(path, data, head_end)

    def _settle(self, receiver: AnswerReceiver, broken: Exception | None) -> None:
        """End the answer if it is over; else read on, or do not."""
        if self._receiver is not receiver:
            return
        if broken is None and self._mute_bytes > MUTE_BYTES:
            broken = _no_http(f"more than {MUTE_BYTES} bytes of head")
        if broken is not None:
            self.fail(broken)
        elif self.whole and not self._pieces:
            self._receiver = None
            receiver.on_over(None)
        elif self._held is self._reading and not self.transport.is_closing():
            self._reading = not self._held
            if self._reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _malformed(self, error: Exception, size_bytes: int) -> None:
        """What came before still counts."""
        if self.whole or (isinstance(error, HttpParserUpgrade) and self.status):
            self._keep_alive = False
            self._tell(size_bytes)
        else:
            self._tell(size_bytes, self._refused or _no_http(str(error)))

    def _closed(self, exc: Exception | None) -> None:
        self._keep_alive = False
        if self._receiver is None:
            self._on_closed(self)
        elif self.whole:
            pass  # some of it waits to be given
        elif self.status and exc is None and ends_with_connection(self.status, self.raw_headers):
            self.whole = True
            self._tell(0)
        else:
            self.closed = True
            self.fail(BackendFailed(f"the engine{self._how_it_ended(exc)}"))

    def _how_it_ended(self, exc: Exception | None) -> str:
        if not self.status:
            return " closed the connection without an answer"
        if exc is None:
            return "'s answer ended before it was whole"
        return " closed the connection in the middle of its answer"

    def _set_timer(self, delay_s: float) -> None:
        """The timer goes on from one request to the next: it is set anew only when it would be late."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self.now() + delay_s
        self._timer = self._loop.call_later(delay_s, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer, self._timer_s = None, inf
        limit_s = self._limit_s
        if self._receiver is None or limit_s is None:
            return
        left_s = limit_s if self._held else self.chunks.heard_s + limit_s - self.now()
        if left_s > 0:
            self._set_timer(left_s)
        else:
            where = "in the middle of" if self.status else "before"
            self.fail(BackendTimeout(f"the engine fell silent {where} its answer"))


def _ignore(data: bytes) -> None:
    pass


def _no_http(why: str) -> BackendFailed:
    return BackendFailed(f"the engine's answer is no HTTP: {why.partition(chr(10))[0].strip()[:100]}")
