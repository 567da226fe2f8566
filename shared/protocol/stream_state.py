"""What may follow what on a stream, as a table (PROTOCOL §5.3).

A stream has two halves, one for each direction. The gateway's half begins with OPEN, which is its head; the
agent's half begins with HEAD. A stream is closed when both halves are over.
"""

from enum import Enum

from shared.protocol.frames import FrameType


class Half(Enum):
    """How far one direction of a stream has come."""

    HEAD = "head"
    BODY = "body"
    ENDED = "ended"
    RESET = "reset"

    __hash__ = object.__hash__  # that of Enum is a function of Python, and these are looked up all the time


class HalfInput(Enum):
    """What moves a half on."""

    HEAD = "head"
    DATA = "data"
    END = "end"
    RESET = "reset"

    __hash__ = object.__hash__


INPUTS: dict[int, HalfInput] = {
    FrameType.HEAD: HalfInput.HEAD,
    FrameType.DATA: HalfInput.DATA,
    FrameType.END: HalfInput.END,
    FrameType.RESET: HalfInput.RESET,
}

TRANSITIONS: dict[tuple[Half, HalfInput], Half] = {
    (Half.HEAD, HalfInput.HEAD): Half.BODY,
    (Half.HEAD, HalfInput.RESET): Half.RESET,
    (Half.BODY, HalfInput.DATA): Half.BODY,
    (Half.BODY, HalfInput.END): Half.ENDED,
    (Half.BODY, HalfInput.RESET): Half.RESET,
    # An ended half may still be reset: that is how a gateway cancels a request whose body it has sent.
    (Half.ENDED, HalfInput.RESET): Half.RESET,
}
"""What is not here is not allowed: a :class:`~shared.protocol.errors.StreamStateError` of the peer, or
our own bug.
"""

OVER = frozenset({Half.ENDED, Half.RESET})
