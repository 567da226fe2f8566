"""Credit, cancelling and ends of streams, in two sessions joined in memory."""

import pytest

from shared.protocol import limits
from shared.protocol.credit import WindowSettings
from shared.protocol.errors import (
    ErrorCode,
    SendBufferFull,
    SessionClosed,
    StreamHalfClosed,
    TooManyStreams,
)
from shared.protocol.events import (
    DataReceived,
    StreamClosed,
    StreamReset,
    StreamWritable,
)
from shared.protocol.messages import ResponseHead, Trailers, Usage
from tests.support.session_pair import OK, SessionPair, body, consumed, frames_of, request_head

TRAILERS = Trailers(Usage(1, 2, 3), 0.0, 0.5, 1.0)


def test_sender_waits_when_stream_credit_is_used_up_and_goes_on_when_granted(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, OK)
    assert pair.agent.send_data(stream_id, bytes(2 * limits.STREAM_WINDOW_BYTES)) is False
    at_gateway, _ = pair.settle()
    assert len(body(at_gateway, stream_id)) == limits.STREAM_WINDOW_BYTES
    consumed(pair.gateway, stream_id, limits.STREAM_WINDOW_BYTES, pair.now)
    at_gateway, at_agent = pair.settle()
    assert len(body(at_gateway, stream_id)) == limits.STREAM_WINDOW_BYTES
    assert StreamWritable(stream_id) in at_agent


def test_credit_follows_consumption_and_not_receipt(pair: SessionPair) -> None:
    stream_id = pair.answering(bytes(limits.STREAM_WINDOW_BYTES))
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
    stream_id = pair.answering(bytes(limits.STREAM_WINDOW_BYTES * 3))
    pair.settle()
    pair.now += 0.15
    consumed(pair.gateway, stream_id, limits.STREAM_WINDOW_BYTES, pair.now)
    at_gateway, _ = pair.settle()
    assert len(body(at_gateway, stream_id)) == 2 * limits.STREAM_WINDOW_BYTES


def test_writer_is_told_to_wait_and_must(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, OK)
    assert pair.agent.send_data(stream_id, bytes(limits.SEND_BUFFER_BYTES)) is True
    assert pair.agent.send_data(stream_id, b"x") is False
    with pytest.raises(SendBufferFull):
        pair.agent.send_data(stream_id, b"y")


def test_streams_that_are_stuck_do_not_stop_the_others(pair: SessionPair) -> None:
    stuck = [pair.open() for _ in range(1000)]
    for stream_id in stuck:
        pair.agent.send_head(stream_id, OK)
        pair.agent.send_data(stream_id, bytes(limits.STREAM_WINDOW_BYTES))
    pair.settle()
    assert pair.gateway.held_bytes <= limits.SESSION_WINDOW_BYTES
    fresh = pair.answering(bytes(limits.STREAM_WINDOW_FLOOR_BYTES))
    at_gateway, _ = pair.settle()
    assert len(body(at_gateway, fresh)) == limits.STREAM_WINDOW_FLOOR_BYTES


def test_windows_come_back_when_streams_close(pair: SessionPair) -> None:
    for _ in range(3):
        streams = [pair.open() for _ in range(500)]
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
    stream_id = pair.open()
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
    stream_id = pair.open()
    pair.gateway.end(stream_id)
    pair.settle()
    pair.agent.send_head(stream_id, OK)
    pair.agent.end(stream_id)
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    assert pair.gateway.open_streams == pair.agent.open_streams == 0


def test_an_end_stuck_behind_credit_is_dropped_by_cancel(pair: SessionPair) -> None:
    stream_id = pair.open()
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
    stream_id = pair.open()
    pair.settle()
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"unwanted")
    pair.agent.end(stream_id)
    at_gateway, _ = pair.settle()
    assert at_gateway == [StreamClosed(stream_id)]


def test_an_early_answer_stops_the_upload(pair: SessionPair) -> None:
    stream_id = pair.open(streaming=False)
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
    stream_id = pair.open()
    pair.gateway.end(stream_id)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"12345")
    pair.agent.end(stream_id)
    pair.settle()
    assert pair.gateway.held_bytes == 5
    consumed(pair.gateway, stream_id, 2, pair.now)
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    assert pair.gateway.held_bytes == 0


def test_no_more_streams_than_the_agent_allows() -> None:
    windows = WindowSettings(floor=1024, initial=2048, maximum=4096, session=16384, streams=3)
    pair = SessionPair(agent_windows=windows)
    for _ in range(3):
        pair.gateway.open_stream(request_head(), pair.now)
    with pytest.raises(TooManyStreams):
        pair.gateway.open_stream(request_head(), pair.now)


def test_a_reset_of_what_is_over_and_taken_says_that_nothing_is_to_be_sent(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.end(stream_id)
    pair.agent.send_head(stream_id, OK)
    pair.agent.send_data(stream_id, b"token")
    pair.agent.end(stream_id)
    pair.settle()
    assert pair.gateway.reset(stream_id, ErrorCode.CANCELLED), "its last bytes are held"
    assert not pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    other = pair.open()
    assert pair.gateway.reset(other, ErrorCode.CANCELLED)
    assert not pair.gateway.reset(other, ErrorCode.CANCELLED)


@pytest.mark.parametrize(
    "pieces", [(b"whole",), (b"in ", b"", b"pieces"), (b"",), (), (bytes(limits.SEND_BUFFER_BYTES),)]
)
def test_a_whole_body_leaves_as_its_pieces_and_its_end_would(pieces: tuple[bytes, ...]) -> None:
    one, other = SessionPair(), SessionPair()
    for pair in (one, other):
        assert pair.open() == 1
    one.gateway.send_whole(1, pieces)
    for piece in pieces:
        other.gateway.send_data(1, piece)
    other.gateway.end(1)
    assert one.send(one.gateway) == other.send(other.gateway)
    assert one.settle() == other.settle()


def test_a_whole_body_follows_what_was_sent_before(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.send_data(stream_id, b"before ")
    pair.gateway.send_whole(stream_id, (b"the rest",))
    _, at_agent = pair.settle()
    assert body(at_agent, stream_id) == b"before the rest"


def test_a_whole_body_for_an_agent_that_gave_up_is_a_cancel(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.settle()
    pair.agent.reset(stream_id, ErrorCode.REFUSED)
    at_gateway, _ = pair.settle()
    assert StreamReset(stream_id, ErrorCode.REFUSED, "") in at_gateway
    with pytest.raises(StreamHalfClosed):
        pair.gateway.send_whole(stream_id, (b"body",))


def test_a_whole_body_is_not_sent_twice_nor_in_a_session_that_is_over(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.send_whole(stream_id, (b"body",))
    with pytest.raises(StreamHalfClosed):
        pair.gateway.send_whole(stream_id, ())
    pair.gateway.close(ErrorCode.NO_ERROR, "")
    with pytest.raises(SessionClosed):
        pair.gateway.send_whole(stream_id, ())


@pytest.mark.parametrize("piece", [b"", b"{}", bytes(3 * limits.SEND_BUFFER_BYTES)])
def test_a_whole_response_leaves_as_its_parts_would(piece: bytes) -> None:
    one, other = SessionPair(), SessionPair()
    for pair in (one, other):
        assert pair.open() == 1
        pair.gateway.end(1)
        pair.settle()
    one.agent.send_head(1, ResponseHead(200, ()), piece, TRAILERS)
    other.agent.send_head(1, ResponseHead(200, ()))
    other.agent.send_data(1, piece)
    other.agent.end(1, TRAILERS)
    assert one.send(one.agent) == other.send(other.agent)
    assert one.settle() == other.settle()


def test_a_whole_response_that_nobody_wants_is_a_cancel(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.end(stream_id)
    pair.settle()
    pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
    pair.settle()
    pair.agent.send_head(stream_id, ResponseHead(200, ()), b"{}", TRAILERS)
    at_gateway, _ = pair.settle()
    assert pair.agent.open_streams == pair.gateway.open_streams == 0
    assert not any(isinstance(event, DataReceived) for event in at_gateway)


def test_a_whole_response_is_not_sent_twice(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.settle()
    pair.agent.send_head(stream_id, ResponseHead(200, ()), b"{}", TRAILERS)
    with pytest.raises(StreamHalfClosed):
        pair.agent.send_head(stream_id, ResponseHead(200, ()), b"{}", TRAILERS)
