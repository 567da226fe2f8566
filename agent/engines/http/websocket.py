"""A client's WebSocket to an engine, at the pace of the slower side (PROTOCOL §5.5).

The pieces in the request's body are sent to the engine as messages; what it sends becomes the pieces of the
response's body.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    WebSocketException,
)
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from agent.engines.backend import (
    BackendBody,
    BackendError,
    BackendFailed,
    BackendTimeout,
    RequestUnfit,
    ResponseReceiver,
)
from agent.engines.http.client.connections import EngineConnector
from agent.engines.settings import EngineTimeouts
from agent.engines.wire import RequestFormat
from shared.protocol.errors import LocalError, PieceMalformed
from shared.protocol.limits import MIB
from shared.protocol.messages import UPGRADED, Headers, RequestHead
from shared.protocol.upgraded import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NO_CODE,
    CloseNotice,
    MessagePiece,
    PieceKind,
    PieceReader,
    encode_close,
    encode_pieces,
    may_be_sent,
)

FRAME_BYTES = 16 * MIB
"""Longest frame that an engine may send; a message of several may be of any length. A frame is held whole."""

PING_S = 20.0
"""How often the engine is pinged, so that a connection that is dead is noticed."""

CLOSE_S = 10.0
"""How long an engine may take to answer a closing frame."""

_log = logging.getLogger("websockets.engine")
_log.setLevel(logging.ERROR)


class _Connection(ClientConnection):
    """Knows when its engine gave the last sign of life. The library's own pings would wait for ever behind
    what an engine does not take, and for an answer that is not read while the client reads nothing."""

    heard_s = 0.0

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.loop.time()
        super().data_received(data)

    def resume_writing(self) -> None:
        self.heard_s = self.loop.time()
        super().resume_writing()


class EngineWebSocket:
    """Implements :class:`agent.engines.backend.BackendRequest` for a request that asks for a WebSocket.

    ``on_end`` is told once when the engine has let go of it, as of :class:`EngineCall`.
    """

    def __init__(
        self,
        connector: EngineConnector,
        form: RequestFormat,
        timeouts: EngineTimeouts,
        head: RequestHead,
        body: BackendBody,
        receiver: ResponseReceiver,
        on_end: Callable[[Exception | None], None] | None,
    ) -> None:
        """Raises :class:`agent.engines.backend.RequestUnfit`."""
        self._connector = connector
        self._form = form
        self._timeouts = timeouts
        self._body = body
        self._receiver = receiver
        self._on_end = on_end
        self._uri, self._fields, self._subprotocols = form.websocket(head.method, head.path, head.headers)
        self._socket: _Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Of the next ping."""
        self._wanted = asyncio.Event()
        """Set while the receiver takes pieces."""
        self._wanted.set()
        self._reader = PieceReader()
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def resume(self) -> None:
        self._wanted.set()

    def let_go(self) -> None:
        if not self._over:
            self._task.cancel()
            self._end(None)

    # --- steps

    async def _run(self) -> None:
        error: Exception | None = None
        try:
            await self._connect_and_pass()
        except Exception as failure:
            error = _as_backend_error(failure)
        if not self._over:
            self._end(error)
            self._receiver.on_over(error)

    def _end(self, error: Exception | None) -> None:
        """The engine is let go."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        socket, self._socket = self._socket, None
        if socket is not None:
            if socket.state is State.OPEN:
                socket.protocol.fail(GOING_AWAY)
                socket.send_data()
            socket.transport.abort()
        if self._on_end is not None:
            self._on_end(error)

    async def _connect_and_pass(self) -> None:
        try:
            socket = await self._connect()
        except InvalidStatus as refused:
            self._pass_refusal(refused.response)
            return
        response = socket.response
        assert response is not None
        self._receiver.on_response(UPGRADED, self._response_headers(response))
        sender = asyncio.get_running_loop().create_task(self._send(socket))
        try:
            await self._receive(socket)
        finally:
            if not sender.done():
                sender.cancel()
            await asyncio.wait((sender,))
        failure = None if sender.cancelled() else sender.exception()
        if failure is not None and not isinstance(failure, ConnectionClosed):
            raise failure

    def _beat(self) -> None:
        """Ping the engine, or cut it off when it was silent for too long. While it is not read, because the
        client takes nothing, it cannot say anything."""
        socket, idle_s, loop = self._socket, self._timeouts.idle_s, asyncio.get_running_loop()
        assert socket is not None
        self._timer = loop.call_later(PING_S, self._beat)
        now_s, transport, protocol = loop.time(), socket.transport, socket.protocol
        if not (transport.is_reading() or transport.is_closing()):
            socket.heard_s = now_s
        silent = idle_s is not None and now_s - socket.heard_s > PING_S + idle_s
        if protocol.state is State.OPEN:
            if silent:
                protocol.fail(INTERNAL_ERROR, "the engine is silent")
            else:
                protocol.send_ping(b"")
            socket.send_data()
        if silent:
            transport.abort()

    async def _connect(self) -> ClientConnection:
        """Raises BackendUnreachable, TimeoutError, InvalidStatus and other InvalidHandshake."""

        def made() -> _Connection:
            protocol = ClientProtocol(
                parse_uri(self._uri),
                subprotocols=self._subprotocols or None,
                max_size=(None, FRAME_BYTES),
                logger=_log,
            )
            return _Connection(protocol, ping_interval=None, close_timeout=CLOSE_S, max_queue=1)

        socket = await self._connector.dial(made)
        self._socket = socket
        async with asyncio.timeout(self._timeouts.first_byte_s):
            await socket.handshake(self._fields, None)
        socket.heard_s = asyncio.get_running_loop().time()
        self._beat()
        return socket

    def _response_headers(self, response: Response) -> Headers:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.raw_items()]
        headers = self._form.response_headers(raw)
        if response.status_code != UPGRADED:
            return headers
        hidden = ("sec-websocket-accept", "sec-websocket-extensions", "content-length")
        return tuple(field for field in headers if field[0] not in hidden)

    def _pass_refusal(self, response: Response) -> None:
        """The engine's answer is an ordinary one, which is there whole."""
        status = response.status_code
        if not 200 <= status < 600:
            raise BackendFailed(f"the engine answered with status {status}")
        self._receiver.on_response(status, self._response_headers(response))
        if response.body:
            self._receiver.on_body(bytes(response.body))

    # --- engine to gateway

    async def _receive(self, socket: ClientConnection) -> None:
        """Passes on what the engine sends, until it closes."""
        try:
            while True:
                await self._receive_message(socket)
        except ConnectionClosed as closed:
            notice = self._close_notice(closed)
            if notice is not None:
                await self._close_client(notice)

    async def _close_client(self, notice: CloseNotice) -> None:
        await self._pass_on(encode_close(*notice))

    def _close_notice(self, closed: ConnectionClosed) -> CloseNotice | None:
        """What the client is told; None: the connection was lost."""
        if closed.rcvd is not None:
            return CloseNotice(closed.rcvd.code, closed.rcvd.reason)
        if closed.sent is not None and closed.sent.code != GOING_AWAY:  # a frame of the engine was too long
            return CloseNotice(closed.sent.code, closed.sent.reason)
        return None

    async def _receive_message(self, socket: ClientConnection) -> None:
        """One message. Its last fragment is known only when there is no other, so each waits for the next."""
        kind, before = PieceKind.CONTINUATION, b""
        first = True
        async for fragment in socket.recv_streaming():
            if first:
                kind = PieceKind.TEXT if isinstance(fragment, str) else PieceKind.BINARY
                first = False
            else:
                await self._pass_pieces(kind, before, final=False)
                kind = PieceKind.CONTINUATION
            before = fragment.encode() if isinstance(fragment, str) else fragment
        await self._pass_pieces(kind, before, final=True)

    async def _pass_pieces(self, kind: PieceKind, data: bytes, *, final: bool) -> None:
        for piece in encode_pieces(kind, data, final=final):
            await self._pass_on(piece)

    async def _pass_on(self, piece: bytes) -> None:
        if not self._receiver.on_body(piece):
            self._wanted.clear()
        await self._wanted.wait()

    # --- gateway to engine

    async def _send(self, socket: ClientConnection) -> None:
        """Sends what the client said, and closes as it did. Raises PieceMalformed, ConnectionClosed."""
        pieces = self._pieces()
        try:
            async for piece in pieces:
                is_text = piece.kind == PieceKind.TEXT
                if piece.final:
                    await socket.send(piece.data, text=is_text)
                else:
                    await socket.send(_fragments(piece, pieces), text=is_text)
        except PieceMalformed:
            socket.transport.abort()
            raise
        code, reason = self._reader.end()
        await socket.close(code if may_be_sent(code) else 1000 if code == NO_CODE else GOING_AWAY, reason)

    async def _pieces(self) -> AsyncIterator[MessagePiece]:
        """Every piece of the body; its bytes count as taken once all pieces in them are."""
        body, reader = self._body, self._reader
        while not body.ended and reader.closed is None:
            await body.more()
            data = body.take()
            for piece in reader.feed(data):
                yield piece
            body.taken(len(data))


async def _fragments(first: MessagePiece, pieces: AsyncIterator[MessagePiece]) -> AsyncIterator[bytes]:
    """A message of several pieces."""
    yield first.data
    async for piece in pieces:
        yield piece.data
        if piece.final:
            return
    raise PieceMalformed("the body ends inside a message")


def _as_backend_error(failure: Exception) -> Exception:
    """What the request's receiver is told."""
    match failure:
        case BackendError() | LocalError():
            return failure
        case TimeoutError():
            return BackendTimeout("the engine was silent when it was asked for a WebSocket")
        case PieceMalformed():
            return RequestUnfit(f"the client's messages do not parse: {failure}")
        case InvalidHandshake() | WebSocketException() | OSError():
            return BackendFailed(f"the engine does not speak WebSocket: {failure}")
    return failure
