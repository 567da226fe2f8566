"""Silence on a tunnel: what is a sign of life, and when a peer is given up."""

import pytest

from shared.protocol import limits
from shared.protocol.errors import (
    HeartbeatLost,
)
from shared.protocol.heartbeat import Heartbeat
from tests.support.session_pair import SessionPair


@pytest.mark.parametrize("began_s", [step / 7 for step in range(200)])
def test_a_deadline_that_was_handled_is_over_however_sums_are_rounded(began_s: float) -> None:
    heartbeat = Heartbeat(began_s)
    heartbeat.ping(began_s)
    heartbeat.sent(began_s)
    assert heartbeat.next_deadline() == began_s + limits.SILENT_AFTER_S
    heartbeat.handle_deadline(heartbeat.next_deadline())
    assert heartbeat.silent
    assert heartbeat.next_deadline() > began_s + limits.SILENT_AFTER_S


def test_silence_ends_the_tunnel_and_any_byte_is_life(pair: SessionPair) -> None:
    pair.gateway.bytes_received(25.0)
    pair.gateway.handle_deadline(25.0)  # PING
    while (now := pair.gateway.next_deadline()) < 25.0 + limits.SILENT_MOST_S:
        pair.gateway.handle_deadline(now)
    assert now == 25.0 + limits.SILENT_MOST_S
    with pytest.raises(HeartbeatLost):
        pair.gateway.handle_deadline(now)


def pings_of(heartbeat: Heartbeat, until_s: float, hears_every_s: float) -> list[float]:
    """When it sends a PING up to then, while the peer is heard so often."""
    sent_s, heard_s = list[float](), hears_every_s
    while (now := min(heartbeat.next_deadline(), heard_s)) <= until_s:
        if now == heard_s:
            heartbeat.heard(now)
            heard_s += hears_every_s
        elif heartbeat.handle_deadline(now) is not None:
            sent_s.append(now)
    return sent_s


def test_a_gateway_that_hears_its_agent_sends_few_pings() -> None:
    assert pings_of(Heartbeat(0.0, seldom=True), 100.0, limits.HEARTBEAT_S) == [0.0, 30.0, 60.0, 90.0]
    assert pings_of(Heartbeat(0.0), 40.0, limits.HEARTBEAT_S) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_a_gateway_asks_an_agent_that_is_late_with_its_ping() -> None:
    assert pings_of(Heartbeat(0.0, seldom=True), 25.0, 12.0) == [0.0, 11.0, 23.0]


def test_a_gateway_notices_an_agent_that_is_gone_within_seconds_of_its_next_ping() -> None:
    heartbeat = Heartbeat(0.0, seldom=True)
    assert heartbeat.handle_deadline(0.0) is not None
    heartbeat.heard(10.0)
    assert heartbeat.handle_deadline(heartbeat.next_deadline()) is not None
    heartbeat.sent(10.0 + limits.HEARD_WITHIN_S)
    heartbeat.handle_deadline(heartbeat.next_deadline())
    assert heartbeat.silent
    with pytest.raises(HeartbeatLost):
        heartbeat.handle_deadline(heartbeat.next_deadline())


def test_a_gateway_that_stood_still_asks_at_once() -> None:
    heartbeat = Heartbeat(0.0, seldom=True)
    heartbeat.handle_deadline(0.0)
    heartbeat.heard(1.0)
    assert heartbeat.handle_deadline(60.0) is not None
