"""Two sessions in memory: what may happen on streams, in which order, within which bounds."""

import pytest

from shared.protocol import limits
from shared.protocol.credit import AGENT_WINDOWS, PeerLimits, WindowSettings
from shared.protocol.errors import (
    ErrorCode,
    FlowControlViolated,
    FrameMalformed,
    HeartbeatLost,
    SendBufferFull,
    SessionClosed,
    StreamHalfClosed,
    StreamStateError,
    TooManyStreams,
    UnexpectedFrame,
)
from shared.protocol.events import (
    ControlReceived,
    DataReceived,
    HeadReceived,
    PeerClosed,
    StreamClosed,
    StreamEnded,
    StreamOpened,
    StreamReset,
    StreamWritable,
)
from shared.protocol.frames import FrameType, TunnelRole, decode_message, encode, encode_offset, encode_reason
from shared.protocol.heartbeat import Heartbeat
from shared.protocol.messages import AgentState, AgentStatus, ResponseHead, Trailers, Usage
from shared.protocol.session import ProtocolSession
from tests.support.session_pair import SessionPair, body, consumed, request_head

OK = ResponseHead(200, ())


@pytest.fixture
def pair() -> SessionPair:
    return SessionPair()


def opened(pair: SessionPair, streaming: bool = True) -> int:
    """A stream that both sides know."""
    stream_id = pair.gateway.open_stream(request_head(streaming), pair.now)
    pair.settle()
    return stream_id


def frames_of(messages: list[bytes]) -> list[tuple[str, int]]:
    return [
        (FrameType(frame.type).name, frame.stream_id)
        for message in messages
        for frame in decode_message(message)[1]
    ]


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
    stream_id = opened(pair)
    pair.gateway.send_data(stream_id, b"prompt")
    (message,) = pair.gateway.data_to_send(1 << 20, pair.now)
    agent = pair.agent
    agent.timer_at = agent.next_deadline()
    agent.deadline_nearer = False
    for _ in range(limits.ACK_MESSAGES - agent.log._unacked_messages - 1):
        assert not agent.receive_message(message, pair.now)
        assert not agent.wants_to_send
        assert agent.next_deadline() >= agent.timer_at
    assert agent.receive_message(message, pair.now), "an ACK is due"
    assert agent.wants_to_send


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


def test_everything_of_one_turn_leaves_as_one_message(pair: SessionPair) -> None:
    first, second = opened(pair), opened(pair)
    for stream_id in (first, second):
        pair.agent.send_head(stream_id, OK)
        pair.agent.send_data(stream_id, b"a")
        pair.agent.send_data(stream_id, b"b")
    messages = pair.send(pair.agent)
    assert len(messages) == 1
    names = frames_of(messages)
    assert names == [("HEAD", first), ("DATA", first), ("HEAD", second), ("DATA", second)]


def test_sender_waits_when_stream_credit_is_used_up_and_goes_on_when_granted(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    assert pair.agent.send_data(stream_id, bytes(2 * limits.STREAM_WINDOW_BYTES)) is False
    at_gateway, _ = pair.settle()
    assert len(body(at_gateway, stream_id)) == limits.STREAM_WINDOW_BYTES
    consumed(pair.gateway, stream_id, limits.STREAM_WINDOW_BYTES, pair.now)
    at_gateway, at_agent = pair.settle()
    assert len(body(at_gateway, stream_id)) == limits.STREAM_WINDOW_BYTES
    assert StreamWritable(stream_id) in at_agent


def test_credit_follows_consumption_and_not_receipt(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, bytes(limits.STREAM_WINDOW_BYTES))
    pair.settle()
    assert pair.gateway.held_bytes == limits.STREAM_WINDOW_BYTES
    consumed(pair.gateway, stream_id, limits.STREAM_WINDOW_BYTES // 2 - 1, pair.now)
    assert ("CREDIT", stream_id) not in frames_of(pair.send(pair.gateway))
    consumed(pair.gateway, stream_id, 1, pair.now)
    assert ("CREDIT", stream_id) in frames_of(pair.send(pair.gateway))


def test_a_window_that_holds_the_sender_back_doubles(pair: SessionPair) -> None:
    pair.now = 1.0
    pair.gateway.handle_deadline(pair.now)
    pair.send(pair.gateway)
    pair.deliver(pair.agent)
    pair.send(pair.agent)
    pair.now += 0.1
    pair.deliver(pair.gateway)
    assert pair.gateway.rtt_s == pytest.approx(0.1)
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, bytes(limits.STREAM_WINDOW_BYTES * 3))
    pair.settle()
    pair.now += 0.15
    consumed(pair.gateway, stream_id, limits.STREAM_WINDOW_BYTES, pair.now)
    at_gateway, _ = pair.settle()
    assert len(body(at_gateway, stream_id)) == 2 * limits.STREAM_WINDOW_BYTES


def test_writer_is_told_to_wait_and_must(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    assert pair.agent.send_data(stream_id, bytes(limits.SEND_BUFFER_BYTES)) is True
    assert pair.agent.send_data(stream_id, b"x") is False
    with pytest.raises(SendBufferFull):
        pair.agent.send_data(stream_id, b"y")


def test_streams_that_are_stuck_do_not_stop_the_others(pair: SessionPair) -> None:
    stuck = [opened(pair) for _ in range(1000)]
    for stream_id in stuck:
        pair.agent.send_head(stream_id, OK)
        pair.agent.send_data(stream_id, bytes(limits.STREAM_WINDOW_BYTES))
    pair.settle()
    assert pair.gateway.held_bytes <= limits.SESSION_WINDOW_BYTES
    fresh = opened(pair)
    pair.agent.send_head(fresh, OK)
    pair.agent.send_data(fresh, bytes(limits.STREAM_WINDOW_FLOOR_BYTES))
    at_gateway, _ = pair.settle()
    assert len(body(at_gateway, fresh)) == limits.STREAM_WINDOW_FLOOR_BYTES


def test_windows_come_back_when_streams_close(pair: SessionPair) -> None:
    for _ in range(3):
        streams = [opened(pair) for _ in range(500)]
        for stream_id in streams:
            pair.agent.send_head(stream_id, OK)
            pair.agent.send_data(stream_id, b"x" * 100)
            pair.agent.end(stream_id)
        pair.settle()
        for stream_id in streams:
            consumed(pair.gateway, stream_id, 100, pair.now)
    assert pair.gateway.held_bytes == 0
    assert pair.gateway._pool.free == pair.gateway._windows.shareable - 1024 * 16 * 1024


def test_cancel_is_confirmed_by_the_agent_before_the_stream_closes(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.gateway.end(stream_id)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"some")
    pair.settle()
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED, "client gone")
    at_gateway, at_agent = pair.settle()
    assert at_agent == [StreamReset(stream_id, ErrorCode.CANCELLED, "client gone")]
    assert at_gateway == []
    assert pair.gateway.open_streams == 1
    assert pair.agent.send_data(stream_id, b"late") is True
    pair.agent.reset(stream_id, ErrorCode.CANCELLED)
    at_gateway, at_agent = pair.settle()
    assert at_gateway == [StreamClosed(stream_id)]
    assert at_agent == [StreamClosed(stream_id)]
    assert pair.gateway.held_bytes == 0


def test_cancel_that_crosses_the_end_closes_on_both_sides(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.gateway.end(stream_id)
    pair.settle()
    pair.agent.send_head(stream_id, OK)
    pair.agent.end(stream_id)
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    assert pair.gateway.open_streams == pair.agent.open_streams == 0


def test_an_end_stuck_behind_credit_is_dropped_by_cancel(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.gateway.end(stream_id)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, bytes(2 * limits.STREAM_WINDOW_BYTES))
    pair.agent.end(stream_id)
    pair.settle()
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    assert pair.gateway.open_streams == pair.agent.open_streams == 0
    assert pair.gateway.held_bytes == 0


def test_end_after_the_peer_cancelled_confirms_the_cancel(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.settle()
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"unwanted")
    pair.agent.end(stream_id)
    at_gateway, _ = pair.settle()
    assert at_gateway == [StreamClosed(stream_id)]


def test_an_early_answer_stops_the_upload(pair: SessionPair) -> None:
    stream_id = opened(pair, streaming=False)
    pair.gateway.send_data(stream_id, bytes(2 * limits.UPLOAD_WINDOW_BYTES))
    pair.settle()
    pair.agent.send_head(stream_id, ResponseHead(413, ()))
    pair.agent.end(stream_id)
    at_gateway, at_agent = pair.settle()
    assert at_gateway[-1] == StreamClosed(stream_id)
    assert at_agent[-1] == StreamClosed(stream_id)
    with pytest.raises(StreamHalfClosed):
        pair.gateway.send_data(stream_id, b"more")
    assert pair.agent.held_bytes == 0


def test_what_a_closed_stream_left_behind_is_still_owed(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.gateway.end(stream_id)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"12345")
    pair.agent.end(stream_id)
    pair.settle()
    assert pair.gateway.held_bytes == 5
    consumed(pair.gateway, stream_id, 2, pair.now)
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    assert pair.gateway.held_bytes == 0


def test_levels_are_levels_and_only_the_newest_counts(pair: SessionPair) -> None:
    pair.agent.send_slots({"d1": 4})
    pair.agent.send_state(AgentState(AgentStatus.READY))
    pair.agent.send_slots({"d1": 2})
    names = frames_of(pair.send(pair.agent))
    assert names == [("STATE", 0), ("SLOTS", 0)]
    assert pair.deliver(pair.gateway)[-1] == ControlReceived(FrameType.SLOTS, {"d1": 2})


def test_no_more_streams_than_the_agent_allows() -> None:
    windows = WindowSettings(floor=1024, initial=2048, maximum=4096, session=16384, streams=3)
    pair = SessionPair(agent_windows=windows)
    for _ in range(3):
        pair.gateway.open_stream(request_head(), pair.now)
    with pytest.raises(TooManyStreams):
        pair.gateway.open_stream(request_head(), pair.now)


def test_interactive_bytes_overtake_bulk(pair: SessionPair) -> None:
    bulk, tokens = opened(pair, streaming=False), opened(pair, streaming=True)
    pair.agent.send_head(bulk, OK)
    pair.agent.send_head(tokens, OK)
    pair.settle()
    pair.agent.send_data(bulk, bytes(limits.INTERACTIVE_BYTES))
    pair.settle()
    pair.agent.send_data(bulk, bytes(limits.SEND_BUFFER_BYTES))
    pair.agent.send_data(tokens, b"token")
    assert frames_of(pair.send(pair.agent, 100)) == [("DATA", tokens), ("DATA", bulk)]


def test_streams_of_a_class_take_turns(pair: SessionPair) -> None:
    first, second = opened(pair), opened(pair)
    for stream_id in (first, second):
        pair.agent.send_head(stream_id, OK)
        pair.agent.send_data(stream_id, bytes(3 * limits.DATA_PAYLOAD_BYTES))
    names = [name for name in frames_of(pair.send(pair.agent)) if name[0] == "DATA"]
    assert names == [("DATA", first), ("DATA", second)] * 3


def test_numbered_messages_are_acknowledged_and_forgotten(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    pair.send(pair.agent)
    sent = pair.agent.log.sent
    assert len(pair.agent.log._retained) == sent
    pair.deliver(pair.gateway)
    assert pair.gateway.log.received == pair.agent.log.sent
    pair.now += limits.ACK_DELAY_S
    pair.gateway.handle_deadline(pair.now)
    pair.settle()
    assert not pair.agent.log._retained
    assert pair.agent.log.retained_bytes == 0


def test_an_ack_without_room_to_leave_is_no_reason_to_wake_again(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    pair.send(pair.agent)
    pair.deliver(pair.gateway)
    pair.settle()
    acknowledged = pair.gateway.log.received - len(pair.agent.log._retained)
    pair.now += limits.ACK_DELAY_S
    assert pair.gateway.next_deadline() <= pair.now
    pair.gateway.handle_deadline(pair.now)
    assert pair.gateway.next_deadline() > pair.now
    pair.settle()
    assert pair.gateway.log.received - len(pair.agent.log._retained) > acknowledged


@pytest.mark.parametrize("began_s", [step / 7 for step in range(200)])
def test_a_deadline_that_was_handled_is_over_however_sums_are_rounded(began_s: float) -> None:
    heartbeat = Heartbeat(began_s)
    heartbeat.ping(began_s)
    heartbeat.sent(began_s)
    assert heartbeat.next_deadline() == began_s + limits.SILENT_AFTER_S
    heartbeat.handle_deadline(heartbeat.next_deadline())
    assert heartbeat.silent
    assert heartbeat.next_deadline() > began_s + limits.SILENT_AFTER_S


def test_sending_stops_when_too_much_is_unacknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETAINED_BYTES", 1000)
    pair = SessionPair()
    stream_id = opened(pair)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, bytes(50_000))
    pair.send(pair.agent, 1000)
    assert pair.send(pair.agent, 1000) == []
    pair.deliver(pair.gateway)
    pair.now += limits.ACK_DELAY_S
    pair.gateway.handle_deadline(pair.now)
    pair.send(pair.gateway)
    pair.deliver(pair.agent)
    assert pair.send(pair.agent, 1000) != []


def test_an_ack_of_what_was_never_sent_is_an_error(pair: SessionPair) -> None:
    with pytest.raises(UnexpectedFrame):
        pair.agent.receive_message(encode(FrameType.ACK, 0, encode_offset(99)), pair.now)


def test_silence_ends_the_tunnel_and_any_byte_is_life(pair: SessionPair) -> None:
    pair.gateway.bytes_received(25.0)
    pair.gateway.handle_deadline(25.0)  # PING
    while (now := pair.gateway.next_deadline()) < 25.0 + limits.SILENT_MOST_S:
        pair.gateway.handle_deadline(now)
    assert now == 25.0 + limits.SILENT_MOST_S
    with pytest.raises(HeartbeatLost):
        pair.gateway.handle_deadline(now)


def test_closing_is_the_last_word(pair: SessionPair) -> None:
    pair.gateway.close(ErrorCode.DRAINING, "bye")
    with pytest.raises(SessionClosed):
        pair.gateway.open_stream(request_head(), pair.now)
    pair.send(pair.gateway)
    assert pair.deliver(pair.agent) == [PeerClosed(ErrorCode.DRAINING, "bye")]
    assert pair.agent.closed


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (encode(FrameType.HEAD, 1, OK.to_payload()), StreamStateError),
        (encode(FrameType.DATA, 1, b"x"), StreamStateError),
        (encode(FrameType.END, 9), StreamStateError),
        (encode(FrameType.CREDIT, 9, encode_offset(1)), StreamStateError),
        (encode(FrameType.CREDIT, 0, encode_offset(2**63)), FlowControlViolated),
        (encode(FrameType.OPEN, 1, request_head().to_payload()), UnexpectedFrame),
        (encode(FrameType.DEMAND, 0, b"{}"), UnexpectedFrame),
        (encode(FrameType.SLOTS, 0, b'{"a":-1}'), FrameMalformed),
        (encode(FrameType.SLOTS, 0, b"[]"), FrameMalformed),
        (encode(FrameType.STATE, 0, b'{"status":"SLEEPY"}'), FrameMalformed),
        (encode(FrameType.CLOSE, 0, b"\x00\x01\xff"), FrameMalformed),
        (encode(FrameType.HELLO, 0, bytes(64)), UnexpectedFrame),
        (encode(FrameType.RESET, 7, encode_reason(ErrorCode.INTERNAL, "")), StreamStateError),
    ],
)
def test_a_gateway_refuses_what_the_protocol_does_not_allow(frame: bytes, error: type[Exception]) -> None:
    session = ProtocolSession(TunnelRole.GATEWAY, PeerLimits(8, 1024, 65536), 0.0)
    with pytest.raises(error):
        session.receive_message(frame, 0.0)


def test_bytes_beyond_credit_are_an_error(pair: SessionPair) -> None:
    stream_id = opened(pair)
    frame = encode(FrameType.DATA, stream_id, bytes(limits.DATA_PAYLOAD_BYTES))
    granted = AGENT_WINDOWS.initial
    for _ in range(granted // limits.DATA_PAYLOAD_BYTES):
        pair.agent.receive_message(frame, pair.now)
    with pytest.raises(FlowControlViolated):
        pair.agent.receive_message(frame, pair.now)


def test_a_stream_number_is_never_used_twice(pair: SessionPair) -> None:
    stream_id = opened(pair)
    with pytest.raises(StreamStateError):
        pair.agent.receive_message(encode(FrameType.OPEN, stream_id, request_head().to_payload()), pair.now)


def test_a_reset_of_what_is_over_and_taken_says_that_nothing_is_to_be_sent(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.gateway.end(stream_id)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"token")
    pair.agent.end(stream_id)
    pair.settle()
    assert pair.gateway.reset(stream_id, ErrorCode.CANCELLED), "its last bytes are held"
    assert not pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    other = opened(pair)
    assert pair.gateway.reset(other, ErrorCode.CANCELLED)
    assert not pair.gateway.reset(other, ErrorCode.CANCELLED)


def test_reset_and_credit_of_a_closed_stream_are_ignored(pair: SessionPair) -> None:
    stream_id = opened(pair)
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    pair.agent.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    for frame_type, payload in (
        (FrameType.RESET, encode_reason(ErrorCode.CANCELLED, "")),
        (FrameType.CREDIT, encode_offset(10**6)),
    ):
        pair.agent.receive_message(encode(frame_type, stream_id, payload), pair.now)
    assert pair.agent.take_events() == []
