"""What a session reports to the program around it (PROTOCOL §5, §7).

Events are plain data: the session makes no calls of its own. Those of every stream are structs, which are
made and read fastest.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from shared.protocol.errors import ErrorCode
from shared.protocol.messages import RequestHead, ResponseHead, Trailers
from shared.protocol.progress import Progress


class StreamOpened(Struct, frozen=True, gc=False):
    """OPEN came (agent)."""

    stream_id: int
    head: RequestHead


class HeadReceived(Struct, frozen=True, gc=False):
    """HEAD came (gateway)."""

    stream_id: int
    head: ResponseHead


class DataReceived(Struct, frozen=True, gc=False):
    """Body bytes. They count against credit until the program calls ``ProtocolSession.consume``."""

    stream_id: int
    data: bytes


class StreamEnded(Struct, frozen=True, gc=False):
    """The peer's half ended in order. ``trailers`` come from agents only."""

    stream_id: int
    trailers: Trailers | None


@dataclass(frozen=True, slots=True)
class ProgressReceived:
    """PROGRESS came (gateway). One that came before is out of date."""

    stream_id: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer reset the stream. An agent's program confirms with a RESET once its engine has let go."""

    stream_id: int
    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class StreamWritable:
    """A writer whose ``send_data`` returned False may write again."""

    stream_id: int


class StreamClosed(Struct, frozen=True, gc=False):
    """Both halves are over. The last event of a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A control frame came, STATE or SLOTS for example; ``content`` is its payload, read and checked.

    That is an ``AgentState``, a level or a ``Demand`` for each name, the JSON object of a command or result,
    the ``Peers``, or a ``Drain``.
    """

    type: int
    content: Any


class TunnelEvent(Enum):
    """What happened to the tunnel under a session (PROTOCOL §7.2)."""

    PEER_SILENT = auto()
    """The peer has owed an answer for too long; its tunnel may be dead."""
    PEER_HEARD = auto()
    """A silent peer was heard again, on the same tunnel."""
    ROUND_TRIP_MEASURED = auto()
    """The session's ``rtt_s`` has changed."""


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """The peer ended the session with CLOSE."""

    code: ErrorCode
    reason: str


StreamEvent = (
    StreamOpened
    | HeadReceived
    | DataReceived
    | StreamEnded
    | ProgressReceived
    | StreamReset
    | StreamWritable
    | StreamClosed
)

Event = StreamEvent | ControlReceived | TunnelEvent | PeerClosed
