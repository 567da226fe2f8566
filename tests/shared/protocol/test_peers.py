"""The processes of a gateway as PEERS names them (PROTOCOL §4.10)."""

from typing import Any

import orjson
import pytest

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.peers import GatewayPeer, Peers

LONGEST = GatewayPeer("p" * 48, 2**53 - 1, "wss://" + "h" * (limits.PEER_URL_CHARS - 6))


def read(*peers: dict[str, Any]) -> Peers:
    return Peers.from_payload(orjson.dumps({"peers": peers}))


def test_what_is_said_is_read() -> None:
    said = Peers((GatewayPeer("a", 3), GatewayPeer("b", 1, "wss://b.example")))
    assert Peers.from_payload(said.to_payload()) == said


def test_as_many_as_there_may_be_fit_into_a_frame() -> None:
    payload = Peers((LONGEST,) * limits.PEERS).to_payload()
    assert len(payload) <= limits.CONTROL_PAYLOAD_BYTES
    assert len(Peers.from_payload(payload).peers) == limits.PEERS


def test_one_more_is_malformed() -> None:
    with pytest.raises(FrameMalformed, match="peers"):
        Peers.from_payload(Peers((LONGEST,) * (limits.PEERS + 1)).to_payload())


@pytest.mark.parametrize("process", ["", "A", "a/b", "..", "-a", "a" * 49, "a b", 7, None])
def test_a_name_that_is_no_part_of_a_path_is_malformed(process: Any) -> None:
    with pytest.raises(FrameMalformed, match="process"):
        read({"process": process, "incarnation": 1})


@pytest.mark.parametrize("incarnation", [-1, 2**53, 1.5, "1", True, None])
def test_an_incarnation_is_a_bounded_number(incarnation: Any) -> None:
    with pytest.raises(FrameMalformed, match="incarnation"):
        read({"process": "a", "incarnation": incarnation})


@pytest.mark.parametrize("url", ["", "wss://" + "h" * 200, "wss://a\nb", None])
def test_an_address_that_cannot_be_used_is_as_if_it_were_missing(url: Any) -> None:
    assert read({"process": "a", "incarnation": 1, "url": url}).peers == (GatewayPeer("a", 1),)


def test_of_two_of_one_name_the_higher_incarnation_counts() -> None:
    peers = Peers((GatewayPeer("a", 2), GatewayPeer("b", 1), GatewayPeer("a", 5), GatewayPeer("a", 4)))
    assert peers.newest == (GatewayPeer("a", 5), GatewayPeer("b", 1))


def test_members_of_later_versions_are_ignored() -> None:
    assert read({"process": "a", "incarnation": 1, "zone": "x"}).peers == (GatewayPeer("a", 1),)
