"""The rate at which a peer may send frames that carry no body (PROTOCOL §2.6)."""

from shared.protocol import limits
from shared.protocol.errors import ControlFrameFlood
from shared.protocol.frames import FrameType


def control_frame_units(payload_bytes: int, frame_type: int | None = None) -> int:
    """What a frame of this payload costs; ``frame_type`` is None for a frame of the WebSocket."""
    units = 1 + payload_bytes // limits.CONTROL_FRAME_UNIT_BYTES
    return min(units, limits.SLOTS_UNITS) if frame_type == FrameType.SLOTS else units


class ControlFrameLimiter:
    """A token bucket of units, filled by time and by each stream that the gateway opens.

    It is larger when more streams are open, because the agent still has something to say of each. A gateway
    keeps one for each tunnel's WebSocket frames and one for each session's control frames, so that no agent
    can occupy the event loop that all of them share. PROGRESS has limiters of its own, at both ends.
    """

    def __init__(
        self,
        now: float,
        burst: int = limits.CONTROL_FRAMES_BURST,
        per_s: int = limits.CONTROL_FRAMES_PER_S,
    ) -> None:
        """It has ``burst`` units at first, earns ``per_s`` in a second, and keeps no more than ``burst``."""
        self._burst = self._most = burst
        self._per_s = per_s
        self._units = float(self._most)
        self._at = now

    def allow_others(self) -> None:
        """From now on the peer may send OTHERS as well (PROTOCOL §4.11). Idempotent."""
        if self._burst == limits.CONTROL_FRAMES_BURST:
            self._burst += limits.OTHERS_UNITS
            self._most += limits.OTHERS_UNITS
            self._per_s += limits.OTHERS_UNITS_PER_S

    def spend(self, units: int, now: float) -> None:
        """Counts one frame. Raises :class:`~shared.protocol.errors.ControlFrameFlood` after too many."""
        if not self.affords(units, now):
            raise ControlFrameFlood(
                f"more control frames than {self._burst} at once, "
                f"{self._per_s} a second and {limits.CONTROL_FRAMES_PER_STREAM} a stream"
            )

    def affords(self, units: int, now: float) -> bool:
        """Counts one frame, unless there are too few units for it. ``units`` below 0 are given back."""
        earned = (now - self._at) * self._per_s
        rest = min(self._units + earned, self._most) - units
        if rest < 0:
            return False
        self._units, self._at = rest, now
        return True

    def left(self) -> "ControlFrameLimiter":
        """What this one has left, for the next session of the same agent, which has no streams yet."""
        limiter = ControlFrameLimiter(self._at)
        limiter._units = min(self._units, limiter._units)
        return limiter

    def earn(self, open_streams: int) -> None:
        """Adds the units for a stream that the gateway opened, or a COMMAND that it sent.

        ``open_streams`` are open with it.
        """
        self._most = self._burst + limits.CONTROL_FRAMES_PER_STREAM * open_streams
        units = self._units + limits.CONTROL_FRAMES_PER_STREAM
        self._units = units if units < self._most else self._most
