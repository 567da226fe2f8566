"""A request to an engine from its first byte to the end of its answer."""

import asyncio

from agent.engines import wire
from agent.engines.backend import BackendBody, BackendError, BackendFailed, BackendUnreachable
from agent.engines.http.client.connections import ConnectionPool, IdleConnection
from agent.engines.http.client.exchange import EngineExchange, Take
from agent.engines.http.client.upload import EngineUpload, NoBody
from agent.engines.settings import EngineTimeouts
from shared.protocol.messages import RequestHead

STALE_S = 1.0
"""An engine that closed a kept connection before it saw the request says so within a round trip. One that
closes it later may have worked on the request, and it is not for us to let it begin again."""


class EngineCall:
    """Implements :class:`agent.engines.backend.BackendResponse`, and is the context in which it is one.

    A kept connection that turns out to be closed, without a word of an answer, is replaced by a fresh one:
    once, and only if the request can be sent again.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        form: wire.RequestFormat,
        timeouts: EngineTimeouts,
        head: RequestHead,
        body: BackendBody,
    ) -> None:
        self._pool = pool
        self._format = form
        self._timeouts = timeouts
        self._head = head
        self._body = body
        self._connection: IdleConnection | None = None
        self._exchange: EngineExchange | None = None
        self._uploading: asyncio.Task[None] | None = None
        """There while the request cannot be sent whole without waiting."""
        self.status = 0
        self.headers: tuple[tuple[str, str], ...] = ()

    async def __aenter__(self) -> "EngineCall":
        try:
            await self._answered(await self._upload())
        except BaseException:
            await self._end(keep=False)
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._end(keep=True)

    async def pour(self, take: Take) -> None:
        assert self._exchange is not None
        await self._exchange.pour(take)

    def resume(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()

    async def _upload(self) -> EngineUpload:
        """Raises :class:`agent.engines.backend.RequestUnfit`."""
        head, body = self._head, self._body
        method, path = wire.check_method(head.method), wire.check_path(head.path)
        length_bytes = wire.declared_length(head.headers)
        bodiless = method in wire.BODILESS
        if length_bytes is None and bodiless:
            await body.more()  # only its beginning can tell whether there is one
            if body.ended:
                length_bytes = 0
        if length_bytes is None:
            framing = b"transfer-encoding: chunked\r\n"
        elif length_bytes or not bodiless:
            framing = b"content-length: %d\r\n" % length_bytes
        else:
            framing = b""
        return EngineUpload(
            self._format.head(method, path, head.headers, framing),
            NoBody() if length_bytes == 0 else body,
            length_bytes=length_bytes,
            stall_s=self._timeouts.idle_s,
        )

    async def _answered(self, upload: EngineUpload) -> None:
        """Returns with the answer's head read. Raises the :class:`BackendError` that fits."""
        kept = self._pool.kept()
        exchange = self._begin(kept or await self._pool.fresh(), upload)
        try:
            await exchange.head()
        except BackendError as error:
            if kept is None or not upload.replayable or not _was_stale(exchange):
                raise
            exchange = await self._begin_again(upload, error)
            await exchange.head()
        if exchange.status < 200:
            raise BackendFailed(f"the engine answered with status {exchange.status}")
        self.status, self.headers = exchange.status, self._format.response_headers(exchange.raw_headers)
        exchange.expect_within(self._timeouts.idle_s)

    async def _begin_again(self, upload: EngineUpload, error: BackendError) -> EngineExchange:
        await self._end(keep=False)
        try:
            return self._begin(await self._pool.fresh(), upload)
        except BackendUnreachable:
            raise error from None  # it may have seen the request, so it must not be said that it did not

    def _begin(self, connection: IdleConnection, upload: EngineUpload) -> EngineExchange:
        self._connection = connection
        exchange = self._exchange = self._pool.begin(
            connection, head_only=self._head.method.upper() == "HEAD"
        )
        if upload.begin(exchange):
            exchange.expect_within(self._timeouts.first_byte_s)
        else:
            self._uploading = asyncio.create_task(self._send_rest(exchange, upload))
        return exchange

    async def _send_rest(self, exchange: EngineExchange, upload: EngineUpload) -> None:
        try:
            await upload.rest(exchange)
        except Exception as error:
            exchange.fail(error)
        else:
            if not exchange.status:
                exchange.expect_within(self._timeouts.first_byte_s)

    async def _end(self, *, keep: bool) -> None:
        """First of all the engine is let go: whoever waits here may be cancelled."""
        uploading, self._uploading = self._uploading, None
        connection, self._connection = self._connection, None
        exchange, self._exchange = self._exchange, None
        if connection is not None and exchange is not None:
            keep = keep and (uploading is None or uploading.done())
            self._pool.end(connection, exchange, keep=keep)
        if uploading is not None and not uploading.done():
            uploading.cancel()
            await asyncio.wait((uploading,))


def _was_stale(exchange: EngineExchange) -> bool:
    """The connection was closed, right away and without a word."""
    now = asyncio.get_running_loop().time()
    return exchange.closed and not exchange.answered and now - exchange.began_s <= STALE_S
