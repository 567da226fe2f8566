"""One request and its answer on one connection. Nothing here wakes a task for a piece of an answer's body."""

import asyncio
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from agent.engines.backend import BackendFailed, BackendTimeout

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

READ_BUFFER_BYTES = 64 * KIB
"""Of a body that nobody takes yet so much is held (and one read more) before the engine is no longer read."""

Take = Callable[[bytes], bool]


class EngineExchange(asyncio.Protocol):
    """Takes over ``transport`` and gives it back when the answer is over (:attr:`reusable`).

    ``head_only``: the answer has a head and no body, whatever its head says (HEAD).
    """

    def __init__(self, transport: asyncio.Transport, *, head_only: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self.transport = transport
        self.status = 0
        """0 until the head has come."""
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.error: Exception | None = None
        """Why there will be no more of the answer."""
        self.whole = False
        """All of the answer has come; :meth:`pour` may still have some of it to give."""
        self.began_s = self._now()
        self._head_only = head_only
        self._heard_s = 0.0
        self._mute_bytes = 0
        self._heads = 0
        """Answers of 1xx."""
        self._lines = 0
        """Header lines and trailers."""
        self._keep_alive = False
        self._until_close = False
        self.closed = False
        """The engine closed the connection before its answer was whole."""
        self._refused: BackendFailed | None = None
        """What the parser was glad with, and we are not."""
        self._take: Take | None = None
        self._held = False
        """Whoever takes the body wants no more of it for now."""
        self._reading = True
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._full = False
        self._drained: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self.on_body = _ignore if head_only else self._pieces.append  # the parser's; no frame of Python
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )  # what is in a header is looked at by :mod:`agent.engines.wire`
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        transport.set_protocol(self)

    # --- what the request's task asks for

    async def head(self) -> None:
        """Waits for the answer's head. Raises the error that fits when there is none."""
        while not self.status and self.error is None:
            await self._change()
        if not self.status and self.error is not None:
            raise self.error

    async def pour(self, take: Take) -> None:
        """See :meth:`agent.engines.backend.BackendResponse.pour`."""
        self._take = take
        self._flow()
        try:
            while (self._pieces or not self.whole) and self.error is None:
                await self._change()
        finally:
            self._take = None
        if self.error is not None:
            raise self.error

    def resume(self) -> None:
        """See :meth:`agent.engines.backend.BackendResponse.resume`."""
        if self._held:
            self._held = False
            self._heard_s = self._now()
            self._flow()
            self._wake()

    def expect_within(self, limit_s: float | None) -> None:
        """From now on the engine may be silent for so long; None: for ever."""
        self._stop_clock()
        self._heard_s = self._now()
        if limit_s is not None and not self.whole and self.error is None:
            self._timer = self._loop.call_later(limit_s, self._look_at_the_clock, limit_s)

    def fail(self, error: Exception) -> None:
        """End it with ``error``, and the connection with it, unless it has ended."""
        if self.error is None and not self.whole:
            self.error = error
            self._stop_clock()
            self.transport.abort()
            self._wake()

    def let_go(self, *, cut: bool) -> None:
        """The answer is of no more use to anybody. ``cut``: nor is the connection."""
        self._stop_clock()
        self._feed, self._parser, self.error = _ignore, None, None  # they hold us too
        if cut:
            self.transport.abort()
        elif not self._reading:
            self.transport.resume_reading()

    @property
    def reusable(self) -> bool:
        """Another request may go over the connection."""
        return self.whole and self._keep_alive and not self._pieces and not self.transport.is_closing()

    @property
    def heard_s(self) -> float:
        """When something of its answer came last, on the loop's clock; 0 before its head."""
        return self._heard_s if self.status else 0.0

    @property
    def answered(self) -> bool:
        """Something of an answer has come, whatever it is."""
        return self.status != 0 or self._mute_bytes > 0

    def write(self, data: bytes) -> bool:
        """Hands ``data`` to the socket. False: it has not taken it all yet, wait for :meth:`drained`."""
        self.transport.write(data)
        return not self._full

    async def drained(self) -> None:
        """Waits until the socket took what was written, or the connection is gone."""
        if self._full and self.error is None and not self.transport.is_closing():
            self._drained = self._loop.create_future()
            await self._drained

    # --- what the connection says

    def data_received(self, data: bytes) -> None:
        """The way of every token."""
        self._heard_s = self._now()
        try:
            if len(data) <= SLICE_BYTES:
                self._feed(data)
            else:
                self._feed_slices(memoryview(data))
        except (HttpParserError, HttpParserUpgrade) as error:
            self._flow()
            self._malformed(error)
            return
        if self._pieces and self.status:
            self._mute_bytes = 0
            take = self._take
            if take is None or self._held or not self._reading or not self._give(take):
                self._flow()
        else:
            self._nothing_came_of(len(data))
        if self.whole or self._take is None:
            self._wake()

    def eof_received(self) -> None:
        self._closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(exc)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    # --- what the parser says; what is wrong is only noted, as what it passed on before still counts

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        if len(name) + len(value) > HEADER_LINE_BYTES:
            self._refuse(f"a header of more than {HEADER_LINE_BYTES} bytes")
        if self._lines > HEADER_LINES:
            self._refuse(f"more than {HEADER_LINES} headers")
        if not self.status:  # else a trailer: nobody is told
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.status:
            return
        self._lines = 0
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self.raw_headers.clear()
            self._heads += 1
            if self._heads > INTERIM_HEADS:
                self._refuse(f"more than {INTERIM_HEADS} answers of 1xx before the answer")
            return
        self.status = status
        self._mute_bytes = 0
        self._until_close = _ends_with_connection(status, self.raw_headers)
        self.whole = self._head_only

    def on_message_begin(self) -> None:
        if self.whole:
            raise HttpParserError("something after the answer")  # nobody asked for it, nobody shall get it

    def on_message_complete(self) -> None:
        if self.status and not self.whole:
            assert self._parser is not None
            self.whole = True
            self._keep_alive = self._parser.should_keep_alive()
            self._stop_clock()

    def _refuse(self, why: str) -> None:
        """Stop the parser, which else goes on to the end of its input."""
        self._refused = _no_http(why)
        raise HttpParserError(why)

    # --- steps

    def _feed_slices(self, data: memoryview) -> None:
        fruitless_bytes = 0
        for start in range(0, len(data), SLICE_BYTES):
            before = len(self._pieces), self._lines, self._heads, self.status
            self._feed(data[start : start + SLICE_BYTES])  # type: ignore[arg-type]
            if before != (len(self._pieces), self._lines, self._heads, self.status):
                fruitless_bytes = 0
            else:
                fruitless_bytes += SLICE_BYTES
            if fruitless_bytes > 2 * HEADER_LINE_BYTES and not self.whole:
                self._refuse(f"a line of more than {HEADER_LINE_BYTES} bytes")

    def _flow(self) -> None:
        """Give what has come to whoever takes it; then read on, or do not."""
        pieces, take = self._pieces, self._take
        if pieces and take is not None and not self._held:
            self._give(take)
        reading = not self._held and (take is not None or sum(map(len, pieces)) < READ_BUFFER_BYTES)
        if reading is not self._reading and not self.whole and not self.transport.is_closing():
            self._reading = reading
            (self.transport.resume_reading if reading else self.transport.pause_reading)()

    def _give(self, take: Take) -> bool:
        """What has come goes to ``take``. True when all is as it should be."""
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        try:
            self._held = not take(piece)
        except Exception as error:
            self.whole = False
            self.fail(error)
        return not self._held and self.error is None

    def _nothing_came_of(self, size_bytes: int) -> None:
        self._mute_bytes += size_bytes
        if self._mute_bytes > MUTE_BYTES:
            self.fail(_no_http(f"more than {MUTE_BYTES} bytes of head"))

    def _malformed(self, error: Exception) -> None:
        if self.whole or (isinstance(error, HttpParserUpgrade) and self.status):
            self._keep_alive = False
            self._wake()
        else:
            self.fail(self._refused or _no_http(str(error)))

    def _closed(self, exc: Exception | None) -> None:
        self._keep_alive = False
        if self.whole or self.error is not None:
            return
        if self.status and self._until_close and exc is None:
            self.whole = True
            self._stop_clock()
            self._wake()
            return
        self.closed = True
        if not self.status:
            self.fail(BackendFailed("the engine closed the connection without an answer"))
        elif exc is None:
            self.fail(BackendFailed("the engine's answer ended before it was whole"))
        else:
            self.fail(BackendFailed("the engine closed the connection in the middle of its answer"))

    def _look_at_the_clock(self, limit_s: float) -> None:
        left_s = limit_s if self._held else self._heard_s + limit_s - self._now()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look_at_the_clock, limit_s)
        else:
            where = "in the middle of" if self.status else "before"
            self.fail(BackendTimeout(f"the engine fell silent {where} its answer"))

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _change(self) -> None:
        """Waits for the head, the end or a failure. One task waits at a time."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _ignore(data: bytes) -> None:
    pass


def _ends_with_connection(status: int, headers: list[tuple[bytes, bytes]]) -> bool:
    """The body is as long as the connection lives (RFC 9112 §6.3)."""
    if status in (204, 304):
        return False
    fields = {name.lower(): value for name, value in headers}
    encoding = fields.get(b"transfer-encoding")
    if encoding is not None:
        return not encoding.lower().rstrip().endswith(b"chunked")
    return b"content-length" not in fields


def _no_http(why: str) -> BackendFailed:
    return BackendFailed(f"the engine's answer is no HTTP: {why.partition(chr(10))[0].strip()[:100]}")
