"""A tunnel hands its socket little where the line is slow, and more where it is fast."""

from shared.protocol import limits
from shared.tunnel.write_buffer import QUICK_S, QUICK_TIMES, WriteBuffer

LEAST, MOST = limits.SOCKET_BUFFER_BYTES, limits.MESSAGE_BYTES


def drain(room: WriteBuffer, took_s: float, times: int = 1) -> list[bool]:
    changes = []
    for at in range(times):
        room.filled(float(at))
        changes.append(room.drained(at + took_s))
    return changes


def test_it_begins_with_little() -> None:
    assert WriteBuffer().size_bytes == LEAST


def test_a_fast_line_gets_more_by_and_by_and_no_more_than_a_message() -> None:
    room = WriteBuffer()
    assert drain(room, QUICK_S / 2, QUICK_TIMES) == [False] * (QUICK_TIMES - 1) + [True]
    assert room.size_bytes == 2 * LEAST
    drain(room, QUICK_S / 2, 20 * QUICK_TIMES)
    assert room.size_bytes == MOST
    assert not any(drain(room, QUICK_S / 2, QUICK_TIMES)), "there is nothing to set anew"


def test_a_line_that_is_fast_for_a_moment_only_gets_no_more() -> None:
    room = WriteBuffer()
    for _ in range(5):
        drain(room, QUICK_S / 2, QUICK_TIMES - 1)
        drain(room, QUICK_S * 2)
    assert room.size_bytes == LEAST


def test_a_line_that_slows_down_gets_less_at_once() -> None:
    room = WriteBuffer()
    drain(room, 0.0, 20 * QUICK_TIMES)
    assert drain(room, QUICK_S * 2) == [True]
    assert room.size_bytes == MOST // 2
    assert drain(room, QUICK_S * 10) == [True]
    assert room.size_bytes == LEAST
