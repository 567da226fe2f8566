"""Liveness and round trip of one tunnel, without a clock of its own (PROTOCOL §7.2)."""

from shared import limits
from shared.errors import HeartbeatLost

_SMOOTHING = 4
"""A new round trip counts for a quarter: a queue that builds up shows within a minute, one spike does not."""


class Heartbeat:
    """When to send PING, when to give the peer up, and how far away it is."""

    __slots__ = ("_heard_at", "_outstanding", "_ping_at", "rtt_s")

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._ping_at = now
        self._outstanding: tuple[int, float] | None = None
        self.rtt_s: float | None = None
        """Smoothed round trip, None until the first answer."""

    def heard(self, now: float) -> None:
        """Any inbound byte is a sign of life."""
        self._heard_at = now

    def next_deadline(self) -> float:
        return min(self._ping_at, self._heard_at + limits.DEAD_AFTER_S)

    def handle_deadline(self, now: float) -> int | None:
        """The number to send in a PING, when one is due. Raises :class:`HeartbeatLost`."""
        if now - self._heard_at >= limits.DEAD_AFTER_S:
            raise HeartbeatLost(f"nothing heard for {now - self._heard_at:.0f} s")
        if now < self._ping_at:
            return None
        self._ping_at = now + limits.HEARTBEAT_S
        number = int(now * 1e6)
        self._outstanding = (number, now)
        return number

    def handle_pong(self, number: int, now: float) -> None:
        """Takes a PONG. One that answers no outstanding PING says nothing and is ignored."""
        if self._outstanding is None or self._outstanding[0] != number:
            return
        sample_s = now - self._outstanding[1]
        self._outstanding = None
        if self.rtt_s is None:
            self.rtt_s = sample_s
        else:
            self.rtt_s += (sample_s - self.rtt_s) / _SMOOTHING
