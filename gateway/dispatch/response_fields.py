"""What a response consists of, and what waits of it for its reader."""

import asyncio
from collections.abc import Callable

from gateway.dispatch.recovery import Splicer
from gateway.dispatch.response_buffers import UnreadBudget, UnreadBuffer
from gateway.dispatch.response_stream import READ_BYTES, Ending, Sink
from gateway.domain.errors import StreamBroken
from gateway.domain.request import Principal
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers
from shared.speedups import BodyPath

_NOT_READ_BACK = "What was kept of the answer until it is read could not be read back."


class ResponseFields:
    """In slots: what some responses get late would else be in a dictionary of their own, and found slowly."""

    __slots__ = (
        "_asks_again",
        "_broken",
        "_ended",
        "_ending",
        "_first",
        "_held",
        "_kept_back",
        "_no_room",
        "_older_bytes",
        "_outstanding_bytes",
        "_owed_bytes",
        "_owner",
        "_path",
        "_reader",
        "_record",
        "_sink",
        "_splicer",
        "_stream",
        "_sunk_bytes",
        "_unread",
        "_waiter",
        "_window_held",
        "agent",
        "attempts",
        "deployment",
        "headers",
        "queue_s",
        "ran_by",
        "status",
        "taken_bytes",
        "trailers",
        "version",
    )

    # What is so when nothing has come yet is set by :class:`~gateway.dispatch.response.EngineResponse`.
    _first: bytes
    """All that waits for the reader, where that is one piece and there is no buffer."""
    _held: UnreadBuffer | None
    """What waits, unless that is one piece."""
    trailers: Trailers | None
    """Once it has ended, if the agent had anything to say."""
    taken_bytes: int
    """By its client."""
    _waiter: asyncio.Future[None] | None
    _sink: Sink | None
    """Only while the reader waits: then nothing is buffered or joined."""
    _sunk_bytes: int
    """Of the stream, taken by the sink and not yet reported as consumed."""
    _path: BodyPath | None
    """The sink's, which was given to the stream."""
    _outstanding_bytes: int
    _splicer: Splicer | None
    _owed_bytes: int
    """Of the joined stream, arrived and not yet reported as consumed."""
    _older_bytes: int
    """Of them, which its stream does not wait for: another's, or held in memory."""
    _window_held: bool
    """Of the stream, which has ended, until its reader takes all or begins."""
    _no_room: bool
    """For what its reader has not taken."""
    _asks_again: bool
    """The buffer, by itself, for room."""
    _ended: bool
    _broken: StreamBroken | None
    _ending: Ending | None
    _unread: UnreadBudget | None
    _reader: Principal | None

    @property
    def _buffer(self) -> UnreadBuffer:
        """What waits for the reader, however much that is."""
        if self._held is None:
            self._held = UnreadBuffer(self._unread, self._reader)
            if self._first:
                self._held.put(self._first)
                self._first = b""
        return self._held

    def _take_ready(self, wake: Callable[[], None]) -> list[bytes] | None:
        """What there is for the reader at once; None: it has to wait. What has to be read from the
        file first is told by ``wake``."""
        held = self._held
        if held is None:
            if not self._first:
                return None
            data, self._first = self._first, b""  # a reader that keeps up finds all of it here
            return [data]
        if not held.ready(wake):
            return None
        try:
            return held.take(READ_BYTES)
        except OSError as error:
            raise StreamBroken(ErrorCode.INTERNAL, _NOT_READ_BACK) from error
