"""Frames of a tunnel's messages (PROTOCOL §2.3). The reference for its native twin."""

from struct import Struct
from typing import TypeVar

_HEADER = Struct("!BII")

FRAME_RULE = Struct("<BBxxII")
"""What is to be known of one type of frame: whether it is taken at all, the streams that it may be on (0:
stream 0, 1: any other, 2: either), and the least and most bytes of its payload."""

RULES_BYTES = 256 * FRAME_RULE.size
"""The rules of all types, in order."""

_ON_EITHER = 2

F = TypeVar("F", bound=tuple[int, int, bytes])


def cut_frames(
    message: bytes, start: int, rules: bytes, frame_class: type[F], stop_type: int
) -> tuple[list[F], int]:
    """The frames that follow one another in ``message`` from ``start`` on, and where they end.

    It stops before the first frame that is not within its rule, or not all there, and before one of
    ``stop_type``. Raises ValueError where ``start`` lies outside of ``message``.
    """
    if not 0 <= start <= len(message):
        raise ValueError("start lies outside of message")
    if len(rules) != RULES_BYTES:
        raise ValueError("there is a rule for each type")
    frames: list[F] = []
    while len(message) - start >= _HEADER.size:
        frame_type, stream_id, length = _HEADER.unpack_from(message, start)
        taken, on_stream, least_bytes, most_bytes = FRAME_RULE.unpack_from(
            rules, frame_type * FRAME_RULE.size
        )
        if not taken or frame_type == stop_type or not least_bytes <= length <= most_bytes:
            break
        if on_stream != _ON_EITHER and on_stream != (stream_id != 0):
            break
        begin = start + _HEADER.size
        if length > len(message) - begin:
            break
        start = begin + length
        frames.append(tuple.__new__(frame_class, (frame_type, stream_id, message[begin:start])))
    return frames, start
