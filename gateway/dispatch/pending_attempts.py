"""The attempts of a request whose response has not begun: one, or two of a hedged request.

What happened to them is reported to the dispatcher here. What follows from that, or from the time, is
returned, and done by :class:`gateway.dispatch.exchange.RequestExchange`. Once the response has begun,
:class:`gateway.dispatch.stream_recovery.StreamRecovery` decides.
"""

import math
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.stall_detection import ANSWER_S, LOST_PATIENCE_S, may_be_tunnel_silence
from gateway.dispatch.usage_option import is_rejected, note_taken
from gateway.domain.errors import DeadlineExceeded, RequestError
from gateway.domain.request import Tier
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import (
    ENGINES_FAULT,
    MOST_REFUSALS,
    RULES,
    AttemptCount,
    Effect,
    Refusals,
    Trouble,
    may_be_repeated,
    request_error,
    trouble_of,
)
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead
from shared.protocol.routes import ANY_ROUTE

HEDGE_AGAIN_S = 1.0
"""When to try again to place a second copy for which there was no slot or no budget."""

HEDGE_TIMES = 5.0
"""An engine silent for so many times as long as another took for the same request is taken to hang."""

_LEAST_TROUBLE = 429
"""Heads with a lower status are answers (:func:`gateway.scheduling.health.failover.trouble_of`)."""

USAGE_OPTION = "usage_option"
"""Why a request is asked again that its engine may have rejected for what the gateway added to it."""


class NextStep(Enum):
    """What a request does whose response has not begun."""

    TELL = auto()
    """Its client is told what the attempt came to."""
    OTHER_COPY = auto()
    """The attempt is given up; the other copy of the request goes on."""
    ASK_AGAIN = auto()
    """It waits for a deployment again."""
    HOLD = auto()
    """The same, and for no longer than it might wait at first: engines have enough to do."""


_REALTIME, _HARMLESS, _TELL = Tier.REALTIME, Effect.HARMLESS, NextStep.TELL
"""Members of enumerations for the path of every request: a global is found faster."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request ends with ``error``; what runs is reset with ``code``."""

    error: RequestError
    code: ErrorCode


class PendingAttempts:
    """Who may still answer one request, and when to look at them again.

    What follows from a look is None where they go on, and are looked at again at :attr:`due_s`; a deployment
    where a second copy goes meanwhile; or what ends their waiting.
    """

    # What a request never needs that its first attempt answers is here and in no object.
    attempts: tuple[Attempt, ...] = ()
    refusals: Refusals | None = None
    """Engines that refused the request because they were full; None while none has."""
    _tries: AttemptCount | None = None
    """Made when an attempt fails."""
    _rejecting: Deployment | None = None
    """The deployment that seemed to reject the option that asks for usage."""
    _looked_s = 0.0
    """When another deployment was last looked for, for a request that waits for a tunnel or an engine."""
    _hedge_at_s: float | None = None
    """When a second copy of the request may be worth sending."""

    def __init__(self, context: DispatchContext, ticket: Ticket) -> None:
        self._context = context
        self._request = ticket.request
        self._ticket = ticket
        self._opened_s = 0.0
        """When the first was opened; later by the time that tunnels were away, or may have been."""

    # --- What happens to them ---

    def begin(self, attempt: Attempt, now: float) -> float:
        """The first attempt has been opened, at a deployment that is well. When to look at it."""
        request = self._request
        self.attempts = (attempt,)
        self._opened_s = now
        due_s, deadline_s = now + self._context.settings.first_byte_s, request.deadline_s
        if request.tier is _REALTIME:
            hedge_at_s = None if request.body.rest else self._context.hedge_at(request, now)
            self._hedge_at_s = hedge_at_s
            if hedge_at_s is not None and hedge_at_s < due_s:
                due_s = hedge_at_s
        return due_s if deadline_s is None or due_s < deadline_s else deadline_s

    def answered(self, attempt: Attempt, now: float) -> None:
        """``attempt`` has a response; if there are two, the other one is given up. If that is the first and
        it was silent for much longer than the second took, it is taken for one that does not answer."""
        first = self.attempts[0]
        if attempt is not first:
            self._context.metrics.hedges(self._request.model, "won")
            silent_s = now - first.opened_s - first.away_s
            least_s = max(self._context.settings.stall_s, HEDGE_TIMES * (now - attempt.opened_s))
            if first.response is None and first.suspended_s is None and silent_s >= least_s:
                self._context.failed(first, Trouble.TIMEOUT, now)
        self.give_up(ErrorCode.CANCELLED, but=attempt)

    def came_back(self, away_s: float, now: float) -> None:
        """A tunnel is back after ``away_s``. What the agent sent meanwhile is on its way, so no attempt
        counts as late before that could arrive, however much of its time passed before the loss was
        noticed."""
        first_byte_s = self._context.settings.first_byte_s
        self._opened_s = max(self._opened_s + away_s, now + ANSWER_S - first_byte_s)

    def drop(self, attempt: Attempt) -> bool:
        """Give up ``attempt`` if the other copy goes on."""
        if not self._has_other(attempt):
            return False
        self.attempts = tuple(each for each in self.attempts if each is not attempt)
        attempt.give_up(ErrorCode.CANCELLED)
        return True

    def give_up(self, code: ErrorCode, but: Attempt | None = None) -> None:
        """Give up all ``but`` one."""
        attempts, self.attempts = self.attempts, () if but is None else (but,)
        for attempt in attempts:
            if attempt is not but:
                attempt.give_up(code)

    # --- How they are ---

    def _has_other(self, attempt: Attempt) -> bool:
        """Whether the other copy of a hedged request runs besides ``attempt``."""
        return len(self.attempts) > 1 and attempt in self.attempts

    def only(self, attempt: Attempt) -> bool:
        """``attempt`` is all there is, its tunnel is there, and nothing came of it yet."""
        return self._alone and self.attempts[0] is attempt and attempt.suspended_s is None

    @property
    def _alone(self) -> bool:
        """There is one, and nothing came of it yet."""
        return len(self.attempts) == 1 and self.attempts[0].response is None

    @property
    def _gone(self) -> bool:
        """All wait for their tunnels."""
        return all(attempt.suspended_s is not None for attempt in self.attempts)

    @property
    def _lost_s(self) -> float | None:
        """Since when all are at engines that their agents have declared lost; None while one is not."""
        since = [each.deployment.lost_s for each in self.attempts if each.suspended_s is None]
        lost = [lost_s for lost_s in since if lost_s is not None]
        return max(lost) if lost and len(lost) == len(self.attempts) else None

    @property
    def due_s(self) -> float:
        """When to look at them again."""
        settings, deadline_s = self._context.settings, self._request.deadline_s
        gone_s = [attempt.suspended_s for attempt in self.attempts if attempt.suspended_s is not None]
        if gone_s and len(gone_s) == len(self.attempts):
            due_s = max(*gone_s, self._looked_s) + settings.failover_after_s
        elif (lost_s := self._lost_s) is not None:
            again_s = max(lost_s, self._looked_s) + settings.failover_after_s
            due_s = min(again_s, max(lost_s, self._opened_s) + LOST_PATIENCE_S)
        else:
            due_s = self._opened_s + settings.first_byte_s
            if self._hedge_at_s is not None:
                due_s = min(due_s, self._hedge_at_s)
        return due_s if deadline_s is None else min(due_s, deadline_s)

    # --- What follows from what happened ---

    @property
    def may_repeat(self) -> bool:
        """Whether an engine that may have worked on the request is no reason not to ask another."""
        return may_be_repeated(self._request, _HARMLESS)

    def after_head(self, attempt: Attempt, head: ResponseHead, now: float) -> NextStep:
        """A response's head came. TELL: it is the answer."""
        request = self._request
        if head.status >= _LEAST_TROUBLE and request.route != ANY_ROUTE:
            trouble = trouble_of(head)
            if trouble is Trouble.OVERLOADED:
                return self._after_refusal(attempt, head, now)
            if trouble is not None:
                self._context.failed(attempt, trouble, now)
                return self._elsewhere(attempt, trouble, Effect.HARMLESS, only_if_better=True)
        self._context.health.answered(attempt.deployment, request, now)
        return self._after_answer(attempt.deployment, head.status) if request.streaming else _TELL

    def after_missing_path(self, attempt: Attempt) -> NextStep:
        """The engine's router says that there is nothing at the request's path: others may have it."""
        self._context.lacks_path(attempt)
        return self._elsewhere(attempt, Trouble.NO_PATH, Effect.NONE, only_if_better=True)

    def after_reset(self, attempt: Attempt, code: ErrorCode, now: float) -> NextStep:
        """The stream was reset from the other side."""
        trouble, effect = RULES.get(code, (None, Effect.FINAL))
        if trouble is None:
            return _TELL
        if trouble is Trouble.OVERLOADED:
            return self._after_refusal(attempt, None, now)
        self._context.failed(attempt, trouble, now)
        only_if_better = trouble in ENGINES_FAULT or trouble is Trouble.DECLINED
        return self._elsewhere(attempt, trouble, effect, only_if_better=only_if_better)

    def with_retry_after(self, head: ResponseHead, now: float) -> ResponseHead:
        """``head`` with the time after which to come back, where the engine does not say."""
        if any(name in ("retry-after", "retry-after-ms") for name, _ in head.headers):
            return head
        seconds = math.ceil(self._context.admission.retry_after_s(self._request, now))
        return replace(head, headers=(*head.headers, ("retry-after", str(seconds))))

    def _elsewhere(
        self, attempt: Attempt, trouble: Trouble, effect: Effect, *, only_if_better: bool
    ) -> NextStep:
        """Whether another deployment may be tried: the request may be repeated, and every budget allows it.

        ``only_if_better``: what the attempt came to can be told to the client.
        """
        if self._has_other(attempt):
            return NextStep.OTHER_COPY
        request = self._request
        if not self._counted_tries().count(trouble) or not may_be_repeated(request, effect):
            return NextStep.TELL
        if only_if_better and not self._context.someone_else(request, patiently=True):
            return NextStep.TELL
        if not self._context.may_retry(request, trouble):
            return NextStep.TELL
        self._context.metrics.retried(request.model, trouble.name.lower())
        return NextStep.ASK_AGAIN

    def _counted_tries(self) -> AttemptCount:
        if self._tries is None:
            self._tries = AttemptCount(self._context.settings.max_attempts)
        return self._tries

    def _after_refusal(self, attempt: Attempt, head: ResponseHead | None, now: float) -> NextStep:
        """The engine has enough to do: the request waits for it, or for another, if that is sound and within
        the time that it may wait. No budget is asked, for no engine began on it."""
        self.refusals = self.refusals or Refusals()
        wait_s = self.refusals.note(head, now)
        attempt.refused = True
        self._context.failed(attempt, Trouble.OVERLOADED, now, wait_s)
        if self._has_other(attempt):
            return NextStep.OTHER_COPY
        from_s = now if self._context.someone_else(self._request) else now + wait_s
        if not self.may_repeat or from_s >= self._ticket.expires_s or self.refusals.count > MOST_REFUSALS:
            return NextStep.TELL
        self._context.metrics.retried(self._request.model, Trouble.OVERLOADED.name.lower())
        return NextStep.HOLD

    def _after_answer(self, deployment: Deployment, status: int) -> NextStep:
        """A stream's request is sent again without the option that asks for usage, where the engine may have
        rejected that."""
        request = self._request
        if status < 400:
            note_taken(request, deployment, self._rejecting)
        elif self._rejecting is None and is_rejected(request, deployment, status):
            self._rejecting = deployment
            request.note_trouble(deployment.key, USAGE_OPTION)
            self._context.metrics.retried(request.model, USAGE_OPTION)
            return NextStep.ASK_AGAIN
        return NextStep.TELL

    # --- What follows from the time ---

    def look(self, now: float) -> Deployment | GiveUp | NextStep | None:
        """No response has begun: what to do about it. ASK_AGAIN: another deployment gets the request."""
        deadline_s = self._request.deadline_s
        if deadline_s is not None and now >= deadline_s:
            return _late()
        if self._gone:
            return self._look_at_gone(now)
        if (lost_s := self._lost_s) is not None:
            return self._look_at_lost(lost_s, now)
        if now >= self._opened_s + self._context.settings.first_byte_s:
            return self._look_at_late(now)
        if self._hedge_at_s is not None and now >= self._hedge_at_s:
            return self._hedge(now)
        return None

    def engine_lost(self, attempt: Attempt, now: float) -> GiveUp | NextStep | None:
        """The agent of ``attempt`` says that its engine is lost."""
        if self.drop(attempt):
            self._context.failed(attempt, Trouble.ENGINE_LOST, now)
        elif (lost_s := self._lost_s) is not None:
            return self._look_at_lost(lost_s, now)
        return None

    def _look_at_gone(self, now: float) -> NextStep | None:
        """The tunnel stays away: another deployment gets the request, if there is one."""
        if (
            self.may_repeat
            and self._context.someone_else(self._request)
            and self._counted_tries().count_move()
        ):
            self._context.metrics.failed_over(self._request.model, "suspended")
            return NextStep.ASK_AGAIN
        self._looked_s = now
        return None

    def _look_at_lost(self, lost_s: float, now: float) -> GiveUp | NextStep | None:
        """Its agent has declared the engine lost: another deployment gets the request, if there is one. Else
        the engine may answer yet, for a while."""
        attempt = self.attempts[0]
        over = now >= max(lost_s, self._opened_s) + LOST_PATIENCE_S
        elsewhere = self.may_repeat and self._context.someone_else(self._request, patiently=over)
        if not (over or elsewhere):
            self._looked_s = now
            return None
        self._context.failed(attempt, Trouble.ENGINE_LOST, now)
        if elsewhere and self._counted_tries().count_move():
            self._context.metrics.failed_over(self._request.model, "engine_lost")
            return NextStep.ASK_AGAIN
        error = request_error(ErrorCode.ENGINE_UNREACHABLE, attempt.deployment.reason)
        return GiveUp(error, ErrorCode.ENGINE_TIMEOUT)

    def _look_at_late(self, now: float) -> GiveUp | NextStep | None:
        """None of the attempts began to answer in time. Those whose tunnel is away are not to blame, and none
        where the client was still sending: it may have taken the time."""
        late = [attempt for attempt in self.attempts if attempt.suspended_s is None]
        if sum(may_be_tunnel_silence(attempt, now) for attempt in late):  # each tunnel is asked
            self._opened_s = now + ANSWER_S - self._context.settings.first_byte_s
            return None
        for attempt in late if self._request.body.rest is None else ():
            self._context.failed(attempt, Trouble.TIMEOUT, now)
        self.give_up(ErrorCode.ENGINE_TIMEOUT, but=late[0])
        step = self._elsewhere(late[0], Trouble.TIMEOUT, Effect.HARMLESS, only_if_better=True)
        return _late() if step is NextStep.TELL else step

    def _hedge(self, now: float) -> Deployment | None:
        """It is late: a second copy may be sooner, unless the answer is on its way already."""
        may = self._alone and self.may_repeat
        deployment = self._context.hedge(self._ticket, now) if may else None
        self._hedge_at_s = now + HEDGE_AGAIN_S if may and deployment is None else None
        return deployment


def _late() -> GiveUp:
    message = "The engine did not begin to answer in the time there was."
    return GiveUp(DeadlineExceeded(message), ErrorCode.DEADLINE)
