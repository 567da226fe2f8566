"""What may follow what on a stream, as a table (PROTOCOL §5.3).

A stream has two halves, one for each direction. The gateway's half begins with OPEN, which is its head; the
agent's half begins with HEAD. A stream is closed when both halves are over.
"""

from enum import Enum

from shared.frames import FrameType


class Half(Enum):
    """How far one direction of a stream has come."""

    HEAD = "head"
    BODY = "body"
    ENDED = "ended"
    RESET = "reset"

    __hash__ = object.__hash__  # that of Enum is a function of Python, and these are looked up all the time


class Input(Enum):
    """What moves a half on."""

    HEAD = "head"
    DATA = "data"
    END = "end"
    RESET = "reset"

    __hash__ = object.__hash__


INPUTS: dict[int, Input] = {
    FrameType.HEAD: Input.HEAD,
    FrameType.DATA: Input.DATA,
    FrameType.END: Input.END,
    FrameType.RESET: Input.RESET,
}

TRANSITIONS: dict[tuple[Half, Input], Half] = {
    (Half.HEAD, Input.HEAD): Half.BODY,
    (Half.HEAD, Input.RESET): Half.RESET,
    (Half.BODY, Input.DATA): Half.BODY,
    (Half.BODY, Input.END): Half.ENDED,
    (Half.BODY, Input.RESET): Half.RESET,
    # An ended half may still be reset: that is how a gateway cancels a request whose body it has sent.
    (Half.ENDED, Input.RESET): Half.RESET,
}
"""What is not here is not allowed: a :class:`~shared.errors.StreamStateError` of the peer, or our own bug."""

OVER = frozenset({Half.ENDED, Half.RESET})
