"""What a session has to say to the program around it (PROTOCOL §5, §7).

Events are plain data; the session calls nobody.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.process.frozen import frozen
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import AgentState, Drain, RequestHead, ResponseHead, Trailers


@frozen
class StreamOpened:
    """OPEN came (agent)."""

    stream_id: int
    head: RequestHead


@frozen
class HeadReceived:
    """HEAD came (gateway)."""

    stream_id: int
    head: ResponseHead


class DataReceived(NamedTuple):
    """Body bytes. They count against credit until the program calls ``Session.consumed``.

    A tuple, because there is one for every token."""

    stream_id: int
    data: bytes


@frozen
class StreamEnded:
    """The peer's half ended in order. ``trailers`` come from agents only."""

    stream_id: int
    trailers: Trailers | None


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer reset the stream. An agent's program confirms with a RESET once its engine has let go."""

    stream_id: int
    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class StreamWritable:
    """A writer that was told to wait may go on."""

    stream_id: int


@frozen
class StreamClosed:
    """Both halves are over. The last event of a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class SlotsReceived:
    """Deployment id → requests this gateway may have in flight there: levels, not changes."""

    levels: dict[str, int]


@dataclass(frozen=True, slots=True)
class StateReceived:
    state: AgentState


@dataclass(frozen=True, slots=True)
class DemandReceived:
    """Model → requests waiting at the gateway."""

    waiting: dict[str, int]


@dataclass(frozen=True, slots=True)
class CommandReceived:
    command: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResultReceived:
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DrainReceived:
    drain: Drain


@dataclass(frozen=True, slots=True)
class PeerSilent:
    """The peer owes an answer for too long; its tunnel may be dead (PROTOCOL §7.2)."""


@dataclass(frozen=True, slots=True)
class PeerHeard:
    """It was heard again, on the same tunnel."""


@dataclass(frozen=True, slots=True)
class RoundTripMeasured:
    """The session's ``rtt_s`` is another one."""


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """The peer ended the session with CLOSE."""

    code: ErrorCode
    reason: str


Event = (
    StreamOpened
    | HeadReceived
    | DataReceived
    | StreamEnded
    | StreamReset
    | StreamWritable
    | StreamClosed
    | SlotsReceived
    | StateReceived
    | DemandReceived
    | CommandReceived
    | ResultReceived
    | DrainReceived
    | PeerSilent
    | PeerHeard
    | RoundTripMeasured
    | PeerClosed
)
