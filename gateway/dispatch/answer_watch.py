"""When an answer that has begun is looked at, and what its engine's silence says.

Decides; :class:`gateway.dispatch.running_answer.RunningAnswer` acts.
"""

from dataclasses import dataclass

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.stall_detection import (
    ANSWER_S,
    LOST_PATIENCE_S,
    idle_at_s,
    look_s,
    may_be_the_tunnels,
    stalls_at_s,
)
from gateway.domain.request import Request
from gateway.scheduling.health.failover import Trouble
from shared.protocol.errors import ErrorCode

COMMENT_S = 15.0
"""So often a client whose answer pauses gets a comment, before a proxy in between gives up."""


@dataclass(frozen=True, slots=True)
class NextLook:
    """All is well so far, or may be: look again then. ``commented``: the client waits for a sign of life."""

    at_s: float
    commented: bool = False


@dataclass(frozen=True, slots=True)
class Silenced:
    """The engine says no more: the attempt is given up for ``trouble``."""

    trouble: Trouble | None
    reason: str
    code: ErrorCode = ErrorCode.ENGINE_TIMEOUT
    """What the client is told when nobody goes on."""
    blamed: bool = True
    """The engine is to blame, and not its tunnel."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """Another deployment is to go on, if it can; otherwise the answer waits, or that was it."""

    trouble: Trouble
    otherwise: NextLook | Silenced


class AnswerWatch:
    """Of one answer, from when its first attempt was opened."""

    __slots__ = ("_began_s", "_context", "_request")

    def __init__(self, context: DispatchContext, request: Request, began_s: float) -> None:
        self._context = context
        self._request = request
        self._began_s = began_s

    @property
    def ends_s(self) -> float:
        """When the answer must be complete. A streaming request's deadline ends with its first byte."""
        request = self._request
        ends_s = self._began_s + self._context.settings.total_s
        return ends_s if request.streaming or request.deadline_s is None else min(ends_s, request.deadline_s)

    def begin(self, attempt: Attempt, now: float) -> float:
        """Bytes are expected from now on: when to look for them."""
        attempt.quiet_s, attempt.heard = now, False
        return now + look_s(self._context.settings)

    def may_suspect(self, attempt: Attempt, behind: bool, now: float) -> bool:
        """Whether :meth:`look` may come to another conclusion than to look again later."""
        if attempt.heard or behind:
            return False
        return attempt.deployment.lost_s is not None or now >= stalls_at_s(attempt, self._context.settings)

    def look(self, attempt: Attempt, behind: bool, now: float) -> NextLook | Silenced | Suspected:
        """At an attempt whose tunnel is there; ``behind``: it may be waiting for its reader."""
        settings = self._context.settings
        if attempt.heard or behind:
            return NextLook(self.begin(attempt, now))
        if attempt.deployment.lost_s is not None:
            return self._look_at_lost(attempt, attempt.deployment.lost_s, now)
        silent_s, idle_s = stalls_at_s(attempt, settings), idle_at_s(attempt, settings)
        if now >= silent_s and may_be_the_tunnels(attempt, now):
            return NextLook(now + ANSWER_S)
        if now >= idle_s:
            return Silenced(Trouble.TIMEOUT, f"silent for {settings.idle_s:g} s")
        if now >= silent_s:
            return Suspected(Trouble.STALLED, NextLook(idle_s))
        return NextLook(silent_s)

    def _look_at_lost(self, attempt: Attempt, lost_s: float, now: float) -> NextLook | Suspected:
        """Nothing comes, and the agent has declared the engine lost."""
        after_s, quiet_s = self._context.settings.continue_after_s, now - max(lost_s, attempt.quiet_s)
        if quiet_s < after_s:
            return NextLook(now + after_s - quiet_s)
        if quiet_s < LOST_PATIENCE_S:
            return Suspected(Trouble.ENGINE_LOST, NextLook(now + min(after_s, LOST_PATIENCE_S - quiet_s)))
        reason = f"its agent has declared it lost: {attempt.deployment.reason or 'it does not answer'}"
        return Suspected(Trouble.ENGINE_LOST, Silenced(Trouble.ENGINE_LOST, reason, ErrorCode.ENGINE_FAILED))

    def look_at_asked(self, attempt: Attempt, now: float) -> NextLook | Silenced:
        """At an attempt that was asked to go on and has not begun. A tunnel that is away is no reason to
        blame the engine, and one to ask somebody else."""
        settings = self._context.settings
        if attempt.suspended_s is not None:
            away_s = now - attempt.suspended_s
            if away_s >= settings.failover_after_s and self._context.someone_else(self._request):
                return Silenced(None, "its tunnel is gone", blamed=False)
            return NextLook(now + settings.failover_after_s, commented=True)
        lost_s = attempt.deployment.lost_s
        if lost_s is not None and (
            self._context.someone_else(self._request) or now >= lost_s + LOST_PATIENCE_S
        ):
            return Silenced(Trouble.ENGINE_LOST, "its agent has declared it lost")
        if now - attempt.opened_s - attempt.away_s >= settings.first_byte_s:
            if may_be_the_tunnels(attempt, now):
                return NextLook(now + ANSWER_S)
            return Silenced(Trouble.TIMEOUT, "it did not begin in time")
        return NextLook(now + COMMENT_S, commented=True)
