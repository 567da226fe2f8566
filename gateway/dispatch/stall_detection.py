"""Decides whether an engine that sends nothing has stalled, whether its tunnel may be the cause instead, and
when to check again.

A silence is judged by the pace at which the answer came before.
:class:`gateway.dispatch.running_answer.RunningAnswer` acts on what is decided here.
"""

from dataclasses import dataclass
from math import inf

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.settings import DispatchSettings
from gateway.domain.request import Request
from gateway.domain.timers import LazyTimer
from gateway.scheduling.health.failover import Trouble
from shared.protocol import limits
from shared.protocol.errors import ErrorCode

COMMENT_S = 15.0
"""Interval at which a client whose answer pauses gets a comment, so that no proxy between times out."""

TIMES = 20.0
"""A silence is a stall when it is so many times as long as the answer's mean gap between pieces."""

LOOKS = 4
"""How many times within ``stall_s`` the bytes received are checked; this limits how exactly the pace is
known."""

LEAST_PIECES = 4
"""An answer has a pace from this many pieces on; with fewer, the engine may still be reading the prompt."""


def stalls_at_s(attempt: Attempt, settings: DispatchSettings) -> float:
    """When a silence that lasts is a stall; one that was seen already ends as any silence does."""
    if attempt.stalled or attempt.pieces < LEAST_PIECES or attempt.first_byte_s is None:
        return attempt.quiet_s + settings.idle_s
    gap_s = (attempt.quiet_s - attempt.first_byte_s) / attempt.pieces
    return attempt.quiet_s + min(settings.idle_s, max(settings.stall_s, TIMES * gap_s))


LOST_PATIENCE_S = 30.0
"""How long a silent engine that its agent has declared lost is waited for when no other can serve: an agent
may take a busy engine for a lost one."""

QUIET_S = 1.0
"""A tunnel that was silent for longer is probed before its engine is blamed."""

ANSWER_S = 1.0
"""How long after a probe its answer is looked for. A tunnel without one is suspended soon (PROTOCOL §7.2)."""


def may_be_tunnel_silence(attempt: Attempt, now: float) -> bool:
    """Whether a silence that is too long for an engine may yet be the tunnel's. If so, look again after
    ``ANSWER_S``: by then the tunnel has been heard, or the time comes when it counts as away."""
    endpoint = attempt.deployment.session.endpoint
    quiet_s = endpoint.quiet_s()
    probed_s, attempt.probed_s = attempt.probed_s, None
    if probed_s is None:
        if quiet_s <= QUIET_S:
            return False
        endpoint.probe()
        probed_s = now
    elif quiet_s <= now - probed_s or now - probed_s > limits.SILENT_AFTER_S + ANSWER_S:
        return False
    attempt.probed_s = probed_s
    return True


@dataclass(frozen=True, slots=True)
class SilentFailure:
    """The engine has stalled or exceeded its time: give the attempt up because of ``trouble``."""

    trouble: Trouble
    reason: str
    code: ErrorCode = ErrorCode.ENGINE_TIMEOUT
    """The error the client gets if no other engine continues the answer."""


@dataclass(frozen=True, slots=True)
class SuspectedStall:
    """The engine may have stalled: have another deployment continue the answer, if one can.

    If none can, ``otherwise`` says that the attempt is given up; None: the answer keeps waiting for its
    engine.
    """

    trouble: Trouble
    otherwise: SilentFailure | None = None


class AnswerWatch:
    """Watches one answer for stalls and time limits from the opening of its first attempt; sets its timer."""

    __slots__ = ("_context", "_look_s", "_request", "_timer", "ends_s")

    def __init__(self, context: DispatchContext, request: Request, began_s: float, timer: LazyTimer) -> None:
        settings, silent_s = context.settings, context.settings.idle_s
        self._context = context
        self._request = request
        self._timer = timer
        self.ends_s = inf
        """When the answer must be complete. A streaming request's deadline ends with its first byte; a
        WebSocket lasts as long as both sides want."""
        self._look_s = silent_s
        """How long it is not looked at an answer of which bytes came."""
        if not request.upgrade:
            self.ends_s = began_s + settings.total_s
            self._look_s = (silent_s if silent_s < settings.stall_s else settings.stall_s) / LOOKS
            if request.deadline_s is not None and not request.streaming:
                self.ends_s = min(self.ends_s, request.deadline_s)

    def again_at(self, at_s: float) -> None:
        """Look at the answer then, or when it must be complete."""
        self._timer.set(at_s if at_s < self.ends_s else self.ends_s)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def expect_bytes(self, attempt: Attempt, now: float) -> None:
        """Bytes are expected from now on."""
        attempt.quiet_s, attempt.heard = now, False
        self.again_at(now + self._look_s)

    def went_on(self, attempt: Attempt, now: float) -> bool:
        """Whether bytes came in time since it was looked at last, by a tunnel that is there. More are
        expected then; else nothing has changed, and :meth:`look` finds out what it means."""
        ends_s = self.ends_s
        if now >= ends_s or attempt.suspended_s is not None or not attempt.take_heard(now):
            return False
        at_s = now + self._look_s
        self._timer.set(at_s if at_s < ends_s else ends_s)
        return True

    def may_suspect(self, attempt: Attempt, behind: bool, now: float) -> bool:
        """Whether :meth:`look` may come to another conclusion than to look again later."""
        if attempt.heard or behind:
            return False
        return attempt.deployment.lost_s is not None or now >= stalls_at_s(attempt, self._context.settings)

    def look(self, attempt: Attempt, behind: bool, now: float) -> SilentFailure | SuspectedStall | None:
        """At an attempt whose tunnel is there; ``behind``: it may be waiting for its reader. None: all may be
        well, and it is looked again later."""
        settings = self._context.settings
        lost = attempt.deployment.lost_s is not None
        if attempt.heard or behind or (self._request.upgrade and not lost):  # messages come when they come
            self.expect_bytes(attempt, now)
            return None
        if attempt.deployment.lost_s is not None:
            return self._look_at_lost(attempt, attempt.deployment.lost_s, now)
        silent_s, idle_s = stalls_at_s(attempt, settings), attempt.quiet_s + settings.idle_s
        if now >= silent_s and may_be_tunnel_silence(attempt, now):
            self.again_at(now + ANSWER_S)
            return None
        if now >= idle_s:
            return SilentFailure(Trouble.TIMEOUT, f"silent for {settings.idle_s:g} s")
        if now >= silent_s:
            self.again_at(idle_s)
            return SuspectedStall(Trouble.STALLED)
        self.again_at(silent_s)
        return None

    def _look_at_lost(self, attempt: Attempt, lost_s: float, now: float) -> SuspectedStall | None:
        """Nothing comes, and the agent has declared the engine lost."""
        after_s, quiet_s = self._context.settings.continue_after_s, now - max(lost_s, attempt.quiet_s)
        if quiet_s < after_s:
            self.again_at(now + after_s - quiet_s)
            return None
        if quiet_s < LOST_PATIENCE_S:
            self.again_at(now + min(after_s, LOST_PATIENCE_S - quiet_s))
            return SuspectedStall(Trouble.ENGINE_LOST)
        reason = f"its agent has declared it lost: {attempt.deployment.reason or 'it does not answer'}"
        return SuspectedStall(
            Trouble.ENGINE_LOST, SilentFailure(Trouble.ENGINE_LOST, reason, ErrorCode.ENGINE_FAILED)
        )

    def look_at_asked(self, attempt: Attempt, now: float) -> SilentFailure | None:
        """At an attempt that was asked to go on and has not begun; see :meth:`look`. A tunnel that is away
        (LOST) is no reason to blame the engine, and one to ask somebody else."""
        settings = self._context.settings
        if attempt.suspended_s is not None:
            away_s = now - attempt.suspended_s
            if away_s >= settings.failover_after_s and self._context.someone_else(self._request):
                return SilentFailure(Trouble.LOST, "its tunnel is gone")
            self.again_at(now + settings.failover_after_s)
            return None
        lost_s = attempt.deployment.lost_s
        if lost_s is not None and (
            self._context.someone_else(self._request) or now >= lost_s + LOST_PATIENCE_S
        ):
            return SilentFailure(Trouble.ENGINE_LOST, "its agent has declared it lost")
        late = now - attempt.opened_s - attempt.away_s >= settings.first_byte_s
        if late and not may_be_tunnel_silence(attempt, now):
            return SilentFailure(Trouble.TIMEOUT, "it did not begin in time")
        self.again_at(now + (ANSWER_S if late else COMMENT_S))
        return None
