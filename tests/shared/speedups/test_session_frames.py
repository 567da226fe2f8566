from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.errors import ProtocolError
from shared.protocol.frames import (
    HEADER,
    RULES,
    RULES_FOR_CUTTING,
    Frame,
    FrameType,
    MessageKind,
    TunnelRole,
    decode_frame,
    encode,
)
from shared.speedups import native, session_frames
from tests.shared.speedups.implementations import compares, each_implementation

implementation = each_implementation(session_frames)

AT_THE_GATEWAY = RULES_FOR_CUTTING[TunnelRole.GATEWAY][MessageKind.NUMBERED]
HEAD, DATA, END = encode(FrameType.HEAD, 7, b"{}"), encode(FrameType.DATA, 7, b"x"), encode(FrameType.END, 7)


def cut(implementation: ModuleType, message: bytes, start: int = 0) -> object:
    return implementation.cut_frames(message, start, AT_THE_GATEWAY, Frame, FrameType.DATA)


def test_frames_that_follow_one_another_are_cut(implementation: ModuleType) -> None:
    frames, end = implementation.cut_frames(b"skip" + HEAD + END, 4, AT_THE_GATEWAY, Frame, FrameType.DATA)
    assert frames == [(FrameType.HEAD, 7, b"{}"), (FrameType.END, 7, b"")]
    assert {type(frame) for frame in frames} == {Frame}
    assert end == 4 + len(HEAD + END)
    assert cut(implementation, HEAD, len(HEAD)) == ([], len(HEAD))


@pytest.mark.parametrize(
    "other",
    [
        DATA,
        HEAD[:-1],
        HEAD[:8],
        encode(FrameType.OPEN, 7, b"{}"),  # only a gateway sends it
        encode(FrameType.PING, 0, bytes(8)),  # of another kind of message
        b"\x11\0\0\0\7\0\0\0\1x",  # too short for a HEAD
        b"\x11\0\0\0\0\0\0\0\2{}",  # on stream 0
        b"\x20\0\0\0\7\0\0\0\2{}",  # SLOTS on a stream
        b"\x15\0\0\0\7\0\0\0\x09" + bytes(9),  # too long for a CREDIT
        b"\xff\0\0\0\7\0\0\0\0",  # of no type
    ],
)
def test_it_stops_before_any_other_frame(implementation: ModuleType, other: bytes) -> None:
    assert cut(implementation, HEAD + other) == ([(FrameType.HEAD, 7, b"{}")], len(HEAD))


def test_credit_is_taken_on_any_stream(implementation: ModuleType) -> None:
    message = encode(FrameType.CREDIT, 0, bytes(8)) + encode(FrameType.CREDIT, 2**32 - 1, bytes(8))
    frames, end = implementation.cut_frames(message, 0, AT_THE_GATEWAY, Frame, FrameType.DATA)
    assert [frame.stream_id for frame in frames] == [0, 2**32 - 1]
    assert end == len(message)


def test_wrong_arguments_are_errors(implementation: ModuleType) -> None:
    for start in (-1, 2):
        with pytest.raises(ValueError, match="outside"):
            cut(implementation, b"x", start)
    with pytest.raises(ValueError, match="a rule for each type"):
        implementation.cut_frames(b"x", 0, AT_THE_GATEWAY[1:], Frame, FrameType.DATA)


def test_a_frame_is_cut_exactly_where_it_can_be_decoded_and_may_come(implementation: ModuleType) -> None:
    """The packed rules say what the table of frames says."""
    for role in TunnelRole:
        for kind in (MessageKind.NUMBERED, MessageKind.LINK):
            for frame_type in range(256):
                for stream_id in (0, 1):
                    for length in {size for rule in RULES.values() for size in edges(rule.least_bytes)}:
                        header = (
                            bytes([frame_type]) + stream_id.to_bytes(4, "big") + length.to_bytes(4, "big")
                        )
                        message = header + bytes(length)
                        rules = RULES_FOR_CUTTING[role][kind]
                        frames, _ = implementation.cut_frames(message, 0, rules, Frame, 0)
                        assert frames == decoded(message, kind, role)


def edges(size_bytes: int) -> tuple[int, ...]:
    return max(0, size_bytes - 1), size_bytes, size_bytes + 1


def decoded(message: bytes, kind: MessageKind, role: TunnelRole) -> list[Frame]:
    try:
        frame = decode_frame(message, 0, kind)
    except ProtocolError:
        return []
    return [] if RULES[frame.type].sender is role else [frame]


class Other(NamedTuple):
    """Another class of frames."""

    type: int
    stream_id: int
    payload: bytes


_FRAMES = st.builds(
    lambda frame_type, stream_id, payload, cut: (HEADER.pack(frame_type, stream_id, len(payload)) + payload)[
        : cut or None
    ],
    st.sampled_from([*RULES, 0xFF]),
    st.sampled_from([0, 1, 2**32 - 1]),
    st.binary(max_size=12),
    st.sampled_from([0, 0, 0, -1, 5]),
)


@compares
@given(
    st.lists(_FRAMES, max_size=4).map(b"".join),
    st.integers(0, 12),
    st.sampled_from(list(TunnelRole)),
    st.sampled_from(list(MessageKind)),
)
def test_both_cut_alike(message: bytes, start: int, role: TunnelRole, kind: MessageKind) -> None:
    rules, at = RULES_FOR_CUTTING[role][kind], min(start, len(message))
    found = [each.cut_frames(message, at, rules, Other, FrameType.DATA) for each in (session_frames, native)]
    assert found[0] == found[1]
    assert {type(frame) for frame in found[1][0]} <= {Other}
