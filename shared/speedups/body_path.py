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


class BodyPath:
    """The path of one response's body. Belongs to the event loop's thread."""

    __slots__ = (
        "flow",
        "fresh",
        "last",
        "on_unsaid",
        "open",
        "pieces",
        "sent_bytes",
        "taken_bytes",
        "unsaid_bytes",
        "waiting",
        "write",
    )

    def __init__(self, write: Callable[[bytes], object], flow: Any) -> None:
        """``write`` gives bytes to the connection; ``flow.write_paused`` says that it has enough of them."""
        self.write = write
        self.flow = flow
        self.open = False
        """Whether pieces may take this way now."""
        self.waiting: list[bytes] = []
        """Taken and not yet written."""
        self.fresh: list[bytes] = []
        """Taken since this was emptied last, for whoever keeps a record of the body."""
        self.last = b""
        """What was written last, without its framing."""
        self.sent_bytes = 0
        """All that was taken."""
        self.pieces = 0
        """How many were taken since this was set back last."""
        self.taken_bytes = 0
        """Bytes of these pieces."""
        self.unsaid_bytes = 0
        """Bytes of which the peer was not told yet that they were taken."""
        self.on_unsaid: Callable[[], None] | None = None
        """Called when there are many of them, by whoever received a message."""

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
        return True

    def flush(self) -> None:
        """Writes what was taken, as one chunk."""
        if self.waiting:
            data = b"".join(self.waiting)
            self.waiting.clear()
            self.last = data
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
    step_bytes: int,
) -> tuple[int, list[BodyPath]]:
    """Takes the DATA frames that follow one another from ``start`` on (PROTOCOL §5, §6).

    Returns where they end, and the paths of which ``step_bytes`` or more are unsaid. It stops before the
    first frame that is not of ``frame_type``, within ``most_bytes`` and within its stream's and the
    ``session``'s credit, of a stream whose peer is in the first of the ``states`` and whose own half is in
    neither of the others. What no path takes becomes an event of ``event_type``: the stream's number and the
    payload.
    """
    body, unwanted, reset = states
    touched: list[BodyPath] = []
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
            events.append(tuple.__new__(event_type, (stream_id, data)))
        start = end
    for path in touched:
        path.flush()
    return start, [path for path in touched if path.unsaid_bytes >= step_bytes]
