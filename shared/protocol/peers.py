"""The processes of one gateway, as they name themselves and each other (PROTOCOL §7.5).

An agent holds a session with each of them. What is read here was said by a gateway; it is bounded, and says
nothing about who a peer is: every tunnel proves that by itself (PROTOCOL §8).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import orjson
from pydantic import BeforeValidator, Field

from shared.process.frozen import frozen
from shared.protocol import limits
from shared.protocol.members import Payload

DEMAND = "demand"
"""The gateway sends DEMAND, and the agent divides its slots by it (PROTOCOL §4.7)."""

PEERS = "peers"
"""The gateway says by PEERS when its processes change."""

GPU_SECONDS = "gpu_s"
"""The agent reports a request's GPU-seconds in END (PROTOCOL §4.4)."""

EPOCHS = "epochs"
"""COMMAND says by which right it is sent, and the agent refuses one of a former owner (PROTOCOL §4.8)."""

OTHERS = "others"
"""OPEN says what the gateway expects, and the agent tells its other sessions by OTHERS (PROTOCOL §4.11)."""

CAPABILITIES = (DEMAND, PEERS, GPU_SECONDS, EPOCHS, OTHERS)
"""What this version can do of what not every version can, for HELLO and WELCOME (PROTOCOL §8.4)."""

PROGRESS = "progress"
"""The agent says by PROGRESS how far requests have come (PROTOCOL §4.12). Also a gateway of one process
agrees on it."""

UPLINK = "uplink"
"""The agent is a gateway (PROTOCOL §7.6). Also a gateway of one process agrees on it."""

DECLINES = "declines"
"""An agent that is a gateway says by DECLINED what it will not take later either (PROTOCOL §7.6)."""

ANY_CAPABILITIES = (PROGRESS, UPLINK, DECLINES)
"""What is agreed on also by a gateway of one process, to which agents otherwise say none."""

PROCESS_PATTERN = "^[a-z0-9][a-z0-9._-]{0,47}$"
"""What a process's name may be: it is part of a path."""

ProcessName = Annotated[str, Field(pattern=PROCESS_PATTERN)]
Incarnation = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]


def _usable_url(value: Any) -> Any:
    """None for an address that is longer than allowed, or that no line of a log should hold."""
    if isinstance(value, str) and not (0 < len(value) <= limits.PEER_URL_CHARS and value.isprintable()):
        return None
    return value


@frozen
class GatewayPeer:
    """One process of the gateway. Of two with one name the one of the higher incarnation is there now."""

    process: ProcessName
    incarnation: Incarnation
    url: Annotated[str | None, BeforeValidator(_usable_url)] = None
    """Where an agent dials it; None: by its path at the gateway's own address (PROTOCOL §7.5)."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; ``url`` only where there is one."""
        said: dict[str, Any] = {"process": self.process, "incarnation": self.incarnation}
        return said if self.url is None else said | {"url": self.url}


def _newest_of_each(peers: tuple[GatewayPeer, ...]) -> tuple[GatewayPeer, ...]:
    newest: dict[str, GatewayPeer] = {}
    for peer in peers:
        known = newest.get(peer.process)
        if known is None or known.incarnation < peer.incarnation:
            newest[peer.process] = peer
    return tuple(newest.values())


class PeerDirectory(Protocol):
    """What a process of a gateway knows of all of them."""

    @property
    def own(self) -> GatewayPeer:
        """This process."""

    def peers_for(self, agent: str) -> Sequence[GatewayPeer]:
        """The processes that the agent of that name is told of: all, or 64 of them; this one among them."""


PeerList = Annotated[tuple[GatewayPeer, ...], Field(max_length=limits.PEERS)]


@frozen
class Peers(Payload):
    """PEERS: all processes of the gateway that are there now, the sender included; whole each time."""

    peers: PeerList = ()

    @property
    def newest(self) -> tuple[GatewayPeer, ...]:
        """Each process once."""
        return _newest_of_each(self.peers)

    def to_dict(self) -> dict[str, Any]:
        return {"peers": [peer.to_dict() for peer in self.peers]}

    def to_payload(self) -> bytes:
        return orjson.dumps(self.to_dict())
