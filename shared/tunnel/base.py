"""The part of a tunnel that both ends share: bytes, WebSocket, session, clock (PROTOCOL §2)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame as WebSocketFrame
from websockets.protocol import Event as WebSocketEvent
from websockets.protocol import Protocol as WebSocket
from websockets.protocol import State
from websockets.typing import Subprotocol

from shared.protocol import limits
from shared.protocol.credit import WindowSettings, read_limits
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.errors import (
    ErrorCode,
    InternalTrouble,
    MessageTooLarge,
    ProtocolError,
    TrunklineError,
    TunnelClosed,
    UnexpectedFrame,
)
from shared.protocol.frames import Frame, MessageKind, TunnelRole, decode_message
from shared.protocol.receiving import Later
from shared.protocol.session import ProtocolSession
from shared.tunnel.core_frames import CoreFrames
from shared.tunnel.deadline_wheel import DeadlineTimer, DeadlineWheel
from shared.tunnel.framing import MessageFramer
from shared.tunnel.traffic import TunnelTraffic
from shared.tunnel.write_buffer import WriteBuffer, set_socket_option
from shared.tunnel.write_scheduler import WriteScheduler

PATH = "/tunnel"
GATEWAYS_HEADER = "Trunkline-Gateways"
"""Names the ids of the gateway keys that the agent trusts, in the order of its preference (§8.12)."""
SUBPROTOCOL = Subprotocol("trunkline.1")

_CLOSE_S = 1.0
"""How long the last bytes may take to leave before the socket is aborted."""

LATE_S = 0.1
"""A timer that fires so late shows that the loop did not turn, and that input waits to be read."""

READ_FIRST_S = 0.01
"""How long that input is waited for: at least one turn of the loop."""


class Tunnel(asyncio.Protocol):
    """One WebSocket and, once authenticated, the session on it.

    ``endpoint`` may be used from the moment the handshake is done. All calls belong to the event loop's
    thread.
    """

    def __init__(self, websocket: WebSocket, clock: Callable[[], float], deadlines: DeadlineWheel) -> None:
        self.endpoint: SessionEndpoint
        self.traffic = TunnelTraffic()
        self._websocket = websocket
        self._framer = MessageFramer(websocket)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._session: ProtocolSession | None = None
        self._core_frames = CoreFrames(clock())
        self._room = WriteBuffer()
        self._write_scheduler = WriteScheduler(self._loop, self._flush)
        self._deadlines = deadlines
        self._timer: DeadlineTimer | None = None
        self._timer_at = 0.0
        self._input_waits = False  # what comes is put off, see _put_off
        self._reading_first = False
        self._closed: asyncio.Future[TrunklineError | None] = self._loop.create_future()
        self._closing = False

    # --- Called by the program ---

    @property
    def open(self) -> bool:
        """True while the session is up on this tunnel."""
        return self._session is not None and not self._closing

    @property
    def peer_address(self) -> str:
        """The other end of the TCP connection, as ``host:port``."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return ":".join(map(str, name[:2])) if isinstance(name, tuple) else "unknown"

    async def wait_closed(self) -> TrunklineError | None:
        """Waits for the end of the tunnel and says why; None when we closed it ourselves."""
        return await asyncio.shield(self._closed)

    def abort(self, error: TrunklineError | None = None) -> None:
        """Ends the tunnel at once, without a word to the peer."""
        try:
            self._finish(error)
        finally:
            if self._transport is not None:
                self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        set_socket_option(self._transport, "TCP_NODELAY", 1)
        self._room.set_on(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._input_waits or self._closing:
            if not self._closing:
                self._put_off(data)
            return
        now, session, size_bytes = self._clock(), self._session, len(data)
        self.traffic.bytes_received += size_bytes
        if session is not None:
            heartbeat = session.heartbeat
            if heartbeat.silent and session.bytes_received(now):
                self._dispatch()
            heartbeat.heard_at, heartbeat.awaiting_at = now, None  # what heard() does when nothing was amiss
        if size_bytes > limits.INPUT_SLICE_BYTES:
            self._handle_slices(data, now)
        else:
            self._handle_input(self._framer.receive(data), now)

    def _handle_slices(self, data: bytes, now: float) -> None:
        """Takes what came piece by piece; what goes straight to clients is written when all is taken."""
        later: Later = []
        try:
            for start in range(0, len(data), limits.INPUT_SLICE_BYTES):
                if not self._closing:
                    piece = data[start : start + limits.INPUT_SLICE_BYTES]
                    self._handle_input(self._framer.receive(piece), now, later)
        finally:
            if later:
                ProtocolSession.write_bodies(later)

    def _put_off(self, data: bytes) -> None:
        """Takes input that has to wait for its turn."""
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(TunnelClosed(f"connection lost: {error}" if error else "connection closed by the peer"))
        self._transport = None

    def pause_writing(self) -> None:
        self._write_scheduler.held = True
        self._room.filled(self._clock())

    def resume_writing(self) -> None:
        self._write_scheduler.held = False
        if self._room.drained(self._clock()) and self._transport is not None:
            self._room.set_on(self._transport)
        self._flush()

    # --- Input ---

    def _handle_input(self, found: Sequence[bytes | WebSocketEvent], now: float, later: Later = None) -> None:
        """Takes what came, in order, and sees to what follows from it. ``later`` is for ``receive_message``.

        Whole binary messages, which are nearly all that comes, say nothing to the WebSocket's core, and
        bodies give the session nothing to send.
        """
        follow_up = self._framer.core_used
        try:
            for each in found:
                if self._closing:
                    return
                message = each if type(each) is bytes else self._message_of(each)
                if message is None:
                    continue
                self.traffic.messages_received += 1
                session = self._session
                if session is None:
                    self._handle_handshake_message(message)
                    continue
                if session.receive_message(message, now, later):
                    follow_up = True
                if session.events:
                    self._dispatch()
        except ProtocolError as error:
            self._fail(error)
        if follow_up:
            self._follow_up()

    def _follow_up(self) -> None:
        """Answers what came, where there is an answer."""
        if self._framer.core_used:
            self._after_core()
        session = self._session
        if session is None or self._closing:
            return
        if session.deadline_nearer:
            self._arm()
        if session.wants_to_send:
            self._write_scheduler.wake()

    def _message_of(self, found: bytes | WebSocketEvent) -> bytes | None:
        """The message that something completes which came by way of the WebSocket's core, if it does."""
        if isinstance(found, WebSocketFrame):
            return self._core_frames.take(found, self._clock())
        self._handle_upgrade(cast(WebSocketEvent, found))
        return None

    def _handle_upgrade(self, event: WebSocketEvent) -> None:
        raise UnexpectedFrame("HTTP inside a WebSocket")

    def _handle_handshake_message(self, message: bytes) -> None:
        kind, frames = decode_message(message)
        if kind is not MessageKind.HANDSHAKE or len(frames) != 1:
            raise UnexpectedFrame("a message of the handshake carries one frame of the handshake")
        self._handle_handshake(frames[0])

    def _handle_handshake(self, frame: Frame) -> None:
        raise NotImplementedError

    def _dispatch(self) -> None:
        try:
            error = self.endpoint.dispatch()
        except Exception:
            # The events that came with it are lost, so the session cannot go on.
            self._fail(InternalTrouble("a program failed at what it was told"))
            raise
        if error is not None:
            self._close_after_output(error)

    def _after_core(self) -> None:
        """Sees to what follows from what the WebSocket's core has read."""
        self._framer.core_used = False
        if self._closing:
            return
        broken = self._websocket.parser_exc or self._websocket.handshake_exc
        if broken is not None:
            if isinstance(broken, PayloadTooBig):
                self._fail(MessageTooLarge(str(broken)))
                return
            self._close_after_output(TunnelClosed(f"not a WebSocket: {broken}", ErrorCode.PROTOCOL_ERROR))
            return
        if self._write_scheduler.held and self._websocket.state is State.OPEN:
            self._websocket.data_to_send()  # only PONGs, for a peer that does not read them
        self._write_websocket()
        if self._websocket.state in (State.CLOSING, State.CLOSED):
            self._close_after_output(TunnelClosed("the peer closed the WebSocket"))

    # --- Output ---

    def _flush(self) -> None:
        """Sends everything that is ready together; what the core has to say :meth:`_after_core` wrote."""
        write_scheduler, session, transport = self._write_scheduler, self._session, self._transport
        write_scheduler.note_flushed()
        if session is None or transport is None or self._closing:
            return
        room, traffic = self._room, self.traffic
        while not write_scheduler.held and not self._closing:
            # One byte over the mark makes the transport say when there is room again.
            most_bytes = room.size_bytes
            room_bytes = most_bytes + 1 - transport.get_write_buffer_size()
            messages = session.data_to_send(room_bytes, self._clock())
            if not messages:
                break
            data = self._framer.frame(messages)
            size_bytes = len(data)
            traffic.messages_sent += len(messages)
            traffic.bytes_sent += size_bytes
            transport.write(data)
            if size_bytes > most_bytes and not transport.get_write_buffer_size() and room.taken():
                room.set_on(transport)
            if session.events:
                self._dispatch()
                if write_scheduler.woken:
                    continue
            if size_bytes < room_bytes:
                break  # nothing more is ready
        if session.deadline_nearer or self._timer is None:
            self._arm()

    def _send_messages(self, messages: list[bytes]) -> None:
        """Writes them; once the peer has closed the WebSocket nothing can be said any more."""
        if self._websocket.state is State.OPEN:
            self.traffic.messages_sent += len(messages)
            self._write_websocket()
            self._write(self._framer.frame(messages))

    def _write_websocket(self) -> None:
        """Hands over what the WebSocket's core has to say; an empty piece means the end of the stream."""
        pieces = self._websocket.data_to_send()
        if pieces:
            self._write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self.traffic.bytes_sent += len(data)
            self._transport.write(data)

    # --- Time ---

    def _arm(self) -> None:
        """Sets the timer for the session's next deadline. A timer that fires earlier is kept."""
        if self._session is None or self._closing:
            return
        self._session.deadline_nearer = False
        at = self._session.next_deadline()
        if self._timer is not None:
            if self._timer_at <= at:
                self._session.timer_at = self._timer_at
                return
            self._timer.cancel()
        self._timer, late_s = self._deadlines.call_in(at - self._clock(), self._handle_deadline)
        self._timer_at = self._session.timer_at = at + late_s

    def _handle_deadline(self) -> None:
        self._timer = None
        if self._session is None or self._closing:
            return
        now = self._clock()
        self._reading_first = now > self._timer_at + LATE_S and not self._reading_first
        if self._reading_first:
            self._timer_at = now + READ_FIRST_S
            self._timer = self._loop.call_later(READ_FIRST_S, self._handle_deadline)
            return
        try:
            if now >= self._session.next_deadline():
                self._session.handle_deadline(now)
            self._dispatch()
        except TrunklineError as error:
            self.abort(error)
            return
        (self._flush if self._session.wants_to_send else self._arm)()

    # --- Beginning and end of the session ---

    def _start_session(
        self, role: TunnelRole, peer_limits: Mapping[str, int], windows: WindowSettings | None = None
    ) -> None:
        session = ProtocolSession(role, read_limits(role, peer_limits), self._clock(), windows)
        self._carry(SessionEndpoint(session, self._clock, self._write_scheduler.wake))

    def _resume_session(self, endpoint: SessionEndpoint, peer_received: int) -> None:
        """Goes on with a session whose tunnel is gone. Raises :class:`ResumeRefused`."""
        endpoint.resume(peer_received)
        self._carry(endpoint)

    def _carry(self, endpoint: SessionEndpoint) -> None:
        """From now on this tunnel moves the bytes of ``endpoint``."""
        self._websocket.max_message_size = limits.MESSAGE_BYTES
        self.endpoint, self._session = endpoint, endpoint.session
        endpoint.wake, endpoint.hasten = self._write_scheduler.wake, self._write_scheduler.hasten
        self._write_scheduler.streams = endpoint.streams
        endpoint.on_close = self._close_ourselves
        endpoint.drop_tunnel = self._drop
        endpoint.call_soon = self._loop.call_soon
        if endpoint.closed:  # by a handler, when the session was resumed
            self._close_ourselves()
            return
        self._arm()
        self._write_scheduler.wake()

    def _drop(self) -> None:
        """The session leaves for another tunnel."""
        self.abort(TunnelClosed("a newer tunnel of the same session took over", ErrorCode.REPLACED))

    def _close_ourselves(self) -> None:
        """The program closed the session: CLOSE is in the session's output."""
        self._close_after_output(None)

    def _fail(self, error: ProtocolError | InternalTrouble) -> None:
        """Ends the session after either side failed, and tells the peer why."""
        if self._session is not None:
            self._session.close(error.code, str(error))
        self._close_after_output(error)

    def _close_after_output(self, error: TrunklineError | None) -> None:
        if self._closing or self._transport is None:
            return
        if self._session is not None and self._websocket.state is State.OPEN:
            self._send_messages(self._session.data_to_send(limits.MESSAGE_BYTES, self._clock()))
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(1000)
        self._write_websocket()
        self._transport.close()
        self._loop.call_later(_CLOSE_S, self._transport.abort)
        self._finish(error)

    def _finish(self, error: TrunklineError | None) -> None:
        if self._closing:
            return
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if self._session is not None:
                if self._session.closed or error is None:
                    self.endpoint.lost(error)
                else:
                    self.endpoint.suspend(error)  # it may go on over another tunnel
        finally:
            if not self._closed.done():
                self._closed.set_result(error)
