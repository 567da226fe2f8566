"""HTTP to one engine: requests that stream both ways, and small questions. aiohttp's errors end here."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from agent.backends import wire
from agent.backends.base import EngineError, EngineFailed, EngineRefused, EngineTimeout, EngineUnreachable
from agent.backends.settings import EngineSettings, base_url
from agent.backends.upload import Upload
from shared.messages import Headers, RequestHead

READ_BUFFER_BYTES = 16 * 1024
"""A response's bytes held per stream before its connection is no longer read: aiohttp stops at twice this."""

HEADER_LINE_BYTES = 16 * 1024
HEADER_LINES = 128

KEEP_IDLE_S = 2.0
"""How long an idle connection is kept. uvicorn and llama.cpp close theirs after 5 s; a request sent in that
moment would fail, so ours are dropped well before."""

PROBE_BYTES = 4 * 1024 * 1024
"""Longest answer to a question that is read: the metrics of a big engine are below 1 MiB."""

_NO_AUTO_HEADERS = ("user-agent", "accept", "accept-encoding", "content-type")


class EngineHTTPResponse:
    """Implements :class:`agent.backends.base.EngineResponse`."""

    def __init__(self, response: aiohttp.ClientResponse, headers: Headers) -> None:
        self._response = response
        self.status = response.status
        self.headers = headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._response.content.readany():
                yield piece
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise translate(error, answering=True) from error


class Answer:
    """A small answer, read whole."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """The body as JSON, or None when it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class EngineClient:
    """A pool of connections to the one engine of ``settings``. Made and closed inside an event loop.

    The pool has no limit of its own: how many requests there are at once is bounded by the engine's slots.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._base = base_url(settings.url)
        self._origin = URL(self._base).origin()
        self._session = aiohttp.ClientSession(
            connector=_connector(settings),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            skip_auto_headers=_NO_AUTO_HEADERS,
            max_line_size=HEADER_LINE_BYTES,
            max_field_size=HEADER_LINE_BYTES,
            max_headers=HEADER_LINES,
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, path: str) -> Answer:
        """GET ``path`` and read the answer whole. Raises the :class:`EngineError` that fits."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeouts.probe_s)
        key = self._settings.api_key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        try:
            async with self._session.get(
                self._url(path), headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                body = await _read_at_most(response.content, PROBE_BYTES)
                return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, body)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise translate(error, answering=False) from error

    @asynccontextmanager
    async def request(
        self, head: RequestHead, body: AsyncIterator[bytes]
    ) -> AsyncIterator[EngineHTTPResponse]:
        """See :meth:`agent.backends.base.Backend.request`."""
        method, url = wire.check_method(head.method), self._url(wire.check_path(head.path))
        headers = CIMultiDict(wire.request_headers(head.headers, self._settings.api_key))
        upload = await self._upload(method, wire.declared_length(head.headers), body)
        try:
            response = await self._send(method, url, headers, upload)
        except BaseException:
            if upload is not None:
                upload.abort()
            raise
        try:
            yield EngineHTTPResponse(response, wire.response_headers(response.raw_headers))
        finally:
            _let_go(response, upload)

    def _url(self, path: str) -> URL:
        url = URL(self._base + path, encoded=True)
        if url.origin() != self._origin:
            raise EngineRefused("the path leads away from the engine")  # a second lock on the same door
        return url

    async def _upload(
        self, method: str, length_bytes: int | None, body: AsyncIterator[bytes]
    ) -> Upload | None:
        """What to send as body; None when there is none. Without a declared length only the end can tell."""
        first = b""
        if length_bytes is None and method in wire.BODILESS:
            first = await anext(body, b"")
            if not first:
                return None
        elif length_bytes == 0:
            return None
        return Upload(body, length_bytes=length_bytes, stall_s=self._settings.timeouts.idle_s, first=first)

    async def _send(
        self, method: str, url: URL, headers: CIMultiDict[str], upload: Upload | None
    ) -> aiohttp.ClientResponse:
        """Raises the :class:`EngineError` that fits; returns with the response's head read."""
        timeouts = self._settings.timeouts
        try:
            response = await self._session.request(
                method,
                url,
                headers=headers,
                data=upload,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=timeouts.connect_s, sock_read=timeouts.first_byte_s
                ),
            )
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if upload is not None and upload.error is not None:
                raise upload.error from error
            raise translate(error, answering=False) from error
        if response.status < 200:
            response.close()
            raise EngineFailed(f"the engine answered with status {response.status}")
        _expect_within(response, timeouts.idle_s)
        _end_with_connection(response)
        return response


def _connector(settings: EngineSettings) -> aiohttp.BaseConnector:
    if settings.unix_socket is not None:
        return aiohttp.UnixConnector(str(settings.unix_socket), limit=0, keepalive_timeout=KEEP_IDLE_S)
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S)


def _expect_within(response: aiohttp.ClientResponse, idle_s: float | None) -> None:
    """From now on the limit between two pieces of the body counts, no longer that before the head."""
    protocol = response.connection.protocol if response.connection is not None else None
    if protocol is not None and not response.content.is_eof():
        protocol.read_timeout = idle_s
        protocol.start_timeout()


def _end_with_connection(response: aiohttp.ClientResponse) -> None:
    """An answer cannot outlive its connection.

    aiohttp tells nobody who waits for a body that its framing turned out malformed: it closes the connection,
    stops its timeouts, and the reader would wait for ever.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    content = response.content
    if closed is None or content.is_eof():
        return

    def broken(_: asyncio.Future[None]) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection closed before the end"))

    def whole() -> None:
        closed.remove_done_callback(broken)

    closed.remove_done_callback(_seen)  # of the connection's answer before this one
    closed.add_done_callback(_seen)
    closed.add_done_callback(broken)
    content.on_eof(whole)


def _seen(closed: asyncio.Future[None]) -> None:
    """Takes note of how a connection ended, which asyncio would otherwise complain that nobody did."""
    if not closed.cancelled():
        closed.exception()


def _let_go(response: aiohttp.ClientResponse, upload: Upload | None) -> None:
    """Give the connection back if the answer was read to its end; else cut it, so that the engine stops."""
    if response.connection is None:
        response.release()
        return
    transport = response.connection.transport
    response.close()
    if transport is not None:
        transport.abort()
    if upload is not None:
        upload.abort()


async def _read_at_most(content: aiohttp.StreamReader, most_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size_bytes = 0
    while piece := await content.readany():
        size_bytes += len(piece)
        if size_bytes > most_bytes:
            raise EngineFailed(f"the engine's answer is longer than {most_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def translate(error: Exception, *, answering: bool) -> EngineError:
    """The error of ours for one of aiohttp's. ``answering``: the response's head was read before."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return EngineUnreachable("the engine does not accept connections (timed out)")
        case aiohttp.ClientConnectorError() if error.errno in (errno.EMFILE, errno.ENFILE):
            return EngineUnreachable("the agent has no file descriptors left for connections")
        case aiohttp.ClientConnectorError():
            return EngineUnreachable(f"the engine cannot be connected to: {error.strerror or error}")
        case asyncio.TimeoutError():
            where = "in the middle of" if answering else "before"
            return EngineTimeout(f"the engine fell silent {where} its answer")
        case aiohttp.ClientResponseError():
            return EngineFailed(f"the engine's answer is no HTTP: {_first_line(error.message)}")
        case aiohttp.ClientPayloadError():
            return EngineFailed("the engine's answer ended before it was whole")
        case _ if answering:
            return EngineFailed("the engine closed the connection in the middle of its answer")
        case _:
            return EngineFailed("the engine closed the connection without an answer")


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()[:100] or "malformed"
