"""Liveness and round trip of one tunnel, without a clock of its own (PROTOCOL §7.2)."""

from shared.protocol import limits
from shared.protocol.errors import HeartbeatLost

_SMOOTHING = 4
"""A new round trip counts for a quarter, so that one spike does not show and a growing queue does."""


class Heartbeat:
    """Says when to send PING, when a peer is silent and when to give it up; measures the round trip."""

    def __init__(self, now: float, rtt_s: float | None = None, *, seldom: bool = False) -> None:
        """``seldom``: a peer that is heard gets a PING after ``SELDOM_HEARTBEAT_S`` only."""
        self.heard_at = now
        """When any byte came last."""
        self._ping_at = now
        """When a PING is due, unless the peer is heard and gets one seldom."""
        self._ping_by = now
        """When a PING is due, heard or not."""
        self._seldom = seldom
        self.awaiting_at: float | None = None
        """When the oldest message was sent that the peer answers, with nothing heard since."""
        self._outstanding: tuple[int, float] | None = None
        self.silent = False
        """The peer owes an answer for longer than a good line takes."""
        self.rtt_s = rtt_s
        """Smoothed round trip, None until the first answer."""

    def heard(self, now: float) -> bool:
        """Any inbound byte is a sign of life. True when it ends a silence."""
        self.heard_at = now
        self.awaiting_at = None
        was_silent, self.silent = self.silent, False
        return was_silent

    def sent(self, now: float) -> None:
        """Something left that the peer answers: a PING or a numbered message."""
        if self.awaiting_at is None:
            self.awaiting_at = now

    def quiet_s(self, now: float) -> float:
        """How long nothing has been heard."""
        return now - self.heard_at

    def ping(self, now: float) -> int:
        """The number to send in a PING now."""
        self._ping_at = now + limits.HEARTBEAT_S
        self._ping_by = now + (limits.SELDOM_HEARTBEAT_S if self._seldom else limits.HEARTBEAT_S)
        number = int(now * 1e6)
        self._outstanding = (number, now)
        return number

    def next_deadline(self) -> float:
        deadline = min(self._ping_due(), self.heard_at + limits.DEAD_AFTER_S)
        if self.awaiting_at is not None:
            limit_s = limits.SILENT_MOST_S if self.silent else limits.SILENT_AFTER_S
            deadline = min(deadline, self.awaiting_at + limit_s)
        return deadline

    def handle_deadline(self, now: float) -> int | None:
        """The number to send in a PING, when one is due. Sets ``silent``. Raises :class:`HeartbeatLost`."""
        if now - self.next_deadline() > limits.LATE_S:
            self._stood_still(now)
        # Times are compared as next_deadline() adds them up: a difference may round to just below.
        if now >= self.heard_at + limits.DEAD_AFTER_S:
            raise HeartbeatLost(f"nothing heard for {now - self.heard_at:.0f} s")
        if self.awaiting_at is not None:
            if now >= self.awaiting_at + limits.SILENT_MOST_S:
                owed_s = now - self.awaiting_at
                raise HeartbeatLost(f"nothing heard for {owed_s:.0f} s in answer to what was sent")
            if now >= self.awaiting_at + limits.SILENT_AFTER_S:
                self.silent = True  # until something is heard, which is then reported
        return None if now < self._ping_due() else self.ping(now)

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

    def _ping_due(self) -> float:
        if not self._seldom:
            return self._ping_at
        return min(self._ping_by, max(self._ping_at, self.heard_at + limits.HEARD_WITHIN_S))

    def _stood_still(self, now: float) -> None:
        """Moves the deadlines, because our own program stood still and has not read what came meanwhile."""
        self.heard_at = max(self.heard_at, now - limits.DEAD_AFTER_S + limits.HEARTBEAT_S)
        if self.awaiting_at is not None:
            self.awaiting_at = now
        self._ping_at = self._ping_by = now
