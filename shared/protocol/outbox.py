"""What waits to be sent, and in which order it leaves (PROTOCOL §2.5).

There are three classes: control, interactive and bulk. Control leaves first, interactive before bulk. Inside
a class streams take turns of at most one full DATA frame. No deficit counters are needed: a body can be cut
anywhere, so every turn is used up exactly.

Everything here is bounded: one pending CREDIT and one PROGRESS for each stream, one pending frame of each
kind of state, one OPEN and one RESET for each stream, and of bodies what the send buffers hold. A stream is
not over before the peer can have heard of it (``ReceivingStreams._advance_peer``), and
``ReceivingStreams._receive_open`` bounds how many RESETs a peer may leave unread.
"""

from collections import deque

from shared.protocol import limits
from shared.protocol.credit import SendCredit
from shared.protocol.errors import LocalError
from shared.protocol.frames import HEADER, FrameType, encode, encode_offset
from shared.speedups import take_turns

Buffer = bytes | memoryview
"""A piece of a body. Cutting one does not copy it."""

_OPEN, _DATA = int(FrameType.OPEN), int(FrameType.DATA)
_COMMANDS = (int(FrameType.COMMAND), int(FrameType.RESULT))

_STATES = (
    FrameType.STATE,
    FrameType.SLOTS,
    FrameType.DEMAND,
    FrameType.PEERS,
    FrameType.DRAIN,
    FrameType.OTHERS,
)
"""Frames of which only the newest counts, in the order in which they leave: levels after deployments. Of
OTHERS there is one at most, whose sender waits until it has left."""


class OutStream:
    """The sending half of one stream: its head, what is buffered of its body, and its end."""

    __slots__ = (
        *("chunks", "credit", "end", "head", "interactive", "pending_bytes", "queued", "stream_id"),
        "waiting",
    )

    def __init__(self, stream_id: int, credit: SendCredit, interactive: bool) -> None:
        self.stream_id = stream_id
        self.credit = credit
        self.interactive = interactive
        self.head: bytes | None = None
        self.end: bytes | None = None
        self.chunks: list[Buffer] = []
        """Few in nearly every stream, for which a deque would take half a kilobyte."""
        self.pending_bytes = 0
        self.queued = self.waiting = False
        """``waiting``: its writer was told to wait, and must be told when it may go on."""

    def take(self, most_bytes: int) -> tuple[list[Buffer], int]:
        """Cuts up to ``most_bytes`` from the front of what is buffered; the pieces, uncopied, and their
        size."""
        chunks, left = self.chunks, most_bytes
        parts: list[Buffer] = []
        for chunk in chunks:
            if len(chunk) > left:
                break
            parts.append(chunk)
            left -= len(chunk)
        del chunks[: len(parts)]
        if left > 0 and chunks:
            view = memoryview(chunks[0])
            parts.append(view[:left])
            chunks[0] = view[left:]
            left = 0
        size_bytes = most_bytes - left
        self.pending_bytes -= size_bytes
        return parts, size_bytes


def in_messages(frames: bytes) -> list[bytes]:
    """Whole frames in messages of at most :data:`~shared.protocol.limits.MESSAGE_BYTES`, order kept."""
    if len(frames) <= limits.MESSAGE_BYTES:
        return [frames]
    messages: list[bytes] = []
    begin = end = 0
    while end < len(frames):
        following = end + limits.FRAME_HEADER_BYTES + HEADER.unpack_from(frames, end)[2]
        if following - begin > limits.MESSAGE_BYTES:
            messages.append(frames[begin:end])
            begin = end
        end = following
    messages.append(frames[begin:])
    return messages


class Outbox:
    """Frames in the order in which they are to leave. ``session`` is the credit all bodies share."""

    def __init__(self, session: SendCredit) -> None:
        self._session = session
        self.frames: deque[bytes] = deque()
        """OPEN, RESET, COMMAND and RESULT, which leave in this order."""
        self._states: dict[int, bytes] = {}
        self.credits: dict[int, int] = {}
        """CREDIT frames: the offset for each stream; a newer one replaces one that has not left."""
        self.progress: dict[int, bytes] = {}
        """PROGRESS frames, by stream; a newer one replaces one that has not left."""
        self._commands = 0
        self.last_opened = self.newest_open = 0
        """Numbers of the newest stream whose OPEN has left, and of the newest one that was opened. Whoever
        puts OPEN into ``frames`` sets the latter."""
        self.interactive: deque[OutStream] = deque()
        """Those that have something to send and go before bulk ones."""
        self._bulk: deque[OutStream] = deque()
        self._blocked: dict[int, OutStream] = {}
        self.drained: list[int] = []
        """Streams whose writers waited and may go on; the session takes and clears it."""
        self.ended: list[int] = []
        """Streams whose END has left; the session takes and clears it."""
        self.stalls = 0
        """How often a body that had more to send waited for credit, and got it."""

    def __bool__(self) -> bool:
        """True when something could leave now, credit permitting."""
        urgent = self.frames or self._states or self.credits
        return bool(urgent or self.interactive or self._bulk or self.progress)

    # --- In ---

    def put_command(self, frame: bytes) -> None:
        """A COMMAND or RESULT. Raises :class:`LocalError` when too many wait."""
        if self._commands >= limits.COMMANDS:
            raise LocalError(f"{limits.COMMANDS} commands are waiting to be sent")
        self._commands += 1
        self.frames.append(frame)

    def put_state(self, frame_type: int, payload: bytes) -> None:
        """STATE, SLOTS, DEMAND or DRAIN: replaces one of the same kind that has not left."""
        self._states[frame_type] = encode(frame_type, 0, payload)

    def holds_state(self, frame_type: int) -> bool:
        """Whether a frame of that kind has not left."""
        return frame_type in self._states

    def queue(self, stream: OutStream) -> None:
        """Puts a stream in line when it has something that may leave.

        Token streams are interactive always, any other body until it has proved to be a long one.
        """
        if stream.queued:
            return
        credit = stream.credit
        if stream.head is None:
            stays = credit.sent >= credit.limit if stream.pending_bytes else stream.end is None
            if stays:
                return
        stream.queued = True
        if stream.interactive or credit.sent < limits.INTERACTIVE_BYTES:
            self.interactive.append(stream)
        else:
            self._bulk.append(stream)

    def drop(self, stream: OutStream) -> None:
        """Forgets everything of a stream that has not left; an OPEN or RESET given before still leaves."""
        stream.head = stream.end = None
        if stream.pending_bytes:
            stream.chunks.clear()
            stream.pending_bytes = 0
            if self._blocked.pop(stream.stream_id, None) is not None:
                stream.queued = False
        stream.waiting = False
        self.credits.pop(stream.stream_id, None)
        self.progress.pop(stream.stream_id, None)

    def session_credit_advanced(self) -> None:
        """Streams that only lacked the session's credit get back in line."""
        blocked, self._blocked = self._blocked, {}
        self.stalls += len(blocked)
        for stream in blocked.values():
            stream.queued = False
            self.queue(stream)

    # --- Out ---

    def take(self, budget_bytes: int) -> list[bytes]:
        """Messages, most urgent frames first, until the budget is used up or overrun by one turn."""
        pieces: list[Buffer] = []
        left = budget_bytes
        if self.frames or self._states or self.credits or self.progress:
            left = self._take_control(pieces, left)
        if left > 0:
            self._take_bodies(pieces, left)
        if not pieces:
            return []
        frames = b"".join(pieces)
        return [frames] if len(frames) <= limits.MESSAGE_BYTES else in_messages(frames)

    def _take_bodies(self, pieces: list[Buffer], left: int) -> None:
        """Takes one turn after the other, as pieces of frames.

        Nearly every turn is all that a stream has, and all of it may leave. Those are taken by
        :func:`shared.speedups.take_turns`; :meth:`_take_turn` takes the others, and gives the same for these.
        """
        session, most_bytes = self._session, limits.DATA_PAYLOAD_BYTES
        while left > 0:
            ring = self.interactive or self._bulk
            if not ring:
                return
            left = take_turns(ring, pieces, self.ended, session, left, most_bytes, _DATA)
            if ring and left > 0:
                stream = ring.popleft()
                stream.queued = False
                left -= self._take_turn(stream, pieces)
                self.queue(stream)

    def _take_control(self, pieces: list[Buffer], left: int) -> int:
        frames = self.frames
        if frames:
            size_bytes = sum(map(len, frames))
            if size_bytes <= left:  # nearly always
                pieces += frames
                frames.clear()
                left -= size_bytes
                self.last_opened, self._commands = self.newest_open, 0
            else:
                left = self._take_frames(pieces, left)
        if self._states:
            for frame_type in _STATES:
                if left > 0 and frame_type in self._states:
                    frame = self._states.pop(frame_type)
                    pieces.append(frame)
                    left -= len(frame)
        while self.credits and left > 0:
            stream_id = next(iter(self.credits))
            frame = encode(FrameType.CREDIT, stream_id, encode_offset(self.credits.pop(stream_id)))
            pieces.append(frame)
            left -= len(frame)
        while self.progress and left > 0:
            frame = self.progress.pop(next(iter(self.progress)))
            pieces.append(frame)
            left -= len(frame)
        return left

    def _take_frames(self, pieces: list[Buffer], left: int) -> int:
        while self.frames and left > 0:
            frame = self.frames.popleft()
            frame_type = frame[0]
            if frame_type == _OPEN:
                self.last_opened = int.from_bytes(frame[1:5], "big")
            elif frame_type in _COMMANDS:
                self._commands -= 1
            pieces.append(frame)
            left -= len(frame)
        return left

    def _take_turn(self, stream: OutStream, pieces: list[Buffer]) -> int:
        size_bytes = 0
        if stream.head is not None:
            pieces.append(stream.head)
            size_bytes += len(stream.head)
            stream.head = None
        if stream.pending_bytes:
            room = min(stream.credit.available, self._session.available, limits.DATA_PAYLOAD_BYTES)
            if room > 0:
                payload, payload_bytes = stream.take(room)
                stream.credit.spend(payload_bytes)
                self._session.spend(payload_bytes)
                pieces.append(HEADER.pack(_DATA, stream.stream_id, payload_bytes))
                pieces += payload
                size_bytes += payload_bytes + limits.FRAME_HEADER_BYTES
                if stream.waiting and stream.pending_bytes <= limits.SEND_BUFFER_LOW_BYTES:
                    stream.waiting = False
                    self.drained.append(stream.stream_id)
            elif stream.credit.available > 0:
                self._blocked[stream.stream_id] = stream
                stream.queued = True  # until the session's credit advances
        if not stream.pending_bytes and stream.end is not None:
            pieces.append(stream.end)
            size_bytes += len(stream.end)
            stream.end = None
            self.ended.append(stream.stream_id)
        return size_bytes
