"""Agents are told when the gateway's processes change (PROTOCOL §4.10)."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster.peer_notices import AT_ONCE, PeerNotices
from gateway.cluster.peers import StaticPeerDirectory
from shared.protocol.errors import SessionClosed
from shared.protocol.peers import DEMAND, PEERS, GatewayPeer, Peers
from tests.gateway.cluster.test_demand import Timers


@dataclass(eq=False)
class Session:
    name: str = "gpu-1"
    closed: bool = False
    gone: bool = False
    told: list[Peers] = field(default_factory=list)

    @property
    def principal(self) -> Any:
        return SimpleNamespace(name=self.name)

    @property
    def endpoint(self) -> Any:
        return SimpleNamespace(send_peers=self._take)

    def _take(self, peers: Peers) -> None:
        if self.gone:
            raise SessionClosed
        self.told.append(peers)


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def notices(timers: Timers) -> PeerNotices:
    return PeerNotices(StaticPeerDirectory("a", 3, ["b"]), timers)


def test_agents_that_agreed_to_it_are_told_all(notices: PeerNotices) -> None:
    new, old = Session(), Session("gpu-2")
    notices.agreed(new, [DEMAND, PEERS])
    notices.agreed(old, [DEMAND])
    notices.changed()
    assert [peers.peers for peers in new.told] == [(GatewayPeer("a", 3), GatewayPeer("b", 0))]
    assert not old.told


def test_sessions_that_are_over_are_forgotten(notices: PeerNotices) -> None:
    closed, gone, there = Session(closed=True), Session(gone=True), Session()
    for session in (closed, gone, there):
        notices.agreed(session, [PEERS])
    notices.changed()
    assert (len(notices), len(there.told), len(closed.told)) == (1, 1, 0)


def test_so_many_in_a_turn_of_the_loop_and_nobody_twice(notices: PeerNotices, timers: Timers) -> None:
    sessions = [Session(f"gpu-{n}") for n in range(2 * AT_ONCE + 1)]
    for session in sessions:
        notices.agreed(session, [PEERS])
    notices.changed()
    assert sum(len(session.told) for session in sessions) == AT_ONCE
    for _ in range(3):
        timers.pass_time(0.0)
    assert all(len(session.told) == 1 for session in sessions)
    assert not timers.set


def test_what_changes_meanwhile_is_told_to_all(notices: PeerNotices, timers: Timers) -> None:
    sessions = [Session(f"gpu-{n}") for n in range(2 * AT_ONCE)]
    for session in sessions:
        notices.agreed(session, [PEERS])
    notices.changed()
    notices.changed()
    while timers.set:
        timers.pass_time(0.0)
    told = [len(session.told) for session in sessions]
    assert min(told) == 1
    assert sum(told) == 3 * AT_ONCE
