"""Frames that a peer may not send, and those that come late."""

import pytest

from shared.protocol import limits
from shared.protocol.credit import AGENT_WINDOWS, PeerLimits
from shared.protocol.errors import (
    ErrorCode,
    FlowControlViolated,
    FrameMalformed,
    StreamStateError,
    UnexpectedFrame,
)
from shared.protocol.frames import FrameType, TunnelRole, encode, encode_offset, encode_reason
from shared.protocol.session import ProtocolSession
from tests.support.session_pair import OK, SessionPair, request_head


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
    stream_id = pair.open()
    frame = encode(FrameType.DATA, stream_id, bytes(limits.DATA_PAYLOAD_BYTES))
    granted = AGENT_WINDOWS.initial
    for _ in range(granted // limits.DATA_PAYLOAD_BYTES):
        pair.agent.receive_message(frame, pair.now)
    with pytest.raises(FlowControlViolated):
        pair.agent.receive_message(frame, pair.now)


def test_a_stream_number_is_never_used_twice(pair: SessionPair) -> None:
    stream_id = pair.open()
    with pytest.raises(StreamStateError):
        pair.agent.receive_message(encode(FrameType.OPEN, stream_id, request_head().to_payload()), pair.now)


def test_reset_and_credit_of_a_closed_stream_are_ignored(pair: SessionPair) -> None:
    stream_id = pair.open()
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


def test_a_body_that_waited_for_credit_is_counted_once_it_got_some(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.gateway.send_data(stream_id, bytes(AGENT_WINDOWS.initial))
    pair.settle()
    assert pair.gateway.credit_stalls == 0, "there was credit for all of it"
    pair.gateway.send_data(stream_id, b"more")
    pair.settle()
    assert pair.gateway.credit_stalls == 0, "it waits"
    credit = encode(FrameType.CREDIT, stream_id, encode_offset(AGENT_WINDOWS.initial + 100))
    pair.gateway.receive_message(credit, pair.now)
    assert pair.gateway.credit_stalls == 1
    pair.gateway.receive_message(credit, pair.now)
    assert pair.gateway.credit_stalls == 1, "an old credit changes nothing"
