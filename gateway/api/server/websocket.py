"""A client's WebSocket on a connection of the HTTP server, in pieces of messages (RFC 6455, PROTOCOL §5.5).

The protocol is the websockets library's; what it reads and writes are the bytes of the connection, which
:class:`gateway.api.server.protocol.BoundedHttpProtocol` goes on to bound: it counts among its client's
connections, and a client that takes nothing is cut off.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from gateway.api.server.answer_cycle import AnswerCycle
from gateway.domain.errors import BadRequest
from shared.protocol.limits import KIB, MIB
from shared.protocol.upgraded import (
    ABNORMAL,
    INTERNAL_ERROR,
    NO_CODE,
    MessagePiece,
    PieceKind,
    close_reason,
    encode_close,
    encode_pieces,
    may_be_sent,
)

FRAME_BYTES = MIB
"""Longest frame that a client may send; a longer one closes with 1009. A frame is held whole, of a message in
several frames no more than one."""

UNSENT_BYTES = 64 * KIB
"""With so much for the engine waiting here the connection is not read, until a quarter of it is left."""

UNTAKEN_BYTES = 256 * KIB
"""With so much for the client waiting here, which is more than its engine may have said, it is not read: it
floods with pings, and takes no answers. Until then one that does not read is heard, and so is its close."""

PING_S = 20.0
"""How often a client is pinged, which also keeps proxies in front from taking the connection for idle."""

SILENT_S = 60.0
"""A client of which nothing came for so long, not even an answer to a ping, is gone."""

CLOSE_S = 5.0
"""How long a client may take to answer a closing frame."""

QUIET_S = 0.5
"""A client that was closed for a mistake and has sent nothing for so long has sent what it had to."""

_NEEDED = frozenset((b"host", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version"))
"""Header fields that the handshake is checked by. Extensions are not offered to be declined."""

_log = logging.getLogger("websockets.client_of_gateway")
_log.setLevel(logging.ERROR)

_DATA = frozenset((Opcode.CONT, Opcode.TEXT, Opcode.BINARY))


class ClientWebSocket:
    """One client's. Implements :class:`gateway.api.server.answer_cycle.SwitchedReceiver`."""

    def __init__(self, cycle: AnswerCycle, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """``headers`` are the request's, with lower-case names. Raises BadRequest for what asks for no
        WebSocket of RFC 6455."""
        self._cycle = cycle
        self._flow = cycle.flow
        self._protocol = ServerProtocol(max_size=(None, FRAME_BYTES), logger=_log)
        needed = [b"%b: %b\r\n" % field for field in headers if field[0] in _NEEDED]
        self._protocol.receive_data(b"GET / HTTP/1.1\r\n%b\r\n" % b"".join(needed))
        events = self._protocol.events_received()
        if not events or not isinstance(events[0], Request):
            raise BadRequest("This does not ask for a WebSocket as RFC 6455 says.", code="invalid_upgrade")
        self._response = self._protocol.accept(events[0])
        if self._response.status_code != 101:
            why = str(self._protocol.handshake_exc).rstrip(".")
            raise BadRequest(f"No WebSocket can be opened: {why}.", code="invalid_upgrade")
        self._received: deque[bytes] = deque()
        """Pieces for the engine that were not taken yet."""
        self._received_bytes = 0
        self._news = asyncio.Event()
        self._input_over = False
        """The last piece is among them."""
        self._closed = asyncio.Event()
        """Set when the closing handshake is over, or the connection."""
        self._lingers_until_s = 0.0
        """While what a client still sends after its mistake is thrown away; 0: it has made none."""
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.on_closed: Callable[[], None] = lambda: None
        """Called once the closing handshake is over; whoever relays sets it."""
        self.bytes_in = 0
        self.bytes_out = 0

    # --- The relay's side

    def accept(self, headers: Iterable[tuple[bytes, bytes]], subprotocol: str | None) -> None:
        """The connection is the client's WebSocket from here on. ``headers`` are added to what RFC 6455
        demands."""
        response = self._response
        for name, value in headers:
            response.headers[name.decode("latin-1")] = value.decode("latin-1")
        if subprotocol is not None:
            response.headers["Sec-WebSocket-Protocol"] = subprotocol
        self._protocol.send_response(response)
        head = b"".join(self._protocol.data_to_send())
        self._heard_s = self._cycle.loop.time()
        self._timer = self._cycle.loop.call_later(PING_S, self._beat)
        self._cycle.switch_protocols(head, self)

    async def pieces(self) -> AsyncIterator[bytes]:
        """What the client says, as the body of an upgraded stream, to the closing piece."""
        while True:
            if self._received:
                data = b"".join(self._received)
                self._received.clear()
                self._received_bytes = 0
                yield data
                self._read_on()
            elif self._input_over:
                return
            else:
                self._news.clear()
                await self._news.wait()

    def put(self, piece: MessagePiece) -> None:
        """Sends a piece, with what else there is by :meth:`flush`. Nothing is sent to a client that has
        closed."""
        protocol = self._protocol
        if protocol.state is not State.OPEN:
            return
        self.bytes_out += len(piece.data)
        if piece.kind == PieceKind.TEXT:
            protocol.send_text(piece.data, piece.final)
        elif piece.kind == PieceKind.BINARY:
            protocol.send_binary(piece.data, piece.final)
        else:
            protocol.send_continuation(piece.data, piece.final)

    async def flush(self) -> None:
        """Returns when the socket's buffer has room again, or the client has closed."""
        self._write()
        if self._flow.write_paused and not self._cycle.disconnected and self._protocol.state is State.OPEN:
            await self._flow.drain()

    async def close(self, code: int, reason: str) -> None:
        """Closes with that code, and waits for the client's answer, for a while."""
        if self._protocol.state is State.OPEN:
            if code == NO_CODE:
                self._protocol.send_close()
            else:
                usable = code if may_be_sent(code) else INTERNAL_ERROR
                self._protocol.send_close(usable, close_reason(reason).decode())
            self._write()
            self._flow.resume_reading()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._closed.wait()
        except TimeoutError:
            pass

    def end(self) -> None:
        """The connection is of no more use. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cycle.end_switched()

    # --- The connection's side

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._cycle.loop.time()
        if self._lingers_until_s:
            return
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Frame) and event.opcode in _DATA and not self._input_over:
                self.bytes_in += len(event.data)
                for piece in encode_pieces(event.opcode, bytes(event.data), final=event.fin):
                    self._take(piece)
        self._write()
        if protocol.state is not State.OPEN and not self._input_over:
            closed = protocol.close_rcvd or protocol.close_sent
            self._input_over = True
            self._take(encode_close(closed.code, closed.reason) if closed else encode_close(ABNORMAL))
            self._flow.resume_writing()  # nothing more is written: nobody has to wait for room
        untaken = protocol.state is State.OPEN and self._received_bytes > UNSENT_BYTES
        if untaken or self._cycle.transport.get_write_buffer_size() > UNTAKEN_BYTES:
            self._flow.pause_reading()

    def writing_resumed(self) -> None:
        """The client takes what is written again."""
        self._read_on()

    def connection_lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closed.set()

    # --- Steps

    def _take(self, piece: bytes) -> None:
        self._received.append(piece)
        self._received_bytes += len(piece)
        self._news.set()

    def _read_on(self) -> None:
        """Unless what the client says waits, which does not matter once it is closed, or it takes too
        little."""
        taken = self._received_bytes <= UNSENT_BYTES // 4 or self._protocol.state is not State.OPEN
        if taken and self._cycle.transport.get_write_buffer_size() <= UNTAKEN_BYTES:
            self._flow.resume_reading()

    def _write(self) -> None:
        """Write what the protocol has to say; it ends with an empty piece when the connection is to end."""
        out = self._protocol.data_to_send()
        transport = self._cycle.transport
        if data := b"".join(out):
            if transport.is_closing():
                return
            transport.write(data)
        if b"" in out and not self._closed.is_set() and not self._lingers_until_s:
            self.on_closed()
            if self._protocol.close_rcvd is None:
                self._linger()
            else:
                self._closed.set()
                transport.close()

    def _linger(self) -> None:
        """The client has made a mistake, such as a frame that is too long, and may still be sending it. The
        kernel resets a connection that is closed with something unread, and the client would then lose the
        closing frame."""
        now_s, transport = self._cycle.loop.time(), self._cycle.transport
        self._lingers_until_s = now_s + CLOSE_S
        if transport.can_write_eof():
            transport.write_eof()
        self._flow.resume_reading()
        self._wait_for_quiet()

    def _wait_for_quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = self._cycle.loop
        due_s = min(self._heard_s + QUIET_S, self._lingers_until_s)
        if loop.time() < due_s:
            self._timer = loop.call_at(due_s, self._wait_for_quiet)
        else:
            self._closed.set()
            self._cycle.transport.close()

    def _beat(self) -> None:
        loop = self._cycle.loop
        self._timer = loop.call_later(PING_S, self._beat)
        if not self._flow.read_paused and loop.time() - self._heard_s > SILENT_S:
            self._cycle.transport.abort()
        elif self._protocol.state is State.OPEN:
            try:
                self._protocol.send_ping(b"")
            except ProtocolError:
                return
            self._write()
