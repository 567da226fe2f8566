"""What a peer may try with a session: floods, answers ahead of time, names and heads that are too long."""

from collections.abc import Iterable
from itertools import repeat

import pytest
from msgspec.structs import replace

from shared.protocol import limits
from shared.protocol.errors import (
    ControlFrameFlood,
    ErrorCode,
    FrameMalformed,
    HeadTooLarge,
    StreamLimitExceeded,
    StreamStateError,
)
from shared.protocol.frames import FrameType, encode, encode_offset, encode_reason
from tests.support.session_pair import SessionPair
from tests.support.tunnels import request_head

SMALL_STATE = b'{"status":"READY"}'


def taken_before_a_flood(pair: SessionPair, messages: Iterable[bytes]) -> int:
    """How many of the messages the gateway takes, all at once, before it calls them a flood."""
    for taken, message in enumerate(messages):
        try:
            pair.gateway.receive_message(message, 0.0)
        except ControlFrameFlood:
            return taken
    raise AssertionError("all of them were taken")


@pytest.mark.parametrize(
    "frame",
    [
        encode(FrameType.SLOTS, 0, b'{"d1":1}') + encode(FrameType.SLOTS, 0, b'{"d1":0}'),
        encode(FrameType.STATE, 0, SMALL_STATE),
        encode(FrameType.PING, 0, encode_offset(1)),
        encode(FrameType.ACK, 0, encode_offset(0)),
        encode(FrameType.CREDIT, 0, encode_offset(1)),
        encode(FrameType.RESULT, 0, b'{"id":1}'),
    ],
    ids=["slots", "state", "ping", "ack", "credit", "result"],
)
def test_a_flood_of_control_frames_ends_the_session(frame: bytes) -> None:
    most = limits.CONTROL_FRAMES_BURST
    assert taken_before_a_flood(SessionPair(), repeat(frame, most + 1)) <= most
    patient = SessionPair()
    for second in range(100):
        patient.gateway.receive_message(frame * (limits.CONTROL_FRAMES_PER_S // 2), float(second))


def test_slots_that_change_with_every_request_are_no_flood() -> None:
    """An engine with several models says anew what each may get whenever a request comes or goes."""
    pair = SessionPair()
    levels = {f"ollama/one-of-its-many-models:{number}": 4 for number in range(40)}
    for _ in range(limits.CONTROL_FRAMES_BURST // 4):
        stream_id = pair.gateway.open_stream(request_head(), pair.now)
        pair.agent.send_slots(levels)
        pair.settle()
        pair.agent.reset(stream_id, ErrorCode.REFUSED)
        pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
        pair.agent.send_slots(levels)
        pair.settle()
    assert not pair.gateway.open_streams


def test_credit_that_grows_by_single_bytes_is_a_flood_and_by_windows_is_none() -> None:
    first = SessionPair().gateway._send_credit.limit

    def credits_by(step_bytes: int, count: int) -> list[bytes]:
        offsets = [first + number * step_bytes for number in range(1, count + 1)]
        return [encode(FrameType.CREDIT, 0, encode_offset(offset)) for offset in offsets]

    most = limits.CONTROL_FRAMES_BURST
    assert taken_before_a_flood(SessionPair(), credits_by(1, most + 1)) == most
    pair = SessionPair()
    for message in credits_by(limits.CREDIT_STEP_BYTES, 2 * most):
        pair.gateway.receive_message(message, 0.0)
    assert pair.gateway._send_credit.limit == first + 2 * most * limits.CREDIT_STEP_BYTES


def test_an_agent_earns_control_frames_with_the_requests_it_is_given() -> None:
    pair = SessionPair()
    slots = encode(FrameType.SLOTS, 0, b'{"d1":1}')
    assert taken_before_a_flood(pair, repeat(slots, 5000)) == limits.CONTROL_FRAMES_BURST
    for _ in range(3):
        pair.gateway.open_stream(request_head(), pair.now)
    assert taken_before_a_flood(pair, repeat(slots, 5000)) == 3 * limits.CONTROL_FRAMES_PER_STREAM


def test_a_large_state_costs_more_than_a_small_one() -> None:
    large = SMALL_STATE[:-1] + b" " * 12_000 + b"}"
    units = 1 + len(large) // limits.CONTROL_FRAME_UNIT_BYTES
    taken = taken_before_a_flood(SessionPair(), repeat(encode(FrameType.STATE, 0, large), 1000))
    assert taken == limits.CONTROL_FRAMES_BURST // units


def test_slots_cost_no_more_when_they_are_longer() -> None:
    long = encode(FrameType.SLOTS, 0, b'{"d1":1' + b" " * 40_000 + b"}")
    taken = taken_before_a_flood(SessionPair(), repeat(long, 1000))
    assert taken == limits.CONTROL_FRAMES_BURST // limits.SLOTS_UNITS


def test_a_stream_the_peer_has_not_heard_of_yet_is_not_answered() -> None:
    """Else an agent that reads nothing and answers ahead makes its gateway keep every OPEN for ever."""
    pair = SessionPair()
    stream_id = pair.gateway.open_stream(request_head(), pair.now)
    refusal = encode(FrameType.RESET, stream_id, encode_reason(ErrorCode.REFUSED, ""))
    with pytest.raises(StreamStateError):
        pair.gateway.receive_message(refusal, pair.now)
    pair.send(pair.gateway)
    second = pair.gateway.open_stream(request_head(), pair.now)
    with pytest.raises(StreamStateError):
        pair.gateway.receive_message(encode(FrameType.CREDIT, second, encode_offset(1 << 20)), pair.now)
    pair.gateway.receive_message(refusal, pair.now)
    assert pair.gateway.open_streams == 1


def test_long_names_of_levels_are_malformed() -> None:
    pair = SessionPair()
    payload = b'{"' + b"x" * (limits.MODEL_NAME_CHARS + 1) + b'":1}'
    with pytest.raises(FrameMalformed, match="level"):
        pair.gateway.receive_message(encode(FrameType.SLOTS, 0, payload), pair.now)


def test_refusals_nobody_reads_are_bounded() -> None:
    pair = SessionPair()
    head = request_head().to_payload()

    def flood() -> None:
        for stream_id in range(1, 20 * limits.OPEN_STREAMS):
            message = encode(FrameType.OPEN, stream_id, head) + encode(FrameType.END, stream_id)
            pair.agent.receive_message(message, pair.now)
            pair.agent.reset(stream_id, ErrorCode.REFUSED)
            pair.agent.take_events()

    with pytest.raises(StreamLimitExceeded):
        flood()
    assert len(pair.agent._outbox.frames) <= 4 * limits.OPEN_STREAMS


@pytest.mark.parametrize("piece", ['"', "\u00ff"])
def test_a_request_head_too_long_for_a_frame_is_refused_and_takes_no_window(piece: str) -> None:
    pair = SessionPair()
    free = pair.gateway._pool.free
    head = replace(request_head(), headers=(("x", piece * 30_000),))
    with pytest.raises(HeadTooLarge):
        pair.gateway.open_stream(head, pair.now)
    assert pair.gateway._pool.free == free
    assert not pair.gateway.wants_to_send
