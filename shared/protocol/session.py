"""A session, sans I/O: bytes and ``now`` in, messages and events out (PROTOCOL §5 to §7).

The program around it moves bytes: it gives every message received to :meth:`ProtocolSession.receive_message`,
calls :meth:`ProtocolSession.handle_deadline` when :meth:`ProtocolSession.next_deadline` has come, writes what
:meth:`ProtocolSession.data_to_send` returns, and after each of these handles what
:meth:`ProtocolSession.take_events` returns.

Times are seconds of one monotonic clock. Nothing here blocks, waits or knows of sockets.
"""

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, ClassVar

import orjson

from shared.protocol import limits
from shared.protocol.contents import CONTENT
from shared.protocol.control_frames import ControlFrameLimiter, control_frame_units
from shared.protocol.credit import OWN_WINDOWS, PeerLimits, WindowSettings
from shared.protocol.demand import Demand, encode_demand
from shared.protocol.errors import ErrorCode, SessionClosed, UnexpectedFrame
from shared.protocol.events import ControlReceived, Event, PeerClosed, TunnelEvent
from shared.protocol.frames import (
    KINDS,
    RULES,
    RULES_FOR_CUTTING,
    FrameFields,
    FrameType,
    MessageKind,
    TunnelRole,
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
    encode_levels,
)
from shared.protocol.numbering import MessageLog
from shared.protocol.others import Others
from shared.protocol.outbox import in_messages
from shared.protocol.peers import Peers
from shared.protocol.progress import Progress
from shared.protocol.receiving import Later, ReceivingStreams
from shared.protocol.stream_state import Half
from shared.speedups import cut_frames

_NUMBERED, _DATA = MessageKind.NUMBERED, int(FrameType.DATA)
"""For the path of every message: a global is found faster than a member of an enumeration."""


class ProtocolSession(ReceivingStreams):
    """One end of a session: its streams, its control frames, and the messages that carry both.

    Methods that send raise :class:`~shared.protocol.errors.SessionClosed` once the session is over.
    """

    def __init__(
        self, role: TunnelRole, peer: PeerLimits, now: float, windows: WindowSettings | None = None
    ) -> None:
        super().__init__(role, peer, windows or OWN_WINDOWS[role])
        at_gateway = role is TunnelRole.GATEWAY
        self.log = MessageLog(limits.GATEWAY_ACK_DELAY_S if at_gateway else limits.ACK_DELAY_S)
        self.heartbeat = Heartbeat(now, seldom=at_gateway)
        self.control_frames = ControlFrameLimiter(now)
        taken = limits.PROGRESS_UNITS_TAKEN, limits.PROGRESS_UNITS_TAKEN_PER_S
        sent = limits.PROGRESS_UNITS, limits.PROGRESS_UNITS_PER_S
        self.progress_frames = ControlFrameLimiter(now, *(taken if at_gateway else sent))
        self._link: deque[bytes] = deque()
        """Link frames to send, ahead of everything; bounded, see :meth:`_put_link`."""
        self._ack_due = False
        rules = RULES_FOR_CUTTING[role]
        self._numbered_rules, self._link_rules = rules[_NUMBERED], rules[MessageKind.LINK]
        self.timer_at = inf
        """When the program calls :meth:`handle_deadline` next; the program sets it."""
        self.deadline_nearer = True
        """:meth:`next_deadline` has come nearer than that; the program sets it to False."""

    # --- Called by the program ---

    def send_progress(self, stream_id: int, progress: Progress, now: float) -> bool:
        """Sends PROGRESS in place of one that has not left (agent); only where ``progress`` is agreed on.

        Returns False, and changes nothing, when the session has sent too much of it of late: try again later,
        with what is true then. Raises :class:`~shared.protocol.errors.StreamHalfClosed` when our half is
        over.
        """
        stream = self._advance_local(stream_id, FrameType.PROGRESS)
        if stream.peer is Half.RESET:
            return True
        frame = encode(FrameType.PROGRESS, stream_id, progress.to_payload())
        outbox, header_bytes = self._outbox, limits.FRAME_HEADER_BYTES
        units = control_frame_units(len(frame) - header_bytes)
        if replaced := outbox.progress.get(stream_id):
            units -= control_frame_units(len(replaced) - header_bytes)
        if not self.progress_frames.affords(units, now):
            return False
        outbox.progress[stream_id] = frame
        return True

    def send_state(self, state: AgentState) -> None:
        self._put_state(FrameType.STATE, state.to_payload())

    def send_slots(self, levels: Mapping[str, int]) -> None:
        self._put_state(FrameType.SLOTS, encode_levels(levels))

    def send_demand(self, demands: Mapping[str, Demand]) -> None:
        """Only to an agent that said it knows DEMAND (PROTOCOL §8.4)."""
        self._put_state(FrameType.DEMAND, encode_demand(demands))

    def send_peers(self, peers: Peers) -> None:
        """Only to an agent that said it knows PEERS (PROTOCOL §8.4)."""
        self._put_state(FrameType.PEERS, peers.to_payload())

    def send_others(self, others: Others) -> int:
        """Only to a gateway that agreed on OTHERS (PROTOCOL §8.5), and not while :attr:`others_wait`. Returns
        the bytes of the payload."""
        assert not self.others_wait
        payload = others.to_payload()
        self._put_state(FrameType.OTHERS, payload)
        return len(payload)

    @property
    def others_wait(self) -> bool:
        """What was given to :meth:`send_others` last has not left."""
        return self._outbox.holds_state(FrameType.OTHERS)

    def send_drain(self, drain: Drain) -> None:
        self._put_state(FrameType.DRAIN, drain.to_payload())

    def send_command(self, command: Mapping[str, Any]) -> None:
        """Sends COMMAND from a gateway, RESULT from an agent.

        Raises :class:`~shared.protocol.errors.LocalError` when too many wait.
        """
        if self.closed:
            raise SessionClosed
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
        return float("inf") if self.suspended else self.heartbeat.quiet_s(now)

    def probe(self, now: float) -> None:
        """Asks whether the peer is there: it is heard within a round trip, or silent soon (PROTOCOL §7.2)."""
        if not self.suspended and not self.closed:
            self._put_link(encode(FrameType.PING, 0, encode_offset(self.heartbeat.ping(now))))
            self.heartbeat.sent(now)
            self.deadline_nearer = True

    # --- Tunnels come and go (PROTOCOL §7.4) ---

    def suspend(self) -> None:
        """The tunnel is gone. The program may go on sending; it leaves when there is a tunnel again."""
        self._link.clear()
        self._ack_due = False
        self._set_suspended(True)

    def resume(self, peer_received: int, now: float) -> None:
        """A new tunnel is up, on which the peer said how many messages it has received.

        What it lacks is sent again before anything new. Raises
        :class:`~shared.protocol.errors.ResumeRefused`, and changes nothing then.
        """
        assert self.suspended
        self.log.resume(peer_received)
        self._ack_due = False
        self.heartbeat = Heartbeat(now, self.rtt_s, seldom=self.role is TunnelRole.GATEWAY)
        self.deadline_nearer = True
        self._set_suspended(False)

    # --- Bytes in ---

    def bytes_received(self, now: float) -> bool:
        """Any inbound byte is a sign of life (PROTOCOL §7.2). True when it ended a silence."""
        if self.heartbeat.silent:
            self.events.append(TunnelEvent.PEER_HEARD)
        return self.heartbeat.heard(now)

    def receive_message(self, message: bytes, now: float, later: Later = None) -> bool:
        """Takes one message. True when it may have given us something to send, or brought the next deadline
        nearer: nearly every message carries bodies only, and does neither.

        What of it goes straight to clients is written, or, where there is a list ``later``, once that list is
        given to :meth:`write_bodies`, as has to be done in the same turn of the event loop.

        Raises :class:`~shared.protocol.errors.ProtocolError`: the tunnel must end.
        """
        if self.closed:
            return False
        start, size_bytes = 0, len(message)
        kind = KINDS.get(message[0]) if 0 < size_bytes <= limits.MESSAGE_BYTES else None
        if kind is _NUMBERED:
            if self.log.ack_at is None and now + self.log.ack_delay_s < self.timer_at:
                self.deadline_nearer = True
            if self.log.record_received(size_bytes, now):
                self._ack_due = True
            if message[0] == _DATA:
                start = self._receive_bodies(message, 0, later)
                if start == size_bytes:
                    return self._ack_due or self.deadline_nearer
        elif kind is not MessageKind.LINK:
            message_kind(message)  # says what is wrong
            raise UnexpectedFrame("handshake frame inside a session")
        self._receive_frames(message, start, kind, now, later)
        return self.deadline_nearer or self.wants_to_send

    def _receive_frames(
        self, message: bytes, start: int, kind: MessageKind, now: float, later: Later
    ) -> None:
        """Takes the frames of a message from ``start`` on.

        Nearly all are cut together, or taken by :meth:`_receive_bodies`; :meth:`_receive_single` takes any
        other, and finds what is wrong with it.
        """
        rules = self._numbered_rules if kind is _NUMBERED else self._link_rules
        receivers, end = self._receivers, len(message)
        while start < end:
            frames, start = cut_frames(message, start, rules, tuple, _DATA)
            for frame in frames:
                receivers[frame[0]](self, frame, now)
            if start < end:
                begin = start
                if message[start] == _DATA and kind is _NUMBERED:
                    start = self._receive_bodies(message, start, later)
                if start == begin:
                    start = self._receive_single(message, start, kind, now)

    def _receive_single(self, message: bytes, start: int, kind: MessageKind, now: float) -> int:
        """Takes one frame; returns where it ends."""
        frame = decode_frame(message, start, kind)
        if RULES[frame.type].sender is self.role:
            raise UnexpectedFrame(f"{FrameType(frame.type).name} received by the {self.role.value}")
        self._receivers[frame.type](self, frame, now)
        return start + limits.FRAME_HEADER_BYTES + len(frame.payload)

    def _count_control_frame(self, frame: FrameFields, now: float) -> None:
        """Only gateways bound control frames: many agents share one, while an agent trusts its gateway.
        CREDIT and ACK count only where they say nothing new (PROTOCOL §2.6)."""
        if self.role is TunnelRole.GATEWAY:
            frame_type, _, payload = frame
            self.control_frames.spend(control_frame_units(len(payload), frame_type), now)

    def _receive_control(self, frame: FrameFields, now: float) -> None:
        self._count_control_frame(frame, now)
        frame_type, _, payload = frame
        self.events.append(ControlReceived(frame_type, CONTENT[frame_type](payload)))

    def _receive_ping(self, frame: FrameFields, now: float) -> None:
        self._count_control_frame(frame, now)
        self._put_link(encode(FrameType.PONG, 0, frame[2]))

    def _receive_pong(self, frame: FrameFields, now: float) -> None:
        self._count_control_frame(frame, now)
        self.heartbeat.handle_pong(decode_offset(frame[2]), now)
        if self.rtt_s != self.heartbeat.rtt_s:
            self.rtt_s = self.heartbeat.rtt_s
            self.events.append(TunnelEvent.ROUND_TRIP_MEASURED)

    def _receive_ack(self, frame: FrameFields, now: float) -> None:
        if not self.log.acknowledged(decode_offset(frame[2])):
            self._count_control_frame(frame, now)

    def _receive_credit(self, frame: FrameFields, now: float) -> None:
        _, stream_id, payload = frame
        if self._credit_stream(stream_id, decode_offset(payload)) < limits.CREDIT_STEP_BYTES:
            self._count_control_frame(frame, now)

    def _receive_close(self, frame: FrameFields, now: float) -> None:
        self._count_control_frame(frame, now)
        self.closed = True
        self.events.append(PeerClosed(*decode_reason(frame[2])))

    _receivers: ClassVar[dict[int, Callable[[Any, FrameFields, float], None]]] = {
        FrameType.OPEN: ReceivingStreams._receive_open,
        FrameType.HEAD: ReceivingStreams._receive_head,
        FrameType.DATA: ReceivingStreams._receive_data,
        FrameType.END: ReceivingStreams._receive_end,
        FrameType.RESET: ReceivingStreams._receive_reset,
        FrameType.PROGRESS: ReceivingStreams._receive_progress,
        FrameType.CREDIT: _receive_credit,
        FrameType.PING: _receive_ping,
        FrameType.PONG: _receive_pong,
        FrameType.ACK: _receive_ack,
        FrameType.CLOSE: _receive_close,
        **dict.fromkeys(CONTENT, _receive_control),
    }

    # --- Time ---

    def next_deadline(self) -> float:
        """When :meth:`handle_deadline` must be called next.

        An ACK that is due already is not counted: it waits for room to leave, and no longer for time.
        """
        deadline = self.heartbeat.next_deadline()
        ack_at = None if self._ack_due else self.log.ack_at
        return deadline if ack_at is None else min(deadline, ack_at)

    def handle_deadline(self, now: float) -> None:
        """Sends what is due. Raises :class:`~shared.protocol.errors.HeartbeatLost` after a long silence."""
        was_silent = self.heartbeat.silent
        number = self.heartbeat.handle_deadline(now)
        if self.heartbeat.silent and not was_silent:
            self.events.append(TunnelEvent.PEER_SILENT)
        if number is not None:
            self._put_link(encode(FrameType.PING, 0, encode_offset(number)))
            self.heartbeat.sent(now)
        ack_at = self.log.ack_at
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
        return not self.closed and bool(self.log.replaying or self._outbox)

    def data_to_send(self, budget_bytes: int, now: float) -> list[bytes]:
        """Messages to write now, in order: about ``budget_bytes``, at most one turn of a stream more.

        What stays behind can still be overtaken by something more urgent, so callers keep the budget small.
        Nothing stays behind that could leave now when all of this is less than the budget.
        """
        if budget_bytes <= 0 or self.suspended:
            return []
        messages = self._take_link() if self._link or self._ack_due else []
        if self.closed:
            return messages
        numbered: list[bytes] = []
        log, outbox = self.log, self._outbox
        if log.replaying:
            numbered = log.take_replay(budget_bytes)
            budget_bytes -= sum(map(len, numbered))
        room_bytes = limits.RETAINED_BYTES - log.retained_bytes
        if room_bytes > budget_bytes:
            room_bytes = budget_bytes
        if room_bytes > 0 and (new := outbox.take(room_bytes)):
            log.record_sent(new)
            numbered = numbered + new if numbered else new
            if outbox.ended or outbox.drained:
                self._take_output_events()
        if numbered and self.heartbeat.awaiting_at is None:
            self.heartbeat.awaiting_at = now  # what sent() does
            if now + limits.SILENT_AFTER_S < self.timer_at:
                self.deadline_nearer = True
        return messages + numbered if messages else numbered

    def take_events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        events, self.events = self.events, []
        return events

    # --- Steps ---

    def _take_link(self) -> list[bytes]:
        """Messages with all link frames, and an ACK with them, though it may not be due: it costs nothing."""
        if self.log.ack_at is not None:
            self._ack_due = False
            self._link.appendleft(encode(FrameType.ACK, 0, encode_offset(self.log.acknowledge())))
        messages = in_messages(b"".join(self._link))
        self._link.clear()
        return messages

    def _put_state(self, frame_type: FrameType, payload: bytes) -> None:
        if self.closed:
            raise SessionClosed
        self._outbox.put_state(frame_type, payload)

    def _put_link(self, frame: bytes) -> None:
        """Queues a link frame. A peer that floods us with PINGs and does not read gets fewer PONGs."""
        if len(self._link) < limits.LINK_FRAMES:
            self._link.append(frame)
