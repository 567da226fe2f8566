"""The short way of an answer's body: by plain call from the session to the client's socket, no task between.

The head and the end of every answer, and whatever waits for room in the socket, go the ordinary way, over
ASGI's ``send``. For what is left, which is nearly all of a streamed answer, our server offers a
:class:`DirectWriter` as an extension of the request's ASGI scope. Under a server that offers none everything
goes the ordinary way; the client gets the same bytes.
"""

from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "trunkline.direct"
"""Its name among the scope's ``extensions``."""

UNDRAINED_BYTES = 64 * 1024
"""A server waits for a full socket before it writes, not after. A longer piece therefore goes the ordinary
way, which waits after it as well: what a client leaves unread stays under two buffers (64 KiB in uvicorn)."""


class DirectWriter:
    """Writes pieces of one answer's body, framed as the server frames them.

    To be used after some of the body went the ordinary way, and never while more of it is on that way.
    """

    __slots__ = ("_cycle", "_flow", "_write", "last", "sent_bytes")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self.sent_bytes = 0
        self.last = b""
        """The latest piece; whoever writes the ordinary way empties it."""

    def write(self, data: bytes) -> bool:
        """Whether ``data`` was taken, all of it. If not, it has to go the ordinary way, which knows what to
        do with a client that does not read or is gone, and with a body that is too long. Never raises."""
        size_bytes = len(data)
        cycle = self._cycle
        if self._flow.write_paused or cycle.disconnected or size_bytes > UNDRAINED_BYTES:
            return False
        if cycle.chunked_encoding:
            self._write(b"%x\r\n%b\r\n" % (size_bytes, data))
        elif size_bytes <= cycle.expected_content_length:
            cycle.expected_content_length -= size_bytes
            self._write(data)
        else:
            return False
        self.sent_bytes += size_bytes
        self.last = data
        return True


def offer(cycle: RequestResponseCycle) -> None:
    """Offer the short way to the application that is about to answer. Answers to HEAD have no body."""
    if cycle.scope["method"] != "HEAD":
        cycle.scope["extensions"] = {EXTENSION: DirectWriter(cycle)}  # type: ignore[dict-item]


def offered(scope: Mapping[str, Any]) -> DirectWriter | None:
    """What the server of this request offers."""
    writer = (scope.get("extensions") or {}).get(EXTENSION)
    return writer if isinstance(writer, DirectWriter) else None
