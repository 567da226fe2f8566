"""The processes that the settings name (PROTOCOL §7.5)."""

import pytest

from gateway.cluster.peers import BadPeer, StaticPeerDirectory
from shared.protocol import limits
from shared.protocol.peers import GatewayPeer


def test_agents_are_told_of_all_and_of_this_one_with_its_incarnation() -> None:
    directory = StaticPeerDirectory("a", 7, ["b=https://b.example", "c"])
    assert directory.own == GatewayPeer("a", 7)
    assert set(directory.peers_for("gpu-1")) == {
        GatewayPeer("a", 7),
        GatewayPeer("b", 0, "https://b.example"),
        GatewayPeer("c", 0),
    }


def test_every_process_may_be_given_the_same_list() -> None:
    directory = StaticPeerDirectory("b", 7, ["a", "b=https://b.example"])
    assert directory.own == GatewayPeer("b", 7, "https://b.example")
    assert len(directory.peers_for("gpu-1")) == 2


def test_of_too_many_an_agent_is_told_of_the_same_by_all() -> None:
    names = [f"p{n}" for n in range(100)]
    told = [
        {peer.process for peer in StaticPeerDirectory(own, 1, names).peers_for("gpu-1")} for own in names[:5]
    ]
    assert all(len(each) == limits.PEERS for each in told)
    assert all(len(each & told[0]) >= limits.PEERS - 2 for each in told)


@pytest.mark.parametrize(
    ("peer", "complaint"),
    [
        ("B", "cannot name"),
        ("b/c", "cannot name"),
        ("b=", "or none"),
        ("b=https://" + "x" * 200, "more than 200"),
    ],
)
def test_what_cannot_be_a_peer_is_named(peer: str, complaint: str) -> None:
    with pytest.raises(BadPeer, match=complaint):
        StaticPeerDirectory("a", 1, [peer])


def test_two_addresses_for_one_process_are_one_too_many() -> None:
    with pytest.raises(BadPeer, match="b is named twice"):
        StaticPeerDirectory("a", 1, ["b=https://x", "b=https://y"])
