"""The states of a stream's two halves and the frames that change them (PROTOCOL §5.3).

A stream has one half for each direction. The gateway's half begins with OPEN, which is its head; the agent's
half begins with HEAD. A stream is closed when both halves are over.
"""

from enum import Enum

from shared.protocol.frames import FrameType


class Half(Enum):
    """The state of one direction of a stream."""

    HEAD = "head"
    """Its HEAD has not been sent."""
    BODY = "body"
    ENDED = "ended"
    RESET = "reset"

    __hash__ = object.__hash__  # Enum's own is written in Python, and these are looked up for every frame


TRANSITIONS: dict[tuple[Half, int], Half] = {
    (Half.HEAD, FrameType.HEAD): Half.BODY,
    (Half.HEAD, FrameType.RESET): Half.RESET,
    (Half.HEAD, FrameType.PROGRESS): Half.HEAD,
    (Half.BODY, FrameType.PROGRESS): Half.BODY,
    (Half.BODY, FrameType.DATA): Half.BODY,
    (Half.BODY, FrameType.END): Half.ENDED,
    (Half.BODY, FrameType.RESET): Half.RESET,
    # A gateway resets its ended half to cancel a request whose body it has sent.
    (Half.ENDED, FrameType.RESET): Half.RESET,
}
"""Every frame a half allows, and the state after it. Another frame from the peer is a
:class:`~shared.protocol.errors.StreamStateError`; from our own side it is a defect.
"""

OVER = frozenset({Half.ENDED, Half.RESET})
