"""The streams of a session: their states, their credit and what they send (PROTOCOL §5, §6). Sans-I/O."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum

from shared.protocol import limits
from shared.protocol.credit import (
    AGENT_WINDOWS,
    GATEWAY_WINDOWS,
    ReceiveCredit,
    SendCredit,
    SessionReceiveCredit,
    WindowPool,
    WindowSettings,
)
from shared.protocol.errors import (
    ErrorCode,
    FlowControlViolated,
    HeadTooLarge,
    SendBufferFull,
    StreamHalfClosed,
    StreamLimitExceeded,
    StreamStateError,
    TooManyStreams,
)
from shared.protocol.events import (
    DataReceived,
    Event,
    HeadReceived,
    StreamEnded,
    StreamOpened,
    StreamReset,
    StreamWritable,
)
from shared.protocol.events import StreamClosed as StreamClosedEvent
from shared.protocol.frames import (
    HEADER,
    Frame,
    FrameType,
    decode_offset,
    decode_reason,
    encode,
    encode_reason,
)
from shared.protocol.messages import RequestHead, ResponseHead, Trailers
from shared.protocol.outbox import Outbox, OutStream
from shared.protocol.stream_state import OVER, TRANSITIONS, Half, HalfInput


class TunnelRole(Enum):
    """Which end of the tunnel this is."""

    GATEWAY = "gateway"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What one side tells the other it can hold (PROTOCOL §8.4, ``limits``)."""

    streams: int
    stream_window_bytes: int
    """What a body may send unasked; a gateway says more in each OPEN."""
    session_window_bytes: int

    def to_mapping(self) -> dict[str, int]:
        """As HELLO and WELCOME carry it."""
        return asdict(self)


def read_limits(role: TunnelRole, said: Mapping[str, int]) -> PeerLimits:
    """The limits the peer of ``role`` announced. What it left out is what this version would announce.

    No peer is allowed more streams than we are ready to hold ourselves.
    """
    usual = own_limits(OWN_WINDOWS[TunnelRole.AGENT if role is TunnelRole.GATEWAY else TunnelRole.GATEWAY])
    return PeerLimits(
        min(said.get("streams", usual.streams), limits.OPEN_STREAMS),
        min(said.get("stream_window_bytes", usual.stream_window_bytes), limits.CREDIT_MAX),
        min(said.get("session_window_bytes", usual.session_window_bytes), limits.CREDIT_MAX),
    )


OWN_WINDOWS = {TunnelRole.GATEWAY: GATEWAY_WINDOWS, TunnelRole.AGENT: AGENT_WINDOWS}


def own_limits(windows: WindowSettings) -> PeerLimits:
    """What to tell the peer about windows like these."""
    return PeerLimits(windows.streams, windows.floor, windows.session)


_DATA = int(FrameType.DATA)
_BODY, _ENDED, _RESET = Half.BODY, Half.ENDED, Half.RESET
"""Where there is no time to look them up: looking into an enumeration costs more than a dict."""


class _Stream:
    """Both halves of one open stream."""

    __slots__ = ("credit", "local", "out", "peer")

    def __init__(self, local: Half, peer: Half, out: OutStream, credit: ReceiveCredit) -> None:
        self.local = local
        self.peer = peer
        self.out = out
        self.credit = credit


class StreamTable:
    """All streams of one side of a session.

    Methods that take a frame are called for frames received and raise
    :class:`~shared.protocol.errors.ProtocolError`; the others are what the program asks for.
    """

    def __init__(
        self, role: TunnelRole, peer: PeerLimits, windows: WindowSettings, events: list[Event]
    ) -> None:
        self._role = role
        self._peer = peer
        self._windows = windows
        self._events = events
        self._pool = WindowPool(windows)
        self._send_credit = SendCredit(peer.session_window_bytes)
        self._receive_credit = SessionReceiveCredit(windows.session)
        self._streams: dict[int, _Stream] = {}
        self._owed: dict[int, ReceiveCredit] = {}
        """Windows of closed streams whose last bytes the program still holds."""
        self._last_id = 0
        self._suspended = False
        self.outbox = Outbox(self._send_credit)
        self.rtt_s: float | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Body bytes that came and that the program has not taken yet."""
        return self._receive_credit.received - self._receive_credit.consumed

    # --- What the program asks for ---

    def open(self, head: RequestHead, now: float) -> int:
        """Sends OPEN and returns the stream's number. Raises :class:`TooManyStreams`, HeadTooLarge."""
        assert self._role is TunnelRole.GATEWAY
        if len(self._streams) + len(self._owed) >= min(self._peer.streams, self._windows.streams):
            raise TooManyStreams(f"{len(self._streams)} streams are open")
        if self._last_id >= limits.STREAM_ID_MAX:
            raise TooManyStreams("the session has used up its stream numbers")
        stream_id = self._last_id + 1
        window = self._first_window()
        head.credit = window
        payload = head.to_payload()
        if len(payload) > limits.CONTROL_PAYLOAD_BYTES:
            self._pool.give_back(window - self._windows.floor)
            raise HeadTooLarge(f"a request's head of {len(payload)} bytes, quoted")
        frame = encode(FrameType.OPEN, stream_id, payload)
        self._last_id = stream_id
        out = OutStream(stream_id, SendCredit(self._peer.stream_window_bytes), interactive=False)
        credit = ReceiveCredit(window, granted=window, now=now)
        self._streams[stream_id] = _Stream(Half.BODY, Half.HEAD, out, credit)
        self.outbox.put_frame(frame)
        return stream_id

    def send_head(self, stream_id: int, head: ResponseHead) -> None:
        """Sends HEAD. Raises :class:`StreamHalfClosed`."""
        stream = self._local(stream_id, HalfInput.HEAD)
        if stream.peer is not Half.RESET:
            stream.out.head = encode(FrameType.HEAD, stream_id, head.to_payload())
            self.outbox.queue(stream.out)

    def send_data(self, stream_id: int, data: bytes) -> bool:
        """Takes all of ``data``. False: wait for ``StreamWritable`` before the next.

        Raises :class:`StreamHalfClosed`, or :class:`SendBufferFull` when the writer did not wait.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.local is not _BODY:
            stream = self._local(stream_id, HalfInput.DATA)
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
            self.outbox.queue(out)
        return not out.waiting

    def end(self, stream_id: int, trailers: Trailers | None) -> None:
        """Ends our half once everything buffered has left. Raises :class:`StreamHalfClosed`."""
        stream = self._local(stream_id, HalfInput.END)
        if stream.peer is Half.RESET:
            self.reset(stream_id, ErrorCode.CANCELLED, "")
            return
        payload = b"" if trailers is None else trailers.to_payload()
        stream.out.end = encode(FrameType.END, stream_id, payload)
        self.outbox.queue(stream.out)
        if self._role is TunnelRole.AGENT:
            self._discard(stream_id, stream.credit)

    def reset(self, stream_id: int, code: ErrorCode, reason: str) -> bool:
        """Gives the stream up: forgets what has not left, drops what has come. Harmless when closed. False:
        nothing has changed."""
        stream = self._streams.get(stream_id)
        if stream is None:
            owed = self._owed.get(stream_id)
            if owed is not None:
                self._discard(stream_id, owed)
            return owed is not None
        if stream.local is Half.RESET:
            return False
        self._drop_local(stream_id, stream, code, reason)
        self._discard(stream_id, stream.credit)
        self._close_if_over(stream_id, stream)
        return True

    def consume(self, stream_id: int, size_bytes: int) -> bool:
        """Counts bytes as taken for good. True when a :meth:`grant` is due. Harmless after a reset."""
        stream = self._streams.get(stream_id)
        credit = stream.credit if stream is not None else self._owed.get(stream_id)
        if credit is None:
            return False
        held_bytes = credit.received - credit.consumed
        if size_bytes > held_bytes:
            size_bytes = held_bytes
        credit.consumed += size_bytes
        session = self._receive_credit
        session.consumed += size_bytes
        if stream is None:
            self._settle(stream_id, credit)
        body_due = credit.consumed >= credit.grant_at and stream is not None and stream.peer not in OVER
        return body_due or session.consumed >= session.grant_at

    def grant(self, stream_id: int, now: float) -> None:
        """Grants credit for what was consumed (PROTOCOL §6.2), to the session and to a body that goes on."""
        self._grant_session()
        stream = self._streams.get(stream_id)
        if stream is not None and stream.peer not in OVER:
            offset = stream.credit.grant(self._pool, self.rtt_s, now)
            if offset is not None:
                self.outbox.put_credit(stream_id, offset)

    # --- Frames received ---

    def receive_open(self, frame: Frame, now: float) -> None:
        if frame.stream_id <= self._last_id:
            raise StreamStateError(f"stream {frame.stream_id} opened after stream {self._last_id}")
        if len(self._streams) >= self._windows.streams:
            raise StreamLimitExceeded(f"more than {self._windows.streams} streams")
        if self.outbox.frames_waiting > 2 * self._windows.streams + limits.COMMANDS:
            # A stream of which the peer has not read the end still counts among those it has open.
            raise StreamLimitExceeded("streams are opened and their ends not read")
        head = RequestHead.from_payload(frame.payload)
        if head.credit > limits.CREDIT_MAX:
            raise FlowControlViolated(f"credit up to offset {head.credit}")
        self._last_id = frame.stream_id
        out = OutStream(frame.stream_id, SendCredit(head.credit), interactive=head.streaming)
        window = self._first_window()
        credit = ReceiveCredit(window, granted=window, now=now)
        self._streams[frame.stream_id] = _Stream(Half.HEAD, Half.BODY, out, credit)
        if window > self._windows.floor:
            self.outbox.put_credit(frame.stream_id, window)
        self._events.append(StreamOpened(frame.stream_id, head))

    def receive_head(self, frame: Frame, now: float) -> None:
        stream = self._receiving(frame.stream_id, HalfInput.HEAD)
        head = ResponseHead.from_payload(frame.payload)
        if stream.local is not Half.RESET:
            self._events.append(HeadReceived(frame.stream_id, head))

    def receive_bodies(self, message: bytes, start: int) -> int:
        """Takes the DATA frames that follow one another from ``start`` on; gives where they end.

        The way of nearly every frame, with nothing called on it. It stops before the first that is not DATA
        within its size and credit, of a stream that expects it and whose program wants it. That one is for
        :meth:`receive_data`, which tells what is wrong with it.
        """
        streams, happened, unpack = self._streams, self._events.append, HEADER.unpack_from
        a_tuple = tuple.__new__  # what DataReceived does, by way of a function of Python
        unwanted = _ENDED if self._role is TunnelRole.AGENT else _RESET
        session = self._receive_credit
        header_bytes, most_bytes = limits.FRAME_HEADER_BYTES, limits.DATA_PAYLOAD_BYTES
        while start + header_bytes < len(message):
            frame_type, stream_id, length = unpack(message, start)
            begin = start + header_bytes
            end = begin + length
            if frame_type != _DATA or not begin < end <= len(message) or length > most_bytes:
                break
            stream = streams.get(stream_id)
            if stream is None or stream.peer is not _BODY:
                break
            local, credit = stream.local, stream.credit
            if local is _RESET or local is unwanted:
                break
            received, in_session = credit.received + length, session.received + length
            if received > credit.granted or in_session > session.granted:
                break
            credit.received, session.received = received, in_session
            happened(a_tuple(DataReceived, (stream_id, message[begin:end])))
            start = end
        return start

    def receive_data(self, frame: Frame, now: float) -> None:
        stream = self._receiving(frame.stream_id, HalfInput.DATA)
        size_bytes = len(frame.payload)
        self._receive_credit.receive(size_bytes)
        stream.credit.receive(size_bytes)
        if stream.local is Half.RESET or (self._role is TunnelRole.AGENT and stream.local is Half.ENDED):
            self._discard(frame.stream_id, stream.credit)
        else:
            self._events.append(DataReceived(frame.stream_id, frame.payload))

    def receive_end(self, frame: Frame, now: float) -> None:
        stream = self._receiving(frame.stream_id, HalfInput.END)
        trailers = Trailers.from_payload(frame.payload) if frame.payload else None
        if stream.local is not Half.RESET:
            self._events.append(StreamEnded(frame.stream_id, trailers))
        if self._role is TunnelRole.GATEWAY and self._has_more(stream):
            # The answer is complete: the rest of the request is of no use to anybody.
            self._drop_local(frame.stream_id, stream, ErrorCode.NO_ERROR, "")
        self._close_if_over(frame.stream_id, stream)

    def receive_reset(self, frame: Frame, now: float) -> None:
        if self._is_closed(frame.stream_id):
            return
        stream = self._receiving(frame.stream_id, HalfInput.RESET)
        code, reason = decode_reason(frame.payload)
        if stream.local is not Half.RESET:
            self._events.append(StreamReset(frame.stream_id, code, reason))
            if self._role is TunnelRole.GATEWAY or stream.local is Half.ENDED:
                if self._has_more(stream):
                    self._drop_local(frame.stream_id, stream, code, "")
            else:
                # What has not left is of no use; the program confirms once its engine has let go.
                self.outbox.drop(stream.out)
        self._close_if_over(frame.stream_id, stream)

    def receive_credit(self, frame: Frame) -> int:
        """Returns how many bytes more may be sent than before."""
        offset = decode_offset(frame.payload)
        if frame.stream_id == 0:
            further_bytes = self._send_credit.advance(offset)
            if further_bytes:
                self.outbox.session_credit_advanced()
            return further_bytes
        stream = self._streams.get(frame.stream_id)
        if stream is not None and not self._is_secret(frame.stream_id):
            further_bytes = stream.out.credit.advance(offset)
            if further_bytes:
                self.outbox.queue(stream.out)
            return further_bytes
        if not self._is_closed(frame.stream_id):
            raise StreamStateError(f"CREDIT on stream {frame.stream_id}, which was never opened")
        return 0

    def set_suspended(self, suspended: bool) -> None:
        """Without a tunnel an agent's engines work on as far as the gateway's credit goes, which is memory
        the gateway has set aside for them (PROTOCOL §7.4)."""
        self._suspended = suspended
        for stream_id, stream in self._streams.items():
            out = stream.out
            if out.waiting and out.pending_bytes <= self._send_buffer(out):
                out.waiting = False
                self._events.append(StreamWritable(stream_id))

    def after_output(self) -> None:
        """Makes the events of what has just left the outbox."""
        outbox = self.outbox
        if outbox.drained:
            self._events += [StreamWritable(stream_id) for stream_id in outbox.drained]
            outbox.drained.clear()
        if outbox.ended:
            for stream_id in outbox.ended:
                self._close_if_over(stream_id, self._streams[stream_id])
            outbox.ended.clear()

    # --- Steps ---

    def _send_buffer(self, out: OutStream) -> int:
        """How much of a body is taken before its writer is to wait."""
        if self._suspended and self._role is TunnelRole.AGENT:
            return max(limits.SEND_BUFFER_BYTES, out.credit.available)
        return limits.SEND_BUFFER_BYTES

    def _local(self, stream_id: int, step: HalfInput) -> _Stream:
        """Moves our half on. Raises :class:`StreamHalfClosed` when it is over."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.local in OVER:
            raise StreamHalfClosed(f"our half of stream {stream_id} is over")
        following = TRANSITIONS.get((stream.local, step))
        assert following is not None, f"{step.value} before the head"
        stream.local = following
        return stream

    def _receiving(self, stream_id: int, step: HalfInput) -> _Stream:
        """Moves the peer's half on. Raises :class:`StreamStateError` when the table does not allow it."""
        stream = self._streams.get(stream_id)
        following = None if stream is None else TRANSITIONS.get((stream.peer, step))
        if stream is None or following is None or self._is_secret(stream_id):
            raise StreamStateError(f"{step.value} on stream {stream_id}, which does not expect it")
        stream.peer = following
        return stream

    def _is_closed(self, stream_id: int) -> bool:
        return stream_id <= self._last_id and stream_id not in self._streams

    def _is_secret(self, stream_id: int) -> bool:
        """Whether the peer cannot know of a stream: our OPEN has not left. Answering ahead of it would let a
        peer that reads nothing make us keep any number of them."""
        return self._role is TunnelRole.GATEWAY and stream_id > self.outbox.last_opened

    @staticmethod
    def _has_more(stream: _Stream) -> bool:
        """Whether our half has something to say still, its END included."""
        return stream.local not in OVER or stream.out.end is not None

    def _drop_local(self, stream_id: int, stream: _Stream, code: ErrorCode, reason: str) -> None:
        self.outbox.drop(stream.out)
        stream.local = TRANSITIONS[stream.local, HalfInput.RESET]
        self.outbox.put_frame(encode(FrameType.RESET, stream_id, encode_reason(code, reason)))

    def _close_if_over(self, stream_id: int, stream: _Stream) -> None:
        if stream.local not in OVER or stream.peer not in OVER or stream.out.end is not None:
            return
        del self._streams[stream_id]
        self.outbox.drop(stream.out)
        self._events.append(StreamClosedEvent(stream_id))
        self._owed[stream_id] = stream.credit
        self._settle(stream_id, stream.credit)

    def _settle(self, stream_id: int, credit: ReceiveCredit) -> None:
        """Gives a closed stream's window back once the program holds none of its bytes."""
        if credit.consumed == credit.received and stream_id in self._owed:
            del self._owed[stream_id]
            self._pool.give_back(credit.window - self._windows.floor)

    def _discard(self, stream_id: int, credit: ReceiveCredit) -> None:
        """Counts everything that came as consumed: nobody will take it."""
        size_bytes = credit.received - credit.consumed
        credit.consume(size_bytes)
        self._consumed_in_session(size_bytes)
        self._settle(stream_id, credit)

    def _consumed_in_session(self, size_bytes: int) -> None:
        self._receive_credit.consume(size_bytes)
        self._grant_session()

    def _grant_session(self) -> None:
        offset = self._receive_credit.grant()
        if offset is not None:
            self.outbox.put_credit(0, offset)

    def _first_window(self) -> int:
        return self._windows.floor + self._pool.borrow(self._windows.initial - self._windows.floor)
