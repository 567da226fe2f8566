"""The frames of streams that a session receives (PROTOCOL §5, §6). Sans-I/O."""

from shared.protocol import limits
from shared.protocol.control_frames import ControlFrameLimiter, control_frame_units
from shared.protocol.credit import ReceiveCredit, SendCredit
from shared.protocol.errors import ErrorCode, FlowControlViolated, StreamLimitExceeded, StreamStateError
from shared.protocol.events import (
    DataReceived,
    HeadReceived,
    ProgressReceived,
    StreamEnded,
    StreamOpened,
    StreamReset,
)
from shared.protocol.frames import FrameFields, FrameType, TunnelRole, decode_reason
from shared.protocol.messages import UPGRADED, RequestHead, ResponseHead, Trailers
from shared.protocol.outbox import OutStream
from shared.protocol.progress import Progress
from shared.protocol.stream_state import OVER, TRANSITIONS, Half
from shared.protocol.streams import OpenStream, SessionStreams
from shared.speedups import BodyPath, receive_bodies, write_bodies

_DATA, _DATA_PAYLOAD_BYTES = int(FrameType.DATA), limits.DATA_PAYLOAD_BYTES
_AT_AN_AGENT = Half.BODY, Half.ENDED, Half.RESET
_AT_A_GATEWAY = Half.BODY, Half.RESET, Half.RESET
"""States of a stream whose DATA is wanted: the peer's half is in the first, and our own is in neither of the
others."""

_HEAD, _BODY, _ENDED, _RESET = Half.HEAD, Half.BODY, Half.ENDED, Half.RESET
_AGENT, _GATEWAY = TunnelRole.AGENT, TunnelRole.GATEWAY
"""For the path of every frame: a global is found faster than a member of an enumeration."""

_read_request, _read_response = RequestHead.from_payload, ResponseHead.from_payload
_read_trailers = Trailers.from_payload

Later = list[BodyPath] | None
"""Paths of which what they took is to be written later, with what further messages bring; None: at once."""


class ReceivingStreams(SessionStreams):
    """The streams of a session and the frames that the peer sends on them.

    The methods raise :class:`~shared.protocol.errors.ProtocolError` when the peer breaks a rule.
    """

    progress_frames: ControlFrameLimiter
    """Bounds PROGRESS: at an agent what is sent, at a gateway what the peer may send."""

    def _receive_bodies(self, message: bytes, start: int, later: Later) -> int:
        """Takes the DATA frames that follow one another from ``start`` on; returns where they end. What paths
        take is written, or the paths are added to ``later``.

        Nearly every frame is taken here, without a call. It stops before the first frame that is not DATA
        within its size and credit, of a stream that expects it and whose program wants it. Such a frame goes
        to :meth:`_receive_data`, which finds what is wrong with it.
        """
        start, due = receive_bodies(
            message,
            start,
            self._streams,
            self._received,
            self.events,
            DataReceived,
            _AT_AN_AGENT if self.role is _AGENT else _AT_A_GATEWAY,
            _DATA,
            _DATA_PAYLOAD_BYTES,
            later,
        )
        if due:
            _tell_unsaid(due)
        return start

    @staticmethod
    def write_bodies(later: list[BodyPath]) -> None:
        """Writes what was to be written later (:meth:`ProtocolSession.receive_message`)."""
        _tell_unsaid(write_bodies(later))

    def _receive_open(self, frame: FrameFields, now: float) -> None:
        _, stream_id, payload = frame
        if stream_id <= self._last_id:
            raise StreamStateError(f"stream {stream_id} opened after stream {self._last_id}")
        windows, outbox = self._windows, self._outbox
        if len(self._streams) >= windows.streams:
            raise StreamLimitExceeded(f"more than {windows.streams} streams")
        if outbox.frames and len(outbox.frames) > 2 * windows.streams + limits.COMMANDS:
            # A stream of which the peer has not read the end still counts among those it has open.
            raise StreamLimitExceeded("streams are opened and their ends not read")
        head = _read_request(payload)
        if head.credit > limits.CREDIT_MAX:
            raise FlowControlViolated(f"credit up to offset {head.credit}")
        self._last_id = stream_id
        upgrade = head.upgrade
        out = OutStream(stream_id, SendCredit(head.credit), head.streaming or upgrade)
        window = self._first_window()
        credit = ReceiveCredit(window, now)
        self._streams[stream_id] = OpenStream(_HEAD, _BODY, out, credit, None, upgrade)
        if window > windows.floor:
            outbox.credits[stream_id] = window
        self.events.append(StreamOpened(stream_id, head))

    def _receive_head(self, frame: FrameFields, now: float) -> None:
        _, stream_id, payload = frame
        stream = self._streams.get(stream_id)
        if stream is None or stream.peer is not _HEAD or stream_id > self._outbox.last_opened:
            stream = self._advance_peer(frame)
        stream.peer = _BODY
        head = _read_response(payload)
        if head.status == UPGRADED and not stream.upgrade:
            raise StreamStateError(f"stream {stream_id} is upgraded, which nobody asked for")
        if stream.local is not _RESET:
            self.events.append(HeadReceived(stream_id, head))

    def _receive_progress(self, frame: FrameFields, now: float) -> None:
        _, stream_id, payload = frame
        self.progress_frames.spend(control_frame_units(len(payload)), now)
        stream = self._advance_peer(frame)
        progress = Progress.from_payload(payload)
        if stream.local is not _RESET:
            self.events.append(ProgressReceived(stream_id, progress))

    def _receive_data(self, frame: FrameFields, now: float) -> None:
        stream = self._advance_peer(frame)
        _, stream_id, payload = frame
        size_bytes = len(payload)
        self._received.receive(size_bytes)
        stream.credit.receive(size_bytes)
        if stream.local is _RESET or (self.role is _AGENT and stream.local is _ENDED):
            self._discard(stream_id, stream.credit)
        else:
            self.events.append(DataReceived(stream_id, payload))

    def _receive_end(self, frame: FrameFields, now: float) -> None:
        _, stream_id, payload = frame
        stream, outbox = self._streams.get(stream_id), self._outbox
        if stream is None or stream.peer is not _BODY or stream_id > outbox.last_opened:
            stream = self._advance_peer(frame)
        stream.peer = _ENDED
        trailers = _read_trailers(payload) if payload else None
        local = stream.local
        if local is not _RESET:
            self.events.append(StreamEnded(stream_id, trailers))
        if outbox.credits:
            outbox.credits.pop(stream_id, None)  # there is nothing left that it could let through
        if local in OVER and stream.out.end is None:
            self._close(stream_id, stream)
        elif self.role is _GATEWAY:
            # The response is complete, so nobody needs the rest of the request.
            self._drop_local(stream_id, stream, ErrorCode.NO_ERROR, "")
            self._close(stream_id, stream)

    def _receive_reset(self, frame: FrameFields, now: float) -> None:
        _, stream_id, payload = frame
        if self._is_closed(stream_id):
            return
        stream = self._advance_peer(frame)
        code, reason = decode_reason(payload)
        if stream.local is not _RESET:
            self.events.append(StreamReset(stream_id, code, reason))
            if self.role is _GATEWAY or stream.local is _ENDED:
                if self._has_more(stream):
                    self._drop_local(stream_id, stream, code, "")
            else:
                # Nobody needs what has not left. The program confirms once its engine has let go.
                self._outbox.drop(stream.out)
        self._close_if_over(stream_id, stream)

    def _credit_stream(self, stream_id: int, offset: int) -> int:
        """Takes a CREDIT and returns how many bytes more may be sent than before."""
        if stream_id == 0:
            further_bytes = self._send_credit.advance(offset)
            if further_bytes:
                self._outbox.session_credit_advanced()
            return further_bytes
        stream = self._streams.get(stream_id)
        if stream is not None and stream_id <= self._outbox.last_opened:
            out = stream.out
            stalled = out.pending_bytes and out.credit.sent >= out.credit.limit
            further_bytes = out.credit.advance(offset)
            if further_bytes:
                if stalled:
                    self._outbox.stalls += 1
                self._outbox.queue(out)
            return further_bytes
        if not self._is_closed(stream_id):
            raise StreamStateError(f"CREDIT on stream {stream_id}, which was never opened")
        return 0

    # --- Steps ---

    def _advance_peer(self, frame: FrameFields) -> OpenStream:
        """Moves the peer's half on. Raises :class:`StreamStateError` when the table does not allow it.

        Nor may the peer speak of a stream whose OPEN has not left, so that it cannot know of it: to answer
        such frames would let a peer that reads nothing make us keep any number of answers.
        """
        frame_type, stream_id, _ = frame
        stream = self._streams.get(stream_id)
        following = None if stream is None else TRANSITIONS.get((stream.peer, frame_type))
        if stream is None or following is None or stream_id > self._outbox.last_opened:
            name = FrameType(frame_type).name
            raise StreamStateError(f"{name} on stream {stream_id}, which does not expect it")
        stream.peer = following
        return stream

    def _is_closed(self, stream_id: int) -> bool:
        return stream_id <= self._last_id and stream_id not in self._streams

    @staticmethod
    def _has_more(stream: OpenStream) -> bool:
        """Whether our half has something left to send, its END included."""
        return stream.local not in OVER or stream.out.end is not None


def _tell_unsaid(due: list[BodyPath]) -> None:
    for path in due:
        if path.on_unsaid is not None:
            path.on_unsaid()
