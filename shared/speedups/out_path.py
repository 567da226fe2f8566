"""The short way of a response's body through an agent: from an engine's connection to the tunnel.

It is open while nothing has to be decided about whole events: the response's framing, its usage and its end
are not the business of these classes. :class:`ChunkReader` takes the chunks (RFC 9112 §7.1) that come whole
off the body, :class:`OutPath` puts what was in them into the outbox, :func:`take_turns` takes it out again.
Everything else goes the ordinary way. These are the references for their native twins.
"""

import re
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any

_HEADER = Struct("!BII")
_CHUNK_HEAD = re.compile(rb"0{0,6}([1-9a-fA-F][0-9a-fA-F]{0,6})\r\n")
_DIGITS = 7


class OutPath:
    """The path of one response's body to its place among the streams that have something to send.

    Belongs to the event loop's thread.
    """

    __slots__ = ("_endpoint", "_most_bytes", "_ready", "_session", "_states", "_stream", "open")

    def __init__(
        self,
        stream: Any,
        session: Any,
        endpoint: Any,
        ready: deque[Any],
        states: tuple[object, object],
        most_bytes: int,
    ) -> None:
        """``stream`` is one of the ``session``; ``endpoint.wake`` says that something is ready.

        Of the ``states`` its own half must be in the first and its peer's must not be in the second. With
        ``most_bytes`` or more waiting the ordinary way decides whether its writer has to wait.
        """
        self._stream = stream
        self._session = session
        self._endpoint = endpoint
        self._ready = ready
        self._states = states
        self._most_bytes = most_bytes
        self.open = False
        """Whether pieces may take this way now."""

    def take(self, data: bytes) -> bool:
        """Takes whole events that say nothing of usage. False: they have to go the ordinary way, and nothing
        has changed."""
        stream, (body, reset) = self._stream, self._states
        if not self.open or not data.endswith(b"\n\n") or b'"usage"' in data:
            return False
        if stream.local is not body or stream.peer is reset or self._session.closed:
            return False
        out = stream.out
        pending_bytes = out.pending_bytes + len(data)
        if out.waiting or not out.interactive or pending_bytes > self._most_bytes:
            return False
        out.chunks.append(data)
        out.pending_bytes = pending_bytes
        if not out.queued:
            credit = out.credit
            if out.head is not None or credit.sent < credit.limit:
                out.queued = True
                self._ready.append(out)
        self._endpoint.wake()
        return True


class ChunkReader:
    """Is given all that a connection receives, and gives it to ``otherwise`` unless ``path`` takes it.

    While a chunked body is followed it is known where its chunks begin and end. Data that begins and ends
    between two chunks is offered to ``path``; a parser that is not given it misses nothing but these chunks.
    """

    __slots__ = ("_missing_bytes", "_now", "_otherwise", "_unread", "heard_s", "path", "pieces")

    def __init__(
        self,
        otherwise: Callable[[bytes], object],
        now: Callable[[], float],
        unread: list[bytes],
    ) -> None:
        """While there is something in ``unread``, it may not be overtaken. ``now`` gives seconds."""
        self._otherwise: Callable[[bytes], object] | None = otherwise
        self._now: Callable[[], float] | None = now
        self._unread: list[bytes] | None = unread
        self.path: OutPath | None = None
        """Takes the body; None while none is followed."""
        self.pieces = 0
        """How many it took since this was set back last."""
        self.heard_s = 0.0
        """When it took the last one."""
        self._missing_bytes = 0
        """Of the chunk that has begun so many bytes are missing, its end of line among them."""

    def follow(self, path: OutPath, data: bytes, start: int) -> None:
        """A chunked body begins in ``data`` at ``start``, which the parser has been given.

        Raises ValueError where ``start`` lies outside of ``data``.
        """
        if self._otherwise is None:
            return
        if not 0 <= start <= len(data):
            raise ValueError("start lies outside of data")
        self.path = path
        self._missing_bytes = 0
        self._scan(data, start)

    def close(self) -> None:
        """Nothing more is given to anybody, and nobody is referred to any more."""
        self.path = self._otherwise = self._now = self._unread = None

    def __call__(self, data: bytes) -> None:
        path = self.path
        if path is not None:
            whole = not self._missing_bytes
            chunks = self._scan(data, 0)
            if whole and chunks and not self._missing_bytes and not self._unread:
                body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                if path.take(body):
                    self.pieces += 1
                    if self._now is not None:
                        self.heard_s = self._now()
                    return
        if self._otherwise is not None:
            self._otherwise(data)

    def _scan(self, data: bytes, start: int) -> list[bytes]:
        """Follows the body through ``data``; the chunks that lie whole in it, if there is nothing else.

        It is followed no longer when something comes that is no plain chunk.
        """
        chunks: list[bytes] = []
        if self._missing_bytes:
            start = self._skip(data, start)
        while self.path is not None and start < len(data):
            head = _CHUNK_HEAD.match(data, start, start + _DIGITS + 2)
            if head is None:
                self.path = None
                break
            begin = head.end()
            end = begin + int(head[1], 16)
            self._missing_bytes = end + 2 - begin
            start = self._skip(data, begin)
            chunks.append(data[begin:end])
        return chunks if self.path is not None else []

    def _skip(self, data: bytes, start: int) -> int:
        """Skips what is missing of a chunk, as far as it is there, and looks whether a line ends there."""
        end = start + self._missing_bytes
        for place, wanted in ((end - 2, b"\r"), (end - 1, b"\n")):
            if start <= place < len(data) and data[place : place + 1] != wanted:
                self.path = None
        end = min(end, len(data))
        self._missing_bytes -= end - start
        return end


def take_turns(
    ready: deque[Any],
    pieces: list[Any],
    ended: list[int],
    session: Any,
    left_bytes: int,
    most_bytes: int,
    frame_type: int,
) -> int:
    """Takes streams out of ``ready``, in order, and puts their frames into ``pieces`` (PROTOCOL §2.5).

    It stops when ``left_bytes`` are used up, and before the first stream that has more than ``most_bytes``
    or than its or the ``session``'s credit allows, or whose writer waits. A body leaves in a frame of
    ``frame_type``. The numbers of streams whose end was taken go into ``ended``. Returns how many bytes are
    left, perhaps less than none.
    """
    while left_bytes > 0 and ready:
        stream = ready[0]
        credit, size_bytes = stream.credit, stream.pending_bytes
        sent, sent_in_session = credit.sent + size_bytes, session.sent + size_bytes
        if (
            size_bytes > most_bytes
            or sent > credit.limit
            or sent_in_session > session.limit
            or stream.waiting
        ):
            break
        ready.popleft()
        stream.queued = False
        if stream.head is not None:
            pieces.append(stream.head)
            left_bytes -= len(stream.head)
            stream.head = None
        if size_bytes:
            credit.sent, session.sent = sent, sent_in_session
            pieces.append(_HEADER.pack(frame_type, stream.stream_id, size_bytes))
            pieces += stream.chunks
            stream.chunks.clear()
            stream.pending_bytes = 0
            left_bytes -= size_bytes + _HEADER.size
        if stream.end is not None:
            pieces.append(stream.end)
            left_bytes -= len(stream.end)
            stream.end = None
            ended.append(stream.stream_id)
    return left_bytes
