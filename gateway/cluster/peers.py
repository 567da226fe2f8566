"""The processes of this gateway as the settings name them (PROTOCOL §7.5)."""

import re
import time
from collections.abc import Sequence
from hashlib import sha256

from shared.protocol import limits
from shared.protocol.peers import PROCESS_PATTERN, GatewayPeer

UNKNOWN_INCARNATION = 0
"""That of a process which is known by its name only. It ends no session: every other one is higher."""


class BadPeer(ValueError):
    """A peer that is not written ``NAME`` or ``NAME=URL``, or named twice."""


def new_incarnation() -> int:
    """That of a process which starts now: higher than of each earlier start, as long as the host's clock goes
    forward from one to the next."""
    return time.time_ns() // 1_000_000


def told_to(agent: str, own: GatewayPeer, others: Sequence[GatewayPeer]) -> Sequence[GatewayPeer]:
    """All processes; of more than 64 this one and those that rank highest for the agent."""
    if len(others) < limits.PEERS:
        return own, *others

    def rank(peer: GatewayPeer) -> bytes:
        return sha256(f"{agent}\0{peer.process}".encode()).digest()

    return own, *sorted(others, key=rank, reverse=True)[: limits.PEERS - 1]


def read_peers(process: str, peers: Sequence[str]) -> dict[str, str | None]:
    """The URL of each process by its name, ``process`` first; ``peers`` are ``NAME`` or ``NAME=URL``. Raises
    BadPeer."""
    urls: dict[str, str | None] = {}
    for peer in (process, *peers):
        name, given, url = peer.partition("=")
        if not re.fullmatch(PROCESS_PATTERN, name):
            raise BadPeer(f"{name!a} cannot name a process: write letters, digits, '.', '_' and '-'")
        if given and not (url.isprintable() and 0 < len(url) <= limits.PEER_URL_CHARS):
            raise BadPeer(f"the URL of {name} has more than {limits.PEER_URL_CHARS} characters, or none")
        if urls.get(name) is not None:
            raise BadPeer(f"{name} is named twice")
        urls[name] = url or None
    return urls


class StaticPeerDirectory:
    """Implements :class:`shared.protocol.peers.PeerDirectory`: what was written down, and nothing changes."""

    def __init__(self, process: str, incarnation: int, peers: Sequence[str]) -> None:
        """``process`` is this one, of that incarnation; ``peers`` are ``NAME`` or ``NAME=URL``, this process
        among them or not. Raises BadPeer."""
        urls = read_peers(process, peers)
        self.own = GatewayPeer(process, incarnation, urls.pop(process))
        self._others = [GatewayPeer(name, UNKNOWN_INCARNATION, url) for name, url in urls.items()]

    def peers_for(self, agent: str) -> Sequence[GatewayPeer]:
        """See :func:`told_to`."""
        return told_to(agent, self.own, self._others)
