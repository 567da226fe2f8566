"""The rate at which a peer may send frames that carry no body (PROTOCOL §2.6)."""

from shared import limits
from shared.errors import ControlFrameFlood


class ControlFrameLimiter:
    """A token bucket in units: a frame costs one, and one more for every 256 bytes of its payload.

    A gateway keeps one for each tunnel's WebSocket frames and one for each session's control frames, so that
    one agent cannot occupy the event loop that all of them share.
    """

    __slots__ = ("_at", "_units")

    def __init__(self, now: float) -> None:
        self._units = float(limits.CONTROL_FRAMES_BURST)
        self._at = now

    def spend(self, payload_bytes: int, now: float) -> None:
        """Counts one frame. Raises :class:`~shared.errors.ControlFrameFlood` when there were too many."""
        units = self._units - 1 - payload_bytes // limits.CONTROL_FRAME_UNIT_BYTES
        if units < 0:
            earned = (now - self._at) * limits.CONTROL_FRAMES_PER_S
            units = min(units + earned, float(limits.CONTROL_FRAMES_BURST))
            self._at = now
            if units < 0:
                raise ControlFrameFlood(
                    f"more control frames than {limits.CONTROL_FRAMES_BURST} at once "
                    f"and {limits.CONTROL_FRAMES_PER_S} a second"
                )
        self._units = units

    def earn(self) -> None:
        """The gateway opened a stream or sent a COMMAND, and the agent may have something to say of it."""
        units = self._units + limits.CONTROL_FRAMES_PER_STREAM
        self._units = min(units, float(limits.CONTROL_FRAMES_BURST))
