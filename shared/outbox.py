"""What waits to be sent, and in which order it leaves (PROTOCOL §2.5).

Three classes: control, interactive, bulk. Control first, interactive before bulk, and inside a class round
robin between streams, at most one full DATA frame a turn. Deficit counters would always read zero: a body can
be cut anywhere, so every turn can be used up exactly.

Everything here is bounded: one pending CREDIT for each stream, one pending frame of each kind of state, and
of bodies what the send buffers hold. Of control frames there is one OPEN and one RESET for each stream, and a
stream is not over before the peer can have heard of it (``StreamTable._receiving``); how many RESETs a peer
may leave unread is up to ``StreamTable.receive_open``.
"""

from collections import deque

from shared import limits
from shared.credit import SendCredit
from shared.errors import LocalError
from shared.frames import FrameType, encode, encode_offset

_STATES = (FrameType.STATE, FrameType.SLOTS, FrameType.DEMAND, FrameType.DRAIN)
"""Frames of which only the newest counts, in the order in which they leave: levels after deployments."""


class OutStream:
    """The sending half of one stream: its head, its body as far as it is buffered, its end."""

    __slots__ = (
        "chunks",
        "credit",
        "end",
        "head",
        "interactive",
        "pending_bytes",
        "queued",
        "stream_id",
        "waiting",
    )

    def __init__(self, stream_id: int, credit: SendCredit, interactive: bool) -> None:
        self.stream_id = stream_id
        self.credit = credit
        self.interactive = interactive
        self.head: bytes | None = None
        self.end: bytes | None = None
        self.chunks: deque[bytes] = deque()
        self.pending_bytes = 0
        self.queued = False
        self.waiting = False
        """Its writer was told to wait and is owed a call."""

    @property
    def is_interactive(self) -> bool:
        """Token streams always; any other body until it has proved to be a long one."""
        return self.interactive or self.credit.sent < limits.INTERACTIVE_BYTES

    def take(self, most_bytes: int) -> bytes:
        """Cuts up to ``most_bytes`` from the front of what is buffered."""
        first = self.chunks[0]
        if len(first) <= most_bytes and len(self.chunks) == 1:
            self.chunks.clear()
            self.pending_bytes = 0
            return first
        parts: list[bytes] = []
        left = most_bytes
        while left > 0 and self.chunks:
            chunk = self.chunks.popleft()
            if len(chunk) > left:
                self.chunks.appendleft(chunk[left:])
                chunk = chunk[:left]
            parts.append(chunk)
            left -= len(chunk)
        taken = b"".join(parts)
        self.pending_bytes -= len(taken)
        return taken

    def drop(self) -> None:
        """Forgets everything that has not left."""
        self.head = self.end = None
        self.chunks.clear()
        self.pending_bytes = 0
        self.waiting = False


class Outbox:
    """Frames in the order in which they are to leave. ``session`` is the credit all bodies share."""

    def __init__(self, session: SendCredit) -> None:
        self._session = session
        self._frames: deque[bytes] = deque()
        self._states: dict[int, bytes] = {}
        self._credits: dict[int, int] = {}
        self._commands = 0
        self.last_opened = 0
        """Number of the newest stream whose OPEN has left."""
        self._interactive: deque[OutStream] = deque()
        self._bulk: deque[OutStream] = deque()
        self._blocked: dict[int, OutStream] = {}
        self.drained: list[int] = []
        """Streams whose writers were told to wait and may go on; the session takes and clears it."""
        self.ended: list[int] = []
        """Streams whose END has left; the session takes and clears it."""

    def __bool__(self) -> bool:
        """True when something could leave now, credit permitting."""
        return bool(self._frames or self._states or self._credits or self._interactive or self._bulk)

    @property
    def frames_waiting(self) -> int:
        """OPEN, RESET, COMMAND and RESULT frames that have not left."""
        return len(self._frames)

    # --- In ---

    def put_frame(self, frame: bytes) -> None:
        """An OPEN or RESET, which leave in the order given."""
        self._frames.append(frame)

    def put_command(self, frame: bytes) -> None:
        """A COMMAND or RESULT. Raises :class:`LocalError` when too many wait."""
        if self._commands >= limits.COMMANDS:
            raise LocalError(f"{limits.COMMANDS} commands are waiting to be sent")
        self._commands += 1
        self._frames.append(frame)

    def put_state(self, frame_type: int, payload: bytes) -> None:
        """STATE, SLOTS, DEMAND or DRAIN: replaces one of the same kind that has not left."""
        self._states[frame_type] = encode(frame_type, 0, payload)

    def put_credit(self, stream_id: int, offset: int) -> None:
        """CREDIT: replaces an older one of the same stream that has not left."""
        self._credits[stream_id] = offset

    def queue(self, stream: OutStream) -> None:
        """Puts a stream in line when it has something that may leave."""
        if stream.queued or not self._may_leave(stream):
            return
        stream.queued = True
        (self._interactive if stream.is_interactive else self._bulk).append(stream)

    def drop(self, stream: OutStream) -> None:
        """Forgets everything of a stream that has not left; an OPEN or RESET given before still leaves."""
        stream.drop()
        self._credits.pop(stream.stream_id, None)
        if self._blocked.pop(stream.stream_id, None) is not None:
            stream.queued = False

    def session_credit_advanced(self) -> None:
        """Streams that only lacked the session's credit get back in line."""
        blocked, self._blocked = self._blocked, {}
        for stream in blocked.values():
            stream.queued = False
            self.queue(stream)

    def _may_leave(self, stream: OutStream) -> bool:
        if stream.head is not None:
            return True
        if stream.pending_bytes:
            return stream.credit.available > 0
        return stream.end is not None

    # --- Out ---

    def take(self, budget_bytes: int) -> list[bytes]:
        """Encoded frames, most urgent first, until the budget is used up or overrun by one frame."""
        frames: list[bytes] = []
        left = self._take_control(frames, budget_bytes)
        while left > 0:
            ring = self._interactive or self._bulk
            if not ring:
                break
            stream = ring.popleft()
            stream.queued = False
            left -= self._take_turn(stream, frames)
            self.queue(stream)
        return frames

    def _take_control(self, frames: list[bytes], left: int) -> int:
        while self._frames and left > 0:
            frame = self._frames.popleft()
            if frame[0] in (FrameType.COMMAND, FrameType.RESULT):
                self._commands -= 1
            elif frame[0] == FrameType.OPEN:
                self.last_opened = int.from_bytes(frame[1:5], "big")
            frames.append(frame)
            left -= len(frame)
        for frame_type in _STATES:
            if left > 0 and frame_type in self._states:
                frame = self._states.pop(frame_type)
                frames.append(frame)
                left -= len(frame)
        while self._credits and left > 0:
            stream_id = next(iter(self._credits))
            frame = encode(FrameType.CREDIT, stream_id, encode_offset(self._credits.pop(stream_id)))
            frames.append(frame)
            left -= len(frame)
        return left

    def _take_turn(self, stream: OutStream, frames: list[bytes]) -> int:
        size_bytes = 0
        if stream.head is not None:
            frames.append(stream.head)
            size_bytes += len(stream.head)
            stream.head = None
        if stream.pending_bytes:
            room = min(stream.credit.available, self._session.available, limits.DATA_PAYLOAD_BYTES)
            if room > 0:
                payload = stream.take(room)
                stream.credit.spend(len(payload))
                self._session.spend(len(payload))
                frames.append(encode(FrameType.DATA, stream.stream_id, payload))
                size_bytes += len(payload) + limits.FRAME_HEADER_BYTES
                self._tell_writer(stream)
            elif stream.credit.available > 0:
                self._blocked[stream.stream_id] = stream
                stream.queued = True  # until the session's credit advances
        if not stream.pending_bytes and stream.end is not None:
            frames.append(stream.end)
            size_bytes += len(stream.end)
            stream.end = None
            self.ended.append(stream.stream_id)
        return size_bytes

    def _tell_writer(self, stream: OutStream) -> None:
        if stream.waiting and stream.pending_bytes <= limits.SEND_BUFFER_LOW_BYTES:
            stream.waiting = False
            self.drained.append(stream.stream_id)
