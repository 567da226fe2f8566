"""What a response consists of."""

import asyncio

from gateway.dispatch.recovery import Splicer
from gateway.dispatch.response_buffers import UnreadBuffer
from gateway.dispatch.response_stream import Ending, Sink
from gateway.domain.errors import StreamBroken
from shared.protocol.messages import Trailers
from shared.speedups import BodyPath


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
