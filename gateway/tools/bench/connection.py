"""One connection of a client: a request at a time, its answer timed as its bytes come."""

import asyncio
import time
from typing import cast

import httptools

from gateway.tools.bench.answer import BenchAnswer, status_failure
from gateway.tools.bench.plan import BenchTarget, RequestFailed
from gateway.tools.bench.tally import BenchTally

_OK = 200
_KEPT_BYTES = 16_384
"""How much of an error's body is kept."""


class BenchRequest:
    """A request on its way, and what came of it so far. Times are of the monotonic clock."""

    __slots__ = ("answer", "begun_s", "counted", "error", "events", "last_s", "over", "status", "tally")

    def __init__(self, tally: BenchTally, begun_s: float, *, streamed: bool, counted: bool) -> None:
        """``begun_s`` is when it was meant to start; its latency is told only if it is ``counted``."""
        self.tally = tally
        self.begun_s = begun_s
        self.counted = counted
        self.answer = BenchAnswer(streamed=streamed)
        self.status = 0
        self.events = 0
        self.last_s = 0.0
        self.error = bytearray()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, piece: bytes, now_s: float) -> None:
        """Some of the body. The one thing that is done for each token."""
        if self.status != _OK:
            self.error += piece[: _KEPT_BYTES - len(self.error)]
            return
        count = self.answer.feed(piece)
        if not count:
            return
        tally = self.tally
        if self.counted and not self.events:
            tally.first.add(now_s - self.begun_s)
        if tally.counting:
            tally.window_events += count
            if self.events:
                tally.gaps.add(now_s - self.last_s)
            if count > 1:
                tally.gaps.add(0.0, count - 1)
        self.events += count
        self.last_s = now_s

    def end(self, failure: Exception | None = None) -> None:
        if self.over.done():
            return
        if failure is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(failure)

    def result(self) -> tuple[int, int] | None:
        """Tokens as the server counted them. Raises RequestFailed if the answer is not what was asked for."""
        if self.status != _OK:
            raise status_failure(self.status, bytes(self.error))
        return self.answer.usage()


class BenchConnection(asyncio.Protocol):
    """Keeps its socket for the next request where the server lets it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: BenchRequest | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._now_s = 0.0
        self._keeps = True
        self._delimited = False
        """The answer says where its body ends; otherwise it ends with the connection."""
        self.used = False
        """It has had an answer before, so the server may have closed it meanwhile."""

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._keeps

    def send(self, request: bytes, exchange: BenchRequest) -> None:
        """Send a request; ``exchange.over`` says when its answer is there."""
        assert self._transport is not None, "sent before it was connected"
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.abort()
            return
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except RequestFailed as failure:
            self._fail(failure)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, RequestFailed):
                cause = RequestFailed("malformed", f"what came is not HTTP: {error}")
            self._fail(cause)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeps = False
        exchange = self._exchange
        if exchange is None:
            return
        if exc is None and exchange.status and not self._delimited:
            self._finish()
            return
        answered = "in the middle of an answer" if exchange.status else "before an answer"
        self._fail(RequestFailed("connection lost", f"closed {answered}" + (f": {exc}" if exc else "")))

    def _fail(self, failure: Exception | None) -> None:
        self.abort()
        self._finish(failure)

    def _finish(self, failure: Exception | None = None) -> None:
        exchange, self._exchange, self._parser = self._exchange, None, None
        if exchange is not None:
            exchange.end(failure)

    # what httptools calls

    def on_message_begin(self) -> None:
        self._delimited = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._exchange is not None
        self._exchange.status = self._parser.get_status_code()
        self._keeps = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.received(body, self._now_s)

    def on_message_complete(self) -> None:
        if self._exchange is not None and 100 <= self._exchange.status < 200:
            return
        self.used = True
        self._finish()


async def connect(target: BenchTarget) -> BenchConnection:
    """A new connection. Raises RequestFailed."""
    loop = asyncio.get_running_loop()
    name = target.host if target.tls is not None else None
    try:
        _, connection = await loop.create_connection(
            BenchConnection, target.host, target.port, ssl=target.tls, server_hostname=name
        )
    except (OSError, UnicodeError) as error:  # the latter of a name that no resolver can be asked for
        raise RequestFailed("cannot connect", f"{target.authority}: {error}") from error
    return connection


def request_of(target: BenchTarget, method: str, path: str, body: bytes) -> bytes:
    """A request as bytes; ``path`` is below the base URL."""
    lines = [
        f"{method} {target.prefix}{path} HTTP/1.1",
        f"Host: {target.authority}",
        "Accept: */*",
        "User-Agent: trunkline-bench",
        *([f"Authorization: Bearer {target.key}"] if target.key else []),
        *(["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
