"""A request to an engine from its first byte to the end of its answer."""

import asyncio
from collections.abc import Awaitable, Callable

from agent.engines import wire
from agent.engines.backend import (
    BackendBody,
    BackendError,
    BackendFailed,
    BackendUnreachable,
    ResponseReceiver,
)
from agent.engines.http.client.connection import EngineConnection
from agent.engines.http.client.connections import ConnectionPool
from agent.engines.http.client.upload import EngineUpload, NoBody
from agent.engines.settings import EngineTimeouts
from shared.protocol.messages import RequestHead
from shared.speedups import OutPath

STALE_S = 1.0
"""An engine that closed a kept connection before it saw the request says so within a round trip. One that
closes it later may have worked on the request, and it is not for us to let it begin again."""


class EngineCall(EngineUpload):
    """Implements :class:`agent.engines.backend.BackendRequest`, and is told of the answer by its connection.

    A request whose body is there leaves at once over a kept connection. What has to be waited for is waited
    for in a task: a fresh connection, the rest of a body. A kept connection that turns out to be closed,
    without a word of an answer, is replaced by a fresh one: once, and only if the request can be sent again.

    ``on_end`` is told once when the engine has let go of the request: with the error it ended with, None for
    a whole answer and one that was let go.
    """

    _connection: EngineConnection | None = None
    _kept = False
    """The connection was used before, and may have been closed by the engine meanwhile."""

    def __init__(
        self,
        pool: ConnectionPool,
        form: wire.RequestFormat,
        timeouts: EngineTimeouts,
        head: RequestHead,
        body: BackendBody,
        receiver: ResponseReceiver,
        on_end: Callable[[Exception | None], None] | None,
    ) -> None:
        self._pool = pool
        self._format = form
        self._timeouts = timeouts
        self._head = head
        self._body = body
        self._receiver = receiver
        self._on_end = on_end
        self._method = head.method.upper()
        self.on_body = receiver.on_body
        self._over = False
        self._waiting: asyncio.Task[None] | None = None
        """There when something had to be waited for."""
        self._replayable = True
        self._sent_bytes = self._untaken_bytes = 0
        self._wire = b""

    def begin(self, after: Callable[[], Awaitable[object]] | None = None) -> None:
        """Sends the request, ``after`` something else where that is given.

        Raises :class:`agent.engines.backend.RequestUnfit`.
        """
        head = self._head
        begins, length_bytes = self._format.head(self._method, head.path, head.headers)
        unsaid = length_bytes is None and self._method in wire.BODILESS
        if unsaid and self._body.ended:
            unsaid, length_bytes = False, 0
        connection = None if unsaid or after is not None else self._pool.kept()
        if connection is None:
            self._waiting = asyncio.create_task(self._begin_later(begins, length_bytes, after))
            return
        self._kept = True
        self._frame(begins, length_bytes)
        try:
            if not self._send_over(connection):
                self._waiting = asyncio.create_task(self._send_rest_later(connection))
        except BackendError as error:
            self._finish(error)

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def let_go(self) -> None:
        if not self._over:
            self._end(None, keep=False)

    # --- what the connection says

    def on_answer(self) -> OutPath | None:
        connection = self._connection
        assert connection is not None
        if connection.status < 200:
            raise BackendFailed(f"the engine answered with status {connection.status}")
        headers = self._format.response_headers(connection.raw_headers)
        whole = connection.whole
        if not whole and self._all_sent:  # else it may wait for more of the request
            connection.expect_within(self._timeouts.idle_s)
        return self._receiver.on_response(connection.status, headers, whole=whole)

    def on_over(self, error: Exception | None) -> None:
        if error is not None and self._kept and self._may_begin_again():
            self._kept = False
            waiting = self._waiting
            if waiting is not None:
                waiting.cancel()  # at once: what it took of the body from now on would reach no engine
            self._waiting = asyncio.create_task(self._begin_again(error, waiting))
        else:
            self._finish(error)

    # --- steps

    def _frame(self, begins: bytes, length_bytes: int | None) -> None:
        if length_bytes is None:
            framing = b"transfer-encoding: chunked\r\n\r\n"
        elif length_bytes or self._method not in wire.BODILESS:
            framing = b"content-length: %d\r\n\r\n" % length_bytes
        else:
            framing = b"\r\n"
        if length_bytes == 0:
            self._body = NoBody()
        self._start, self._length_bytes = begins + framing, length_bytes

    def _send_over(self, connection: EngineConnection) -> bool:
        """True: the request is whole. Raises :class:`agent.engines.http.client.upload.RequestBodyBroken`."""
        self._connection = connection
        connection.begin(self, head_only=self._method == "HEAD")
        if not self._write(connection, self._wire or self._start + self._next(), b""):
            return False
        connection.expect_within(self._timeouts.first_byte_s)
        return True

    async def _begin_later(
        self, begins: bytes, length_bytes: int | None, after: Callable[[], Awaitable[object]] | None
    ) -> None:
        await self._carry_out(self._prepare_and_send(begins, length_bytes, after))

    async def _prepare_and_send(
        self, begins: bytes, length_bytes: int | None, after: Callable[[], Awaitable[object]] | None
    ) -> None:
        if after is not None:
            await after()
        if length_bytes is None and self._method in wire.BODILESS:
            await self._body.more()  # only its beginning can tell whether there is one
            if self._body.ended:
                length_bytes = 0
        self._frame(begins, length_bytes)
        connection = self._pool.kept()
        self._kept = connection is not None
        await self._send_whole(connection or await self._pool.fresh())

    async def _begin_again(self, error: Exception, waiting: "asyncio.Task[None] | None") -> None:
        """``error`` is what the first connection came to."""
        await self._carry_out(self._send_again(error, waiting))

    async def _send_again(self, error: Exception, waiting: "asyncio.Task[None] | None") -> None:
        if waiting is not None:
            await asyncio.wait((waiting,))
        if self._connection is not None:
            self._pool.end(self._connection, keep=False)
        self._connection = None
        try:
            connection = await self._pool.fresh()
        except BackendUnreachable:
            raise error from None  # it may have seen the request, so it must not be said that it did not
        await self._send_whole(connection)

    async def _send_whole(self, connection: EngineConnection) -> None:
        if not self._send_over(connection):
            await self._send_rest(connection)

    async def _send_rest_later(self, connection: EngineConnection) -> None:
        await self._carry_out(self._send_rest(connection))

    async def _send_rest(self, connection: EngineConnection) -> None:
        await self._send_more(connection)
        timeouts = self._timeouts
        connection.expect_within(timeouts.idle_s if connection.status else timeouts.first_byte_s)

    async def _carry_out(self, step: Awaitable[None]) -> None:
        try:
            await step
        except Exception as error:
            if asyncio.current_task() is self._waiting:  # else the request goes on over another connection
                self._finish(error)

    def _may_begin_again(self) -> bool:
        """The connection was closed, right away and without a word."""
        connection = self._connection
        assert connection is not None
        now = asyncio.get_running_loop().time()
        early = connection.closed and not connection.answered and now - connection.began_s <= STALE_S
        return early and self._replayable

    def _finish(self, error: Exception | None) -> None:
        """The request is over by itself."""
        if not self._over:
            self._end(error, keep=error is None)
            self._receiver.on_over(error)

    def _end(self, error: Exception | None, *, keep: bool) -> None:
        """The engine is let go."""
        self._over = True
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            if not waiting.done():
                keep = False
                if waiting is not asyncio.current_task():
                    waiting.cancel()
        connection = self._connection
        if connection is not None:
            self._connection = None
            self._pool.end(connection, keep=keep)
        if self._on_end is not None:
            self._on_end(error)
