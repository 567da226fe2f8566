from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from shared.speedups import native, websocket_frames
from tests.shared.speedups.implementations import compares, each_implementation

implementation = each_implementation(websocket_frames)

MOST = 70_000
LENGTHS = [0, 1, 7, 8, 9, 125, 126, 127, 65_535, 65_536, MOST]


def framed(message: bytes, *, masked: bool, opcode: Opcode = Opcode.BINARY, fin: bool = True) -> bytes:
    """As the websockets library sends it."""
    return Frame(opcode, message, fin).serialize(mask=masked)


@pytest.mark.parametrize("masked", [False, True])
def test_what_the_library_frames_is_cut(implementation: ModuleType, masked: bool) -> None:
    messages = [bytes(n % 251 for n in range(length)) for length in LENGTHS]
    data = b"".join(framed(message, masked=masked) for message in messages)
    assert implementation.cut_messages(data, 0, masked, MOST) == (messages, len(data))


def test_without_masks_the_bytes_are_the_librarys(implementation: ModuleType) -> None:
    messages = [bytes(length) for length in LENGTHS]
    wire = b"".join(framed(message, masked=False) for message in messages)
    assert implementation.frame_messages(messages, b"") == wire


def test_with_masks_the_messages_come_back(implementation: ModuleType) -> None:
    messages = [b"x" * length for length in LENGTHS]
    wire = implementation.frame_messages(messages, bytes(range(4 * len(messages))))
    assert wire.count(b"x" * 100) == 0
    assert implementation.cut_messages(wire, 0, True, MOST) == (messages, len(wire))


@pytest.mark.parametrize(
    "other",
    [
        framed(b"text", masked=False, opcode=Opcode.TEXT),
        framed(b"begun", masked=False, fin=False),
        framed(b"goes on", masked=False, opcode=Opcode.CONT),
        framed(b"", masked=False, opcode=Opcode.PING),
        framed(b"masked", masked=True),
        framed(bytes(MOST + 1), masked=False),
        b"\xc2\x01x",  # a reserved bit
        framed(b"not all there", masked=False)[:-1],
        framed(bytes(300), masked=False)[:3],
        framed(bytes(MOST), masked=False)[:9],
        b"\x82\x7f" + b"\xff" * 8 + b"x",
        b"\x82",
        b"",
    ],
    ids=range(13),  # one of them has a random mask
)
def test_it_stops_before_anything_else(implementation: ModuleType, other: bytes) -> None:
    before = framed(b"first", masked=False)
    data = b"skipped" + before + other
    assert implementation.cut_messages(data, 7, False, MOST) == ([b"first"], 7 + len(before))


def test_wrong_arguments_are_errors(implementation: ModuleType) -> None:
    for start in (-1, 2):
        with pytest.raises(ValueError, match="outside"):
            implementation.cut_messages(b"x", start, False, MOST)
    with pytest.raises(ValueError, match="four bytes"):
        implementation.frame_messages([b"x"], b"123")


def same(call: Callable[[ModuleType], object]) -> None:
    """Both do the same, errors included."""
    found: list[object] = []
    for each in (websocket_frames, native):
        try:
            found.append(call(each))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]


_NEAR = st.sampled_from(
    [b"\x82", b"\x82\xfe", b"\x82\x7e\x00", b"\x82\x7f\x00\x00\x00\x00\x00\x00", b"\x02", b"\x89\x00"]
)
_FRAMES = st.builds(
    lambda message, masked: framed(message, masked=masked), st.binary(max_size=200), st.booleans()
)


@compares
@given(
    st.lists(st.one_of(_FRAMES, _NEAR, st.binary(max_size=9))).map(b"".join),
    st.integers(-2, 40),
    st.booleans(),
)
@example(b"\x82\xfe\x00\x01\x00\x00\x00\x00x", 0, True)
def test_both_cut_alike(data: bytes, start: int, masked: bool) -> None:
    same(lambda each: each.cut_messages(data, start, masked, 150))


@compares
@given(st.lists(st.binary(max_size=300), max_size=5), st.binary(max_size=24))
@example([b"x" * 65_536], b"mask")
def test_both_frame_alike(messages: list[bytes], masks: bytes) -> None:
    same(lambda each: each.frame_messages(messages, masks))
    same(lambda each: each.frame_messages(messages, (masks * 20)[: 4 * len(messages)]))
