"""The short way of a response's body: from a message of the tunnel to the connection of its client.

It is open while the reader of the body waits with nothing buffered. Then nothing has to be decided about a
piece of whole events: it is counted, kept for a continuation, framed as a chunk (RFC 9112 §7.1) and written.
Everything else becomes an event for the program. These are the references for their native twins.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

_HEADER = Struct("!BII")
_WHOLE = (b"\n\n", b"\r\n\r\n")
_LAST_BYTES = 4

STEP_BYTES = 4 * 1024
"""What is taken of a body is told in such steps, unless it is known when the next credit is due: small beside
the smallest window (16 KiB), so that the engine never waits for it, and large beside a token."""

_MOST_WAITING_BYTES = 32 * 1024
"""Of what is written later, so much of one body is written when its message ends: a client that reads nothing
is to be noticed before much more of it was taken."""


class ReceivedBytes:
    """Offsets into what one side receives of a stream or a session. Belongs to the event loop's thread."""

    __slots__ = ("granted", "received")

    granted: int
    received: int


class BodyPath:
    """The path of one response's body. Belongs to the event loop's thread."""

    __slots__ = (
        "buffered_bytes",
        "descriptor",
        "flow",
        "fresh",
        "last",
        "on_unsaid",
        "open",
        "pieces",
        "sent_bytes",
        "step_bytes",
        "taken_bytes",
        "unsaid_bytes",
        "waiting",
        "waiting_bytes",
        "write",
    )

    def __init__(self, write: Callable[[bytes], object], flow: Any) -> None:
        """``write`` gives bytes to the connection; ``flow.write_paused`` says that it has enough of them."""
        self.write = write
        self.flow = flow
        self.open = False
        """Whether pieces may take this way now. Whoever else writes to the connection closes it before: while
        it is open the native path asks only once whether something waits in the transport."""
        self.waiting: list[bytes] = []
        """Taken and not yet written."""
        self.fresh: list[bytes] = []
        """Taken since this was emptied last, for whoever keeps a record of the body."""
        self.last = b""
        """The end of what was written last, without its framing: four bytes at the most."""
        self.descriptor = -1
        """The socket of a connection without TLS; -1: none, or the connection is gone. Where nothing that was
        written before waits in the transport, the native path sends to it itself. Whoever sets it sets it
        back to -1 before the socket is closed: the number may then be another connection's."""
        self.buffered_bytes: Callable[[], int] | None = None
        """How much waits in the transport. To be set before ``descriptor``."""
        self.sent_bytes = 0
        """All that was taken."""
        self.pieces = 0
        """How many were taken since this was set back last."""
        self.taken_bytes = 0
        """Bytes of these pieces."""
        self.waiting_bytes = 0
        """Bytes taken here since the last write."""
        self.unsaid_bytes = 0
        """Bytes of which the peer was not told yet that they were taken."""
        self.on_unsaid: Callable[[], None] | None = None
        """Called when there are many of them, by whoever received a message; and by whoever wrote what the
        path took behind pieces that came by a call, of which :func:`receive_bodies` does not tell."""
        self.step_bytes = STEP_BYTES
        """So many are many."""

    def take(self, data: bytes) -> bool:
        """Takes a piece. False: it has to go the ordinary way, and nothing has changed."""
        if not self.open or self.flow.write_paused or not data.endswith(_WHOLE):
            return False
        self.waiting.append(data)
        self.fresh.append(data)
        self.pieces += 1
        self.sent_bytes += len(data)
        self.taken_bytes += len(data)
        self.unsaid_bytes += len(data)
        self.waiting_bytes += len(data)
        return True

    def flush(self) -> None:
        """Writes what was taken, as one chunk."""
        self.waiting_bytes = 0
        if self.waiting:
            data = b"".join(self.waiting)
            self.waiting.clear()
            self.last = data[-_LAST_BYTES:]
            self.write(b"%x\r\n%b\r\n" % (len(data), data))


def receive_bodies(
    message: bytes,
    start: int,
    streams: dict[int, Any],
    session: Any,
    events: list[Any],
    event_type: type,
    states: tuple[object, object, object],
    frame_type: int,
    most_bytes: int,
    later: list[BodyPath] | None = None,
) -> tuple[int, list[BodyPath]]:
    """Takes the DATA frames that follow one another from ``start`` on (PROTOCOL §5, §6).

    Returns where they end, and the paths of which their ``step_bytes`` or more are unsaid. What paths took
    is written, or, where there is a list ``later``, the paths are added to it for :func:`write_bodies`: of
    messages that came together each client gets what is for it in one write. It stops before the
    first frame that is not of ``frame_type``, within ``most_bytes`` and within its stream's and the
    ``session``'s credit, of a stream whose peer is in the first of the ``states`` and whose own half is in
    neither of the others. What no path takes becomes an event, made by ``event_type`` of the stream's number
    and the payload.
    """
    body, unwanted, reset = states
    touched: list[BodyPath] = [] if later is None else later
    while start + _HEADER.size < len(message):
        found, stream_id, length = _HEADER.unpack_from(message, start)
        begin = start + _HEADER.size
        end = begin + length
        if found != frame_type or not begin < end <= len(message) or length > most_bytes:
            break
        stream = streams.get(stream_id)
        if stream is None or stream.peer is not body:
            break
        local, credit = stream.local, stream.credit
        if local is reset or local is unwanted:
            break
        received, in_session = credit.received + length, session.received + length
        if received > credit.granted or in_session > session.granted:
            break
        credit.received, session.received = received, in_session
        data, path = message[begin:end], stream.path
        if path is not None and path.take(data):
            if len(path.waiting) == 1:
                touched.append(path)
        else:
            if path is not None:
                path.open = False  # or the next piece would overtake this one
            events.append(event_type(stream_id, data))
        start = end
    if later is None:
        return start, write_bodies(touched)
    _write_long(later)
    return start, []


def _write_long(touched: list[BodyPath]) -> None:
    for path in touched.copy():
        if path.waiting_bytes >= _MOST_WAITING_BYTES:
            path.flush()


def write_bodies(touched: list[BodyPath]) -> list[BodyPath]:
    """Writes what these paths took and empties the list; those of which ``step_bytes`` or more are unsaid.

    After an error what was not written waits in its path.
    """
    paths = touched.copy()
    touched.clear()
    for path in paths:
        path.flush()
    return [path for path in paths if path.unsaid_bytes >= path.step_bytes]
