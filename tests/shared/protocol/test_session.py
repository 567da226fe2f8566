"""Two sessions in memory: what may happen on streams, in which order, within which bounds."""

import pytest

from shared.protocol import limits
from shared.protocol.errors import (
    ErrorCode,
    SessionClosed,
)
from shared.protocol.events import (
    DataReceived,
    HeadReceived,
    PeerClosed,
    StreamClosed,
    StreamEnded,
    StreamOpened,
)
from shared.protocol.frames import FrameType, encode
from shared.protocol.messages import Trailers, Usage
from tests.support.session_pair import OK, SessionPair, frames_of, request_head


def test_a_body_that_came_whole_gets_no_further_credit(pair: SessionPair) -> None:
    whole = pair.gateway.open_stream(request_head(), pair.now)
    pair.gateway.send_data(whole, b"prompt")
    pair.gateway.end(whole)
    goes_on = pair.gateway.open_stream(request_head(), pair.now)
    pair.gateway.send_data(goes_on, b"pro")
    pair.send(pair.gateway)
    pair.deliver(pair.agent)
    assert frames_of(pair.send(pair.agent)) == [("CREDIT", goes_on)]


def test_messages_of_bodies_say_whether_anything_follows_from_them(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.send_data(stream_id, b"prompt")
    (message,) = pair.gateway.data_to_send(1 << 20, pair.now)
    agent = pair.agent
    agent.timer_at = agent.next_deadline()
    agent.deadline_nearer = False
    for _ in range(agent.log._ack_from - agent.log.received - 1):
        assert not agent.receive_message(message, pair.now)
        assert not agent.wants_to_send
        assert agent.next_deadline() >= agent.timer_at
    assert agent.receive_message(message, pair.now), "an ACK is due"
    assert agent.wants_to_send


def test_a_pong_brings_an_ack_that_is_not_due_yet(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.send_data(stream_id, b"prompt")
    (message,) = pair.gateway.data_to_send(1 << 20, pair.now)
    pair.agent.receive_message(message, pair.now)
    assert not pair.agent._ack_due
    pair.agent.receive_message(encode(FrameType.PING, 0, bytes(8)), pair.now)
    (answer,) = pair.agent.data_to_send(1 << 20, pair.now)
    assert frames_of([answer]) == [("ACK", 0), ("PONG", 0)]
    pair.gateway.receive_message(answer, pair.now)
    assert not pair.gateway.log._retained
    assert pair.agent.log.ack_at is None


def test_a_session_says_when_its_deadline_has_come_nearer(pair: SessionPair) -> None:
    for session in (pair.gateway, pair.agent):
        session.handle_deadline(0.0)  # PING
        session.data_to_send(1 << 20, 0.0)
        session.bytes_received(0.0)
        session.timer_at = session.next_deadline()
        session.deadline_nearer = False
    assert pair.agent.timer_at == limits.HEARTBEAT_S
    pair.gateway.open_stream(request_head(), 0.0)
    assert not pair.gateway.deadline_nearer
    (message,) = pair.gateway.data_to_send(1 << 20, 0.0)
    assert pair.agent.receive_message(message, 0.0)
    for session, nearer_s in ((pair.gateway, limits.SILENT_AFTER_S), (pair.agent, limits.ACK_DELAY_S)):
        assert session.deadline_nearer
        assert session.next_deadline() == nearer_s


def test_a_request_and_its_response_in_order(pair: SessionPair) -> None:
    stream_id = pair.gateway.open_stream(request_head(), pair.now)
    pair.gateway.send_data(stream_id, b"prompt")
    pair.gateway.end(stream_id)
    _, at_agent = pair.settle()
    assert isinstance(at_agent[0], StreamOpened)
    assert at_agent[1:] == [DataReceived(stream_id, b"prompt"), StreamEnded(stream_id, None)]
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"token")
    trailers = Trailers(Usage(1, 1, 0), total_s=0.5)
    pair.agent.end(stream_id, trailers)
    at_gateway, at_agent = pair.settle()
    assert at_gateway == [
        HeadReceived(stream_id, OK),
        DataReceived(stream_id, b"token"),
        StreamEnded(stream_id, trailers),
        StreamClosed(stream_id),
    ]
    assert at_agent == [StreamClosed(stream_id)]
    assert pair.gateway.open_streams == pair.agent.open_streams == 0


def test_closing_is_the_last_word(pair: SessionPair) -> None:
    pair.gateway.close(ErrorCode.DRAINING, "bye")
    with pytest.raises(SessionClosed):
        pair.gateway.open_stream(request_head(), pair.now)
    pair.send(pair.gateway)
    assert pair.deliver(pair.agent) == [PeerClosed(ErrorCode.DRAINING, "bye")]
    assert pair.agent.closed
