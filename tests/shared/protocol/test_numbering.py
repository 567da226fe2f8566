"""Numbered messages: kept until they are acknowledged, and acknowledged in time."""

import pytest

from shared.protocol import limits
from shared.protocol.errors import (
    UnexpectedFrame,
)
from shared.protocol.frames import FrameType, encode, encode_offset
from tests.support.session_pair import OK, SessionPair


def test_numbered_messages_are_acknowledged_and_forgotten(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, OK)
    pair.send(pair.agent)
    sent = pair.agent.log.sent
    assert len(pair.agent.log._retained) == sent
    pair.deliver(pair.gateway)
    assert pair.gateway.log.received == pair.agent.log.sent
    pair.now += limits.GATEWAY_ACK_DELAY_S
    pair.gateway.handle_deadline(pair.now)
    pair.settle()
    assert not pair.agent.log._retained
    assert pair.agent.log.retained_bytes == 0


def test_an_ack_without_room_to_leave_is_no_reason_to_wake_again(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, OK)
    pair.send(pair.agent)
    pair.deliver(pair.gateway)
    pair.settle()
    acknowledged = pair.gateway.log.received - len(pair.agent.log._retained)
    pair.now += limits.GATEWAY_ACK_DELAY_S
    assert pair.gateway.next_deadline() <= pair.now
    pair.gateway.handle_deadline(pair.now)
    assert pair.gateway.next_deadline() > pair.now
    pair.settle()
    assert pair.gateway.log.received - len(pair.agent.log._retained) > acknowledged


def test_sending_stops_when_too_much_is_unacknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETAINED_BYTES", 1000)
    pair = SessionPair()
    pair.answering(bytes(50_000))
    pair.send(pair.agent, 1000)
    assert pair.send(pair.agent, 1000) == []
    pair.deliver(pair.gateway)
    pair.now += limits.GATEWAY_ACK_DELAY_S
    pair.gateway.handle_deadline(pair.now)
    pair.send(pair.gateway)
    pair.deliver(pair.agent)
    assert pair.send(pair.agent, 1000) != []


def test_an_ack_of_what_was_never_sent_is_an_error(pair: SessionPair) -> None:
    with pytest.raises(UnexpectedFrame):
        pair.agent.receive_message(encode(FrameType.ACK, 0, encode_offset(99)), pair.now)


def test_an_agent_acknowledges_sooner_than_a_gateway(pair: SessionPair) -> None:
    assert pair.agent.log.ack_delay_s == limits.ACK_DELAY_S
    assert pair.gateway.log.ack_delay_s == limits.GATEWAY_ACK_DELAY_S
    assert limits.GATEWAY_ACK_DELAY_S < limits.SILENT_AFTER_S < limits.SILENT_MOST_S


def test_messages_that_are_sent_again_on_a_new_tunnel_are_counted(pair: SessionPair) -> None:
    pair.answering(b"token")
    pair.send(pair.agent)
    lost = pair.agent.log.sent - pair.gateway.log.received
    assert lost > 0
    pair.agent.suspend()
    pair.to_gateway.clear()
    assert pair.agent.log.replayed == 0
    pair.agent.resume(pair.gateway.log.received, pair.now)
    pair.send(pair.agent)
    assert pair.agent.log.replayed == lost
