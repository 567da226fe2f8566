"""Sessions that lose their tunnels, in memory: what is kept, what is sent again, what is refused."""

import pytest

from shared.protocol import limits
from shared.protocol.errors import ErrorCode, HeartbeatLost, ResumeRefused
from shared.protocol.events import HeadReceived, StreamReset, StreamWritable, TunnelEvent
from shared.protocol.heartbeat import Heartbeat
from shared.protocol.messages import AgentState, AgentStatus, ResponseHead
from tests.support.session_pair import SessionPair, body, consumed, request_head


def test_messages_lost_with_the_tunnel_are_sent_again_and_none_twice(pair: SessionPair) -> None:
    stream_id = pair.answering(b"one")
    pair.send(pair.agent)
    at_gateway = pair.deliver(pair.gateway)
    pair.agent.send_data(stream_id, b"two")
    pair.send(pair.agent)
    pair.cut()
    pair.agent.send_data(stream_id, b"three")
    assert pair.agent.data_to_send(1 << 20, pair.now) == []
    pair.reconnect()
    again, _ = pair.settle()
    assert body(at_gateway, stream_id) == b"one"
    assert body(again, stream_id) == b"twothree"
    assert not [event for event in again if isinstance(event, HeadReceived)]


def test_a_tunnel_lost_while_messages_are_sent_again_loses_none_of_them(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, ResponseHead(200, ()))
    for number in range(5):
        pair.agent.send_data(stream_id, b"%d" % number)
        pair.send(pair.agent)
    pair.cut()
    received = b""
    for _ in range(4):
        pair.reconnect()
        pair.send(pair.agent, budget_bytes=1)  # a message at a time
        pair.send(pair.agent, budget_bytes=1)
        received += body(pair.deliver(pair.gateway, 1), stream_id)
        pair.cut()
    pair.reconnect()
    received += body(pair.settle()[0], stream_id)
    assert received == b"01234"


def test_link_frames_are_not_sent_again(pair: SessionPair) -> None:
    pair.settle()
    pair.agent.handle_deadline(pair.now + limits.HEARTBEAT_S)
    pair.cut()
    assert not pair.agent.wants_to_send
    pair.reconnect()
    assert pair.agent.log.sent == 0


def test_a_new_tunnel_begins_with_a_ping(pair: SessionPair) -> None:
    pair.settle()
    pair.now += 1
    pair.cut()
    pair.now += 5
    pair.reconnect()
    assert pair.agent.next_deadline() <= pair.now


@pytest.mark.parametrize("received", [0, 1, 99])
def test_a_peer_with_other_messages_than_it_can_have_is_refused(received: int) -> None:
    pair = SessionPair()
    pair.open()
    pair.open()
    pair.now += 1
    pair.agent.handle_deadline(pair.now)  # an ACK of both
    pair.settle()
    pair.cut()
    with pytest.raises(ResumeRefused):
        pair.gateway.resume(received, pair.now)
    assert pair.gateway.suspended
    pair.gateway.resume(2, pair.now)
    assert not pair.gateway.suspended


def test_an_agent_without_a_tunnel_works_on_as_far_as_credit_goes(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, ResponseHead(200, ()))
    pair.settle()
    while pair.agent.send_data(stream_id, bytes(1024)):
        pass
    pair.cut()
    assert StreamWritable(stream_id) in pair.agent.take_events()
    written = limits.SEND_BUFFER_BYTES + 1024
    while pair.agent.send_data(stream_id, bytes(1024)):
        written += 1024
    assert limits.SEND_BUFFER_BYTES < written <= limits.STREAM_WINDOW_BYTES + 1024
    pair.reconnect()
    events, _ = pair.settle()
    assert len(body(events, stream_id)) == limits.STREAM_WINDOW_BYTES


def test_of_states_sent_without_a_tunnel_the_newest_arrives(pair: SessionPair) -> None:
    pair.cut()
    pair.agent.send_slots({"d1": 1})
    pair.agent.send_state(AgentState(AgentStatus.BUSY))
    pair.agent.send_slots({"d1": 2})
    pair.reconnect()
    events, _ = pair.settle()
    assert len(events) == 2


def test_a_cancel_without_a_tunnel_reaches_the_agent_later(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.cut()
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.reconnect()
    _, at_agent = pair.settle()
    assert any(isinstance(event, StreamReset) for event in at_agent)
    pair.agent.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    assert pair.gateway.open_streams == pair.agent.open_streams == 0


def test_memory_for_what_may_be_sent_again_is_bounded_over_any_number_of_tunnels(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, ResponseHead(200, ()))
    for _ in range(20):
        while pair.agent.send_data(stream_id, bytes(16_000)):
            pass
        while pair.send(pair.agent):
            pass
        pair.deliver(pair.gateway, 1)
        consumed(pair.gateway, stream_id, pair.gateway.held_bytes, pair.now)
        pair.send(pair.gateway)
        pair.deliver(pair.agent)
        pair.cut()
        pair.agent.take_events()
        assert pair.agent.log.retained_bytes <= limits.RETAINED_BYTES + limits.MESSAGE_BYTES
        pair.reconnect()
        pair.settle()
        consumed(pair.gateway, stream_id, pair.gateway.held_bytes, pair.now)
        pair.settle()


def test_a_peer_that_owes_an_answer_is_silent_after_three_seconds_until_it_is_heard(
    pair: SessionPair,
) -> None:
    pair.gateway.handle_deadline(pair.now)  # PING
    pair.settle()
    pair.now += 8
    pair.gateway.bytes_received(pair.now)
    pair.gateway.open_stream(request_head(), pair.now)
    pair.send(pair.gateway)
    pair.now += 2
    pair.gateway.handle_deadline(pair.now)  # the next PING
    assert pair.gateway.take_events() == []
    assert pair.gateway.next_deadline() == 8 + limits.SILENT_AFTER_S
    pair.now = 8 + limits.SILENT_AFTER_S
    pair.gateway.handle_deadline(pair.now)
    assert pair.gateway.take_events() == [TunnelEvent.PEER_SILENT]
    pair.now += 1
    assert pair.gateway.bytes_received(pair.now)
    assert pair.gateway.take_events() == [TunnelEvent.PEER_HEARD]
    assert not pair.gateway.bytes_received(pair.now)


def test_a_peer_that_owes_nothing_may_be_quiet() -> None:
    heartbeat = Heartbeat(0.0)
    assert heartbeat.handle_deadline(0.0) is not None
    heartbeat.sent(0.0)
    heartbeat.heard(0.1)
    assert heartbeat.next_deadline() == limits.HEARTBEAT_S
    heartbeat.handle_deadline(9.0)
    assert not heartbeat.silent


def test_a_program_that_stood_still_does_not_blame_its_peer() -> None:
    heartbeat = Heartbeat(0.0)
    heartbeat.handle_deadline(0.0)
    heartbeat.sent(0.0)
    assert heartbeat.handle_deadline(100.0) is not None, "a PING asks at once"
    assert not heartbeat.silent
    assert heartbeat.next_deadline() == 100.0 + limits.SILENT_AFTER_S
    heartbeat.handle_deadline(103.0)
    assert heartbeat.silent
    with pytest.raises(HeartbeatLost):
        heartbeat.handle_deadline(100.0 + limits.HEARTBEAT_S)


def test_a_peer_that_is_asked_is_heard_or_silent_soon(pair: SessionPair) -> None:
    pair.gateway.handle_deadline(pair.now)
    pair.settle()
    pair.gateway.bytes_received(pair.now)
    pair.now = 6
    assert pair.gateway.quiet_s(pair.now) == 6
    pair.gateway.probe(pair.now)
    assert pair.gateway.next_deadline() == 6 + limits.SILENT_AFTER_S
    pair.send(pair.gateway)
    pair.deliver(pair.agent)
    assert pair.send(pair.agent), "the answer"
    pair.cut()
    assert pair.gateway.quiet_s(pair.now) == float("inf")
    pair.gateway.probe(pair.now)
    assert not pair.gateway.wants_to_send
