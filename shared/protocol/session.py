"""A session, sans I/O: bytes and ``now`` in, messages and events out (PROTOCOL §5 to §7).

The program around it moves bytes: it gives every message received to :meth:`ProtocolSession.receive_message`,
calls :meth:`ProtocolSession.handle_deadline` when :meth:`ProtocolSession.next_deadline` has come, writes what
:meth:`ProtocolSession.data_to_send` returns, and after each of these handles what
:meth:`ProtocolSession.take_events` returns.

Times are seconds of one monotonic clock. Nothing here blocks, waits or knows of sockets.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import orjson

from shared.protocol import limits
from shared.protocol.control_frames import ControlFrameLimiter, control_frame_units
from shared.protocol.credit import WindowSettings
from shared.protocol.errors import ErrorCode, SessionClosed, UnexpectedFrame
from shared.protocol.events import (
    CommandReceived,
    DemandReceived,
    DrainReceived,
    Event,
    PeerClosed,
    PeerHeard,
    PeerSilent,
    ResultReceived,
    RoundTripMeasured,
    SlotsReceived,
    StateReceived,
)
from shared.protocol.frames import (
    Frame,
    FrameType,
    MessageKind,
    decode_frame,
    decode_offset,
    decode_reason,
    encode,
    encode_offset,
    encode_reason,
    message_kind,
)
from shared.protocol.heartbeat import Heartbeat
from shared.protocol.messages import (
    AgentState,
    Drain,
    RequestHead,
    ResponseHead,
    Trailers,
    decode_levels,
    encode_levels,
    read_object,
)
from shared.protocol.numbering import MessageLog
from shared.protocol.outbox import pack
from shared.protocol.streams import OWN_WINDOWS, PeerLimits, StreamTable, TunnelRole

_RECEIVED_BY: dict[int, TunnelRole] = {
    FrameType.OPEN: TunnelRole.AGENT,
    FrameType.HEAD: TunnelRole.GATEWAY,
    FrameType.SLOTS: TunnelRole.GATEWAY,
    FrameType.STATE: TunnelRole.GATEWAY,
    FrameType.RESULT: TunnelRole.GATEWAY,
    FrameType.DEMAND: TunnelRole.AGENT,
    FrameType.COMMAND: TunnelRole.AGENT,
}
"""Frames that only one role may receive."""

_OF_STREAMS = frozenset(
    {
        FrameType.OPEN,
        FrameType.HEAD,
        FrameType.DATA,
        FrameType.END,
        FrameType.RESET,
        FrameType.CREDIT,
        FrameType.ACK,
    }
)
"""Frames that streams and their bytes bound; CREDIT and ACK only where they say something new (§2.6)."""


class ProtocolSession:
    """One end of a session.

    Methods that send raise :class:`~shared.protocol.errors.SessionClosed` once the session is over.
    """

    def __init__(
        self, role: TunnelRole, peer: PeerLimits, now: float, windows: WindowSettings | None = None
    ) -> None:
        self.role = role
        self.closed = False
        self.suspended = False
        """There is no tunnel just now; see :meth:`suspend`."""
        self.log = MessageLog()
        self._events: list[Event] = []
        self._streams = StreamTable(role, peer, windows or OWN_WINDOWS[role], self._events)
        self._outbox = self._streams.outbox
        self._heartbeat = Heartbeat(now)
        self.control_frames = ControlFrameLimiter(now)
        """What the peer may still send of them; who knows the peer may put that of its last session here."""
        self._link: deque[bytes] = deque()
        """Link frames to send, ahead of everything; bounded, see :meth:`_put_link`."""
        self._ack_due = False

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round trip of the tunnel, None until measured."""
        return self._heartbeat.rtt_s

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Body bytes received that the program has not taken yet: what credit bounds."""
        return self._streams.held_bytes

    # --- What the program asks for ---

    def open_stream(self, head: RequestHead, now: float) -> int:
        """Sends OPEN and returns the stream's number (gateway).

        ``head.credit`` is filled in here. Raises :class:`~shared.protocol.errors.TooManyStreams`,
        HeadTooLarge.
        """
        self._check_open()
        stream_id = self._streams.open(head, now)
        self.control_frames.earn(self.open_streams)
        return stream_id

    def send_head(self, stream_id: int, head: ResponseHead) -> None:
        """Sends HEAD (agent). Raises :class:`~shared.protocol.errors.StreamHalfClosed` when our
        half is over.
        """
        self._check_open()
        self._streams.send_head(stream_id, head)

    def send_data(self, stream_id: int, data: bytes) -> bool:
        """Takes body bytes, all of them. Returns False when the writer is to wait for ``StreamWritable``.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed` when our half is over, and
        :class:`~shared.protocol.errors.SendBufferFull` when the writer did not wait.
        """
        if self.closed:
            self._check_open()
        return self._streams.send_data(stream_id, data)

    def end(self, stream_id: int, trailers: Trailers | None = None) -> None:
        """Ends our half in order, once everything buffered has left.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed` when it is over already.
        """
        self._check_open()
        self._streams.end(stream_id, trailers)

    def reset(self, stream_id: int, code: ErrorCode, reason: str = "") -> bool:
        """Gives the stream up: forgets what has not left, drops what has come. Harmless when it is closed.

        False: it was over and nothing of it was held, so that nothing is to be sent.
        """
        return not self.closed and self._streams.reset(stream_id, code, reason)

    def consumed(self, stream_id: int, size_bytes: int, now: float) -> None:
        """Says that the consumer has taken bytes for good; grants credit (PROTOCOL §6.2).

        Harmless for streams that were reset. After ``StreamClosed`` the bytes the program still holds are
        to be said consumed too, or the stream to be reset: until then its window is not given back.
        """
        if self.consume(stream_id, size_bytes):
            self.grant(stream_id, now)

    def consume(self, stream_id: int, size_bytes: int) -> bool:
        """:meth:`consumed` for who has no time at hand: True, which is seldom, when to call :meth:`grant`."""
        return self._streams.consume(stream_id, size_bytes)

    def grant(self, stream_id: int, now: float) -> None:
        """Grants what the bytes consumed allow."""
        self._streams.grant(stream_id, now)

    def send_state(self, state: AgentState) -> None:
        self._put_state(FrameType.STATE, state.to_payload())

    def send_slots(self, levels: Mapping[str, int]) -> None:
        self._put_state(FrameType.SLOTS, encode_levels(levels))

    def send_demand(self, waiting: Mapping[str, int]) -> None:
        self._put_state(FrameType.DEMAND, encode_levels(waiting))

    def send_drain(self, drain: Drain) -> None:
        self._put_state(FrameType.DRAIN, drain.to_payload())

    def send_command(self, command: Mapping[str, Any]) -> None:
        """COMMAND from a gateway, RESULT from an agent.

        Raises :class:`~shared.protocol.errors.LocalError` when too many wait.
        """
        self._check_open()
        frame_type = FrameType.COMMAND if self.role is TunnelRole.GATEWAY else FrameType.RESULT
        self._outbox.put_command(encode(frame_type, 0, orjson.dumps(dict(command))))
        self.control_frames.earn(self.open_streams)

    def close(self, code: ErrorCode, reason: str) -> None:
        """Ends the session: CLOSE is the last message. Harmless when it is closed."""
        if not self.closed:
            self.closed = True
            self._link.append(encode(FrameType.CLOSE, 0, encode_reason(code, reason)))

    def quiet_s(self, now: float) -> float:
        """How long nothing has been heard of the peer; infinite without a tunnel."""
        return float("inf") if self.suspended else self._heartbeat.quiet_s(now)

    def probe(self, now: float) -> None:
        """Asks whether the peer is there: it is heard within a round trip, or silent soon (PROTOCOL §7.2)."""
        if not self.suspended and not self.closed:
            self._put_link(encode(FrameType.PING, 0, encode_offset(self._heartbeat.ping(now))))
            self._heartbeat.sent(now)

    # --- Tunnels come and go (PROTOCOL §7.4) ---

    def suspend(self) -> None:
        """The tunnel is gone. Everything may still be asked for; it leaves when there is a tunnel again."""
        self.suspended = True
        self._link.clear()
        self._ack_due = False
        self._streams.set_suspended(True)

    def resume(self, peer_received: int, now: float) -> None:
        """A new tunnel is up, on which the peer said how many messages it has received.

        What it lacks is sent again before anything new. Raises
        :class:`~shared.protocol.errors.ResumeRefused`, and changes nothing then.
        """
        assert self.suspended
        self.log.resume(peer_received)
        self.suspended = False
        self._ack_due = False
        self._heartbeat = Heartbeat(now, self._heartbeat.rtt_s)
        self._streams.set_suspended(False)

    # --- Bytes in ---

    def bytes_received(self, now: float) -> bool:
        """Any inbound byte is a sign of life (PROTOCOL §7.2). True when it ended a silence."""
        if not self._heartbeat.heard(now):
            return False
        self._events.append(PeerHeard())
        return True

    def receive_message(self, message: bytes, now: float) -> None:
        """Takes one message. Raises :class:`~shared.protocol.errors.ProtocolError`: the tunnel must end."""
        if self.closed:
            return
        kind, start, end = message_kind(message), 0, len(message)
        if kind is MessageKind.NUMBERED:
            if self.log.record_received(end, now):
                self._ack_due = True
            start = self._streams.receive_bodies(message, start)
        elif kind is MessageKind.HANDSHAKE:
            raise UnexpectedFrame("handshake frame inside a session")
        while start < end:
            frame = decode_frame(message, start, kind)
            self._receive_frame(frame, now)
            start += limits.FRAME_HEADER_BYTES + len(frame.payload)
            if kind is MessageKind.NUMBERED:
                start = self._streams.receive_bodies(message, start)

    def _receive_frame(self, frame: Frame, now: float) -> None:
        role = _RECEIVED_BY.get(frame.type)
        if role is not None and role is not self.role:
            raise UnexpectedFrame(f"{FrameType(frame.type).name} received by the {self.role.value}")
        if frame.type not in _OF_STREAMS:
            self._count_control_frame(frame, now)
        self._receivers[frame.type](self, frame, now)

    def _count_control_frame(self, frame: Frame, now: float) -> None:
        """An agent trusts its gateway, which many agents share: the gateway alone bounds them."""
        if self.role is TunnelRole.GATEWAY:
            self.control_frames.spend(control_frame_units(len(frame.payload), frame.type), now)

    def _receive_slots(self, frame: Frame, now: float) -> None:
        self._events.append(SlotsReceived(decode_levels(frame.payload)))

    def _receive_state(self, frame: Frame, now: float) -> None:
        self._events.append(StateReceived(AgentState.from_payload(frame.payload)))

    def _receive_demand(self, frame: Frame, now: float) -> None:
        self._events.append(DemandReceived(decode_levels(frame.payload)))

    def _receive_command(self, frame: Frame, now: float) -> None:
        self._events.append(CommandReceived(read_object(frame.payload)))

    def _receive_result(self, frame: Frame, now: float) -> None:
        self._events.append(ResultReceived(read_object(frame.payload)))

    def _receive_drain(self, frame: Frame, now: float) -> None:
        self._events.append(DrainReceived(Drain.from_payload(frame.payload)))

    def _receive_ping(self, frame: Frame, now: float) -> None:
        self._put_link(encode(FrameType.PONG, 0, frame.payload))

    def _receive_pong(self, frame: Frame, now: float) -> None:
        self._heartbeat.handle_pong(decode_offset(frame.payload), now)
        if self._streams.rtt_s != self._heartbeat.rtt_s:
            self._streams.rtt_s = self._heartbeat.rtt_s
            self._events.append(RoundTripMeasured())

    def _receive_ack(self, frame: Frame, now: float) -> None:
        if not self.log.acknowledged(decode_offset(frame.payload)):
            self._count_control_frame(frame, now)

    def _receive_credit(self, frame: Frame, now: float) -> None:
        if self._streams.receive_credit(frame) < limits.CREDIT_STEP_BYTES:
            self._count_control_frame(frame, now)

    def _receive_close(self, frame: Frame, now: float) -> None:
        self.closed = True
        self._events.append(PeerClosed(*decode_reason(frame.payload)))

    _receivers: ClassVar[dict[int, Callable[[Any, Frame, float], None]]] = {
        FrameType.OPEN: lambda self, frame, now: self._streams.receive_open(frame, now),
        FrameType.HEAD: lambda self, frame, now: self._streams.receive_head(frame, now),
        FrameType.DATA: lambda self, frame, now: self._streams.receive_data(frame, now),
        FrameType.END: lambda self, frame, now: self._streams.receive_end(frame, now),
        FrameType.RESET: lambda self, frame, now: self._streams.receive_reset(frame, now),
        FrameType.CREDIT: _receive_credit,
        FrameType.SLOTS: _receive_slots,
        FrameType.STATE: _receive_state,
        FrameType.DEMAND: _receive_demand,
        FrameType.COMMAND: _receive_command,
        FrameType.RESULT: _receive_result,
        FrameType.DRAIN: _receive_drain,
        FrameType.PING: _receive_ping,
        FrameType.PONG: _receive_pong,
        FrameType.ACK: _receive_ack,
        FrameType.CLOSE: _receive_close,
    }

    # --- Time ---

    def next_deadline(self) -> float:
        """When :meth:`handle_deadline` wants to be called next. An ACK that is due already waits for room to
        leave, not for time."""
        deadline = self._heartbeat.next_deadline()
        ack_at = None if self._ack_due else self.log.next_deadline()
        return deadline if ack_at is None else min(deadline, ack_at)

    def handle_deadline(self, now: float) -> None:
        """Sends what is due. Raises :class:`~shared.protocol.errors.HeartbeatLost` after too
        long a silence.
        """
        was_silent = self._heartbeat.silent
        number = self._heartbeat.handle_deadline(now)
        if self._heartbeat.silent and not was_silent:
            self._events.append(PeerSilent())
        if number is not None:
            self._put_link(encode(FrameType.PING, 0, encode_offset(number)))
            self._heartbeat.sent(now)
        ack_at = self.log.next_deadline()
        if ack_at is not None and now >= ack_at:
            self._ack_due = True

    # --- Bytes out ---

    @property
    def wants_to_send(self) -> bool:
        """True when :meth:`data_to_send` may have something, given room."""
        if self.suspended:
            return False
        if self._link or self._ack_due:
            return True
        return not self.closed and (self.log.replaying or bool(self._outbox))

    def data_to_send(self, budget_bytes: int, now: float) -> list[bytes]:
        """Messages to write now, in order: about ``budget_bytes``, at most one turn of a stream more.

        What stays behind can still be overtaken by something more urgent, so the budget is to be small.
        """
        if budget_bytes <= 0 or self.suspended:
            return []
        if self._ack_due:
            self._ack_due = False
            self._link.appendleft(encode(FrameType.ACK, 0, encode_offset(self.log.acknowledge())))
        messages: list[bytes] = []
        if self._link:
            messages = pack(self._link)
            self._link.clear()
        if not self.closed:
            replay = self.log.replaying
            numbered = self.log.take_replay(budget_bytes) if replay else self._new_messages(budget_bytes)
            if numbered:
                self._heartbeat.sent(now)
                messages += numbered
        return messages

    def take_events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        if not self._events:
            return []
        events = self._events[:]
        self._events.clear()
        return events

    # --- Steps ---

    def _new_messages(self, budget_bytes: int) -> list[bytes]:
        room = min(budget_bytes, self.log.room_bytes)
        if room <= 0:
            return []
        messages = self._outbox.take(room)
        for message in messages:
            self.log.record_sent(message)
        self._streams.after_output()
        return messages

    def _check_open(self) -> None:
        if self.closed:
            raise SessionClosed("the session is over")

    def _put_state(self, frame_type: FrameType, payload: bytes) -> None:
        self._check_open()
        self._outbox.put_state(frame_type, payload)

    def _put_link(self, frame: bytes) -> None:
        """Queues a link frame. A peer that floods us with PINGs and does not read gets fewer PONGs."""
        if len(self._link) < limits.LINK_FRAMES:
            self._link.append(frame)
