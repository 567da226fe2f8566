"""How the payloads of control frames are read (PROTOCOL §4)."""

from collections.abc import Callable
from typing import Any

from shared.protocol.demand import decode_demand
from shared.protocol.frames import FrameType
from shared.protocol.members import adapter_of
from shared.protocol.messages import AgentState, Drain, decode_levels, read_object
from shared.protocol.others import Others
from shared.protocol.peers import Peers
from shared.protocol.progress import Progress

CONTENT: dict[int, Callable[[bytes], Any]] = {
    FrameType.SLOTS: decode_levels,
    FrameType.STATE: AgentState.from_payload,
    FrameType.DEMAND: decode_demand,
    FrameType.COMMAND: read_object,
    FrameType.RESULT: read_object,
    FrameType.DRAIN: Drain.from_payload,
    FrameType.PEERS: Peers.from_payload,
    FrameType.OTHERS: Others.from_payload,
}
"""How the payload of each control frame is read for :class:`~shared.protocol.events.ControlReceived`."""

for _kind in (AgentState, Drain, Peers, Progress):
    adapter_of(_kind)  # made now, so that the first frame does not wait for it
