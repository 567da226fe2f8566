"""The streams of a session: their states, their credit and what the program sends (PROTOCOL §5, §6).

Sans-I/O. Frames from the peer are taken in :mod:`shared.protocol.receiving`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.protocol import limits
from shared.protocol.control_frames import ControlFrameLimiter
from shared.protocol.credit import (
    PeerLimits,
    ReceiveCredit,
    SendCredit,
    SessionReceiveCredit,
    WindowPool,
    WindowSettings,
)
from shared.protocol.errors import (
    ErrorCode,
    HeadTooLarge,
    SendBufferFull,
    SessionClosed,
    StreamHalfClosed,
    TooManyStreams,
)
from shared.protocol.events import Event, StreamClosed, StreamWritable
from shared.protocol.frames import HEADER, FrameType, TunnelRole, encode, encode_reason
from shared.protocol.messages import RequestHead, ResponseHead, Trailers
from shared.protocol.outbox import Outbox, OutStream
from shared.protocol.stream_state import OVER, TRANSITIONS, Half
from shared.speedups import BodyPath, OutPath

_HEAD, _BODY, _ENDED, _RESET = Half.HEAD, Half.BODY, Half.ENDED, Half.RESET
_GATEWAY, _AGENT = TunnelRole.GATEWAY, TunnelRole.AGENT
_OPEN_FRAME, _HEAD_FRAME, _END_FRAME = int(FrameType.OPEN), int(FrameType.HEAD), int(FrameType.END)
_pack_header = HEADER.pack
"""For the path of every frame: a global is found faster than a member of an enumeration."""


@dataclass(slots=True, eq=False)
class OpenStream:
    """Both halves of one open stream."""

    local: Half
    peer: Half
    out: OutStream
    credit: ReceiveCredit
    path: BodyPath | None = None
    """Takes bodies to their client without an event, while it is open (gateway)."""
    upgrade: bool = False
    """OPEN asked for an upgrade (PROTOCOL §5.5)."""


class SessionStreams:
    """All streams of one side of a session.

    Methods that send raise :class:`~shared.protocol.errors.SessionClosed` once the session is over.
    """

    control_frames: ControlFrameLimiter
    """Bounds what the peer may send of them. A gateway carries it over to the next session of a peer."""

    def __init__(self, role: TunnelRole, peer: PeerLimits, windows: WindowSettings) -> None:
        self.role = role
        self.closed = False
        """The session is over."""
        self.suspended = False
        """There is no tunnel just now."""
        self.rtt_s: float | None = None
        """Smoothed round trip of the tunnel, None until measured."""
        self._peer = peer
        self._windows = windows
        self.events: list[Event] = []
        """What has happened and was not yet taken, in order."""
        self._first_rest = windows.initial - windows.floor
        """What a new stream's window is above the floor, where there is enough."""
        self._pool = WindowPool(windows)
        self._send_credit = SendCredit(peer.session_window_bytes)
        self._received = SessionReceiveCredit(windows.session)
        self._streams: dict[int, OpenStream] = {}
        self._owed: dict[int, ReceiveCredit] = {}
        """Windows of closed streams whose last bytes the program still holds."""
        self._last_id = 0
        self._most_streams = min(peer.streams, windows.streams)
        self._outbox = Outbox(self._send_credit)
        if role is TunnelRole.AGENT:  # it has no OPEN that could wait to leave
            self._outbox.last_opened = self._outbox.newest_open = limits.STREAM_ID_MAX

    @property
    def credit_stalls(self) -> int:
        """How often a body that had more to send waited for the peer's credit, and got it."""
        return self._outbox.stalls

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Body bytes received that the program has not taken yet: what credit bounds."""
        return self._received.received - self._received.consumed

    # --- Called by the program ---

    def open_stream(self, head: RequestHead, now: float) -> int:
        """Sends OPEN and returns the stream's number (gateway).

        Fills in ``head.credit``. Raises :class:`~shared.protocol.errors.TooManyStreams`, HeadTooLarge.
        """
        if self.closed:
            raise SessionClosed
        assert self.role is _GATEWAY
        if len(self._streams) + len(self._owed) >= self._most_streams:
            raise TooManyStreams(f"{len(self._streams)} streams are open")
        if self._last_id >= limits.STREAM_ID_MAX:
            raise TooManyStreams("the session has used up its stream numbers")
        stream_id = self._last_id + 1
        head.credit = window = self._first_window()
        payload = head.to_payload()
        if len(payload) > limits.CONTROL_PAYLOAD_BYTES:
            self._pool.give_back(window - self._windows.floor)
            raise HeadTooLarge(f"a request's head of {len(payload)} bytes, quoted")
        self._last_id = stream_id
        out = OutStream(stream_id, SendCredit(self._peer.stream_window_bytes), head.upgrade)
        self._streams[stream_id] = OpenStream(
            _BODY, _HEAD, out, ReceiveCredit(window, now), None, head.upgrade
        )
        outbox = self._outbox
        outbox.frames.append(_pack_header(_OPEN_FRAME, stream_id, len(payload)) + payload)
        outbox.newest_open = stream_id
        self.control_frames.earn(len(self._streams))
        return stream_id

    def send_head(
        self, stream_id: int, head: ResponseHead, body: bytes = b"", trailers: Trailers | None = None
    ) -> None:
        """Sends HEAD (agent); where there are ``trailers`` the whole response, of which ``body`` is all.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed` when our half is over.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.local is not _HEAD or self.closed:
            stream = self._advance_local(stream_id, FrameType.HEAD)
        stream.local = _BODY
        if stream.peer is not _RESET:
            payload, out = head.to_payload(), stream.out
            assert len(payload) <= limits.CONTROL_PAYLOAD_BYTES, len(payload)
            out.head = _pack_header(_HEAD_FRAME, stream_id, len(payload)) + payload
            if body:
                out.chunks.append(body)
                out.pending_bytes = len(body)
            if trailers is None:
                self._outbox.queue(out)
        if trailers is not None:
            self._end(stream_id, stream, trailers)

    def send_data(self, stream_id: int, data: bytes) -> bool:
        """Takes body bytes, all of them. Returns False when the writer must wait for ``StreamWritable``.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed` when our half is over, and
        :class:`~shared.protocol.errors.SendBufferFull` when the writer did not wait.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.local is not _BODY or self.closed:
            stream = self._advance_local(stream_id, FrameType.DATA)
        out = stream.out
        if stream.peer is _RESET or not data:
            return True
        if out.waiting:
            raise SendBufferFull(f"stream {stream_id} has {out.pending_bytes} bytes waiting")
        out.chunks.append(data)
        pending_bytes = out.pending_bytes = out.pending_bytes + len(data)
        if pending_bytes > limits.SEND_BUFFER_BYTES:
            out.waiting = pending_bytes > self._send_buffer(out)
        if not out.queued:
            self._outbox.queue(out)
        return not out.waiting

    def send_whole(self, stream_id: int, pieces: Sequence[bytes]) -> None:
        """Sends a whole body that the send buffer holds, and ends our half (gateway): :meth:`send_data` of
        each piece and :meth:`end`, whose errors it raises."""
        assert self.role is _GATEWAY
        stream, size_bytes = self._streams.get(stream_id), sum(map(len, pieces))
        if (
            stream is None
            or stream.local is not _BODY
            or stream.peer is _RESET
            or self.closed
            or stream.out.pending_bytes
            or size_bytes > limits.SEND_BUFFER_BYTES
        ):
            for piece in pieces:
                self.send_data(stream_id, piece)
            self.end(stream_id)
            return
        out = stream.out
        if size_bytes:
            out.chunks += pieces
            out.pending_bytes = size_bytes
        stream.local = _ENDED
        out.end = _pack_header(_END_FRAME, stream_id, 0)
        if not out.queued:
            self._outbox.queue(out)

    def end(self, stream_id: int, trailers: Trailers | None = None) -> None:
        """Ends our half in order, once everything buffered has left.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed` when it is over already.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.local is not _BODY or self.closed:
            stream = self._advance_local(stream_id, FrameType.END)
        self._end(stream_id, stream, trailers)

    def reset(self, stream_id: int, code: ErrorCode, reason: str = "") -> bool:
        """Gives the stream up: drops what has not left and what has come. Harmless when it is closed.

        Returns False when that changed nothing, so that there is nothing to send.
        """
        if self.closed:
            return False
        stream = self._streams.get(stream_id)
        if stream is None:
            owed = self._owed.get(stream_id)
            if owed is not None:
                self._discard(stream_id, owed)
            return owed is not None
        if stream.local is _RESET:
            return False
        self._drop_local(stream_id, stream, code, reason)
        self._discard(stream_id, stream.credit)
        self._close_if_over(stream_id, stream)
        return True

    def set_path(self, stream_id: int, path: BodyPath | None) -> None:
        """Bodies of an open stream take ``path`` while it is open. Harmless when the stream is closed."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.path = path
            if path is not None:
                path.step_bytes = stream.credit.step_bytes

    def consume(self, stream_id: int, size_bytes: int) -> bool:
        """Counts bytes as taken for good by their consumer. Returns True, which is seldom, when :meth:`grant`
        is due: so a caller need not look at the clock for every token.

        Harmless for streams that were reset. After the event ``StreamClosed`` the program must still count
        the bytes it holds as consumed, or reset the stream: until then its window is not given back.
        """
        stream = self._streams.get(stream_id)
        credit = stream.credit if stream is not None else self._owed.get(stream_id)
        if credit is None:
            return False
        held_bytes = credit.received - credit.consumed
        if size_bytes > held_bytes:
            size_bytes = held_bytes
        credit.consumed += size_bytes
        session = self._received
        session.consumed += size_bytes
        if stream is None:
            if size_bytes == held_bytes and self._owed.pop(stream_id, None) is not None:
                self._pool.free += credit.window - self._windows.floor  # as _settle() does
        else:
            if stream.path is not None:
                stream.path.step_bytes = credit.step_bytes
            if credit.consumed >= credit.grant_at and stream.peer not in OVER:
                return True
        return session.consumed >= session.grant_at

    def grant(self, stream_id: int, now: float) -> None:
        """Grants credit for what was consumed (PROTOCOL §6.2), to the session and to a body that goes on."""
        self._grant_session()
        stream = self._streams.get(stream_id)
        if stream is not None and stream.peer not in OVER:
            offset = stream.credit.grant(self._pool, self.rtt_s, now)
            if offset is not None:
                self._outbox.credits[stream_id] = offset
                if stream.path is not None:
                    stream.path.step_bytes = stream.credit.step_bytes

    def out_path(self, stream_id: int, endpoint: Any) -> OutPath | None:
        """The way of a body's whole events past :meth:`send_data`, which tells ``endpoint.wake`` of them. It
        gives what that would; None when the stream is closed."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        states = (_BODY, _RESET)
        return OutPath(stream, self, endpoint, self._outbox.interactive, states, limits.SEND_BUFFER_BYTES)

    # --- Steps ---

    def _end(self, stream_id: int, stream: OpenStream, trailers: Trailers | None) -> None:
        stream.local = _ENDED
        if stream.peer is _RESET:
            self.reset(stream_id, ErrorCode.CANCELLED)
            return
        payload, out, outbox = b"" if trailers is None else trailers.to_payload(), stream.out, self._outbox
        assert len(payload) <= limits.CONTROL_PAYLOAD_BYTES, len(payload)
        out.end = _pack_header(_END_FRAME, stream_id, len(payload)) + payload
        if outbox.progress:
            outbox.progress.pop(stream_id, None)
        if not out.queued:
            outbox.queue(out)
        credit = stream.credit
        if credit.received != credit.consumed and self.role is _AGENT:
            self._discard(stream_id, credit)

    def _set_suspended(self, suspended: bool) -> None:
        """Notes that the tunnel is gone, or that there is one again.

        Without a tunnel an agent's engines work on as far as the gateway's credit goes, which is memory that
        the gateway has set aside for them (PROTOCOL §7.4).
        """
        self.suspended = suspended
        for stream_id, stream in self._streams.items():
            out = stream.out
            if out.waiting and out.pending_bytes <= self._send_buffer(out):
                out.waiting = False
                self.events.append(StreamWritable(stream_id))

    def _take_output_events(self) -> None:
        """Makes the events of what has just left the outbox."""
        outbox = self._outbox
        if outbox.drained:
            self.events += [StreamWritable(stream_id) for stream_id in outbox.drained]
            outbox.drained.clear()
        if outbox.ended:
            for stream_id in outbox.ended:
                stream = self._streams[stream_id]
                if stream.peer in OVER:
                    self._close(stream_id, stream)
            outbox.ended.clear()

    def _send_buffer(self, out: OutStream) -> int:
        """How much of a body is taken before its writer must wait."""
        if self.suspended and self.role is TunnelRole.AGENT:
            return max(limits.SEND_BUFFER_BYTES, out.credit.available)
        return limits.SEND_BUFFER_BYTES

    def _advance_local(self, stream_id: int, step: FrameType) -> OpenStream:
        """Moves our half on. Raises SessionClosed, and :class:`StreamHalfClosed` when the half is over."""
        if self.closed:
            raise SessionClosed
        stream = self._streams.get(stream_id)
        if stream is None or stream.local in OVER:
            raise StreamHalfClosed(f"our half of stream {stream_id} is over")
        following = TRANSITIONS.get((stream.local, step))
        assert following is not None, f"{step.name} before HEAD"
        stream.local = following
        return stream

    def _drop_local(self, stream_id: int, stream: OpenStream, code: ErrorCode, reason: str) -> None:
        self._outbox.drop(stream.out)
        stream.local = TRANSITIONS[stream.local, FrameType.RESET]
        self._outbox.frames.append(encode(FrameType.RESET, stream_id, encode_reason(code, reason)))

    def _close_if_over(self, stream_id: int, stream: OpenStream) -> None:
        if stream.local in OVER and stream.peer in OVER and stream.out.end is None:
            self._close(stream_id, stream)

    def _close(self, stream_id: int, stream: OpenStream) -> None:
        """Both halves are over, and nothing of ours has yet to leave."""
        del self._streams[stream_id]
        if self._outbox.credits:
            self._outbox.credits.pop(stream_id, None)  # all else has left or was dropped
        self.events.append(StreamClosed(stream_id))
        credit = stream.credit
        if credit.consumed == credit.received:
            self._pool.free += credit.window - self._windows.floor
        else:
            self._owed[stream_id] = credit

    def _settle(self, stream_id: int, credit: ReceiveCredit) -> None:
        """Gives a closed stream's window back once the program holds none of its bytes."""
        if credit.consumed == credit.received and self._owed.pop(stream_id, None) is not None:
            self._pool.free += credit.window - self._windows.floor

    def _discard(self, stream_id: int, credit: ReceiveCredit) -> None:
        """Count everything that came as consumed, because it will not be taken."""
        size_bytes = credit.received - credit.consumed
        credit.consume(size_bytes)
        self._received.consume(size_bytes)
        self._grant_session()
        self._settle(stream_id, credit)

    def _grant_session(self) -> None:
        offset = self._received.grant()
        if offset is not None:
            self._outbox.credits[0] = offset

    def _first_window(self) -> int:
        """The floor, and what is to be had of the rest."""
        pool = self._pool
        borrow = pool.borrow_first if pool.free < pool.scarce else pool.borrow
        return self._windows.floor + borrow(self._first_rest)
