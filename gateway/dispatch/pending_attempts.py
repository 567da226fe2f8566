"""The attempts of a request whose answer has not begun: one, or two of a hedged request."""

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.settings import DispatchSettings
from gateway.dispatch.stall_detection import ANSWER_S, LOST_PATIENCE_S, may_be_the_tunnels
from shared.protocol.errors import ErrorCode


class PendingAttempts:
    """Who may still answer, and when to look at them again."""

    __slots__ = ("attempts", "hedge_at_s", "looked_s", "opened_s")

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.opened_s = 0.0
        """When the first was opened; later by the time that tunnels were away."""
        self.looked_s = 0.0
        """When it was last looked whether somebody else could take what waits for a tunnel or an engine."""
        self.hedge_at_s: float | None = None
        """When a second copy may be sooner."""

    def begin(self, attempt: Attempt, now: float, hedge_at_s: float | None) -> None:
        self.attempts = [attempt]
        self.opened_s, self.hedge_at_s = now, hedge_at_s

    def came_back(self, away_s: float, now: float, first_byte_s: float) -> None:
        """A tunnel is there again after ``away_s``. What was said meanwhile is on its way: nobody is late
        before it could arrive, however much of the time was used up before anybody knew that the tunnel was
        gone."""
        self.opened_s = max(self.opened_s + away_s, now + ANSWER_S - first_byte_s)

    @property
    def gone(self) -> bool:
        """All wait for their tunnels."""
        return all(attempt.suspended_s is not None for attempt in self.attempts)

    @property
    def lost_s(self) -> float | None:
        """Since when all are at engines that their agents have declared lost; None while one is not."""
        since = [each.deployment.lost_s for each in self.attempts if each.suspended_s is None]
        lost = [lost_s for lost_s in since if lost_s is not None]
        return max(lost) if lost and len(lost) == len(self.attempts) else None

    @property
    def alone(self) -> bool:
        """There is one, and nothing came of it yet."""
        return len(self.attempts) == 1 and self.attempts[0].response is None

    def only(self, attempt: Attempt) -> bool:
        """``attempt`` is all there is, its tunnel is there, and nothing came of it yet."""
        return self.alone and self.attempts[0] is attempt and attempt.suspended_s is None

    def late(self, now: float) -> list[Attempt]:
        """Those to blame for the silence: none while it may be the tunnels'. Called when time is up."""
        there = [attempt for attempt in self.attempts if attempt.suspended_s is None]
        doubtful = sum(may_be_the_tunnels(attempt, now) for attempt in there)
        return [] if doubtful else there

    def drop(self, attempt: Attempt) -> bool:
        """Give up ``attempt`` if the other copy goes on."""
        if attempt not in self.attempts or len(self.attempts) < 2:
            return False
        self.attempts.remove(attempt)
        attempt.give_up(ErrorCode.CANCELLED)
        return True

    def give_up(self, code: ErrorCode, but: Attempt | None = None) -> None:
        """Give up all ``but`` one."""
        attempts, self.attempts = self.attempts, [] if but is None else [but]
        for attempt in attempts:
            if attempt is not but:
                attempt.give_up(code)

    def due_s(self, settings: DispatchSettings, deadline_s: float | None) -> float:
        """When to look again."""
        gone_s = [attempt.suspended_s for attempt in self.attempts if attempt.suspended_s is not None]
        if gone_s and len(gone_s) == len(self.attempts):
            due_s = max(*gone_s, self.looked_s) + settings.failover_after_s
        elif (lost_s := self.lost_s) is not None:
            again_s = max(lost_s, self.looked_s) + settings.failover_after_s
            due_s = min(again_s, max(lost_s, self.opened_s) + LOST_PATIENCE_S)
        else:
            due_s = self.opened_s + settings.first_byte_s
            if self.hedge_at_s is not None:
                due_s = min(due_s, self.hedge_at_s)
        return due_s if deadline_s is None else min(due_s, deadline_s)
