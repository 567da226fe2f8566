"""What becomes of a request whose attempt fails before its response begins (SCHEDULING §6).

What happened is reported to the dispatcher here; what follows from it is returned, and done by
:class:`gateway.dispatch.exchange.RequestExchange`. Once the response has begun,
:class:`gateway.dispatch.stream_recovery.StreamRecovery` decides.
"""

import math
from dataclasses import replace
from enum import Enum, auto

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.usage_option import is_rejected, note_taken
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
    trouble_of,
)
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead
from shared.protocol.routes import ANY_ROUTE

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


class RetryPolicy:
    """Of one request, until its response begins. ``other_copy``: another attempt of the request runs."""

    __slots__ = ("_context", "_rejecting", "_request", "_ticket", "_tries", "refusals")

    def __init__(self, context: DispatchContext, ticket: Ticket) -> None:
        self._context = context
        self._request = ticket.request
        self._ticket = ticket
        self._tries = AttemptCount(context.settings.max_attempts)
        self._rejecting: Deployment | None = None
        """Which seemed to reject the option that asks for usage."""
        self.refusals: Refusals | None = None
        """Engines that had enough to do; None: none had."""

    @property
    def may_repeat(self) -> bool:
        """Whether an engine that may have worked on the request is no reason not to ask another."""
        return may_be_repeated(self._request, Effect.HARMLESS)

    def may_move(self) -> bool:
        """Whether the request may be given away for what is nobody's fault; counts that."""
        return self._tries.count_move()

    def after_head(self, attempt: Attempt, head: ResponseHead, now: float, *, other_copy: bool) -> NextStep:
        """A response's head came. TELL: it is the answer."""
        trouble = None if self._request.route == ANY_ROUTE else trouble_of(head)
        if trouble is Trouble.OVERLOADED:
            return self._after_refusal(attempt, head, now, other_copy)
        if trouble is not None:
            self._context.failed(attempt, trouble, now)
            return self._elsewhere(trouble, Effect.HARMLESS, other_copy, only_if_better=True)
        self._context.health.answered(attempt.deployment, self._request, now)
        return self._after_answer(attempt.deployment, head.status)

    def after_missing_path(self, attempt: Attempt, *, other_copy: bool) -> NextStep:
        """The engine's router says that there is nothing at the request's path: others may have it."""
        self._context.lacks_path(attempt)
        return self._elsewhere(Trouble.NO_PATH, Effect.NONE, other_copy, only_if_better=True)

    def after_reset(self, attempt: Attempt, code: ErrorCode, now: float, *, other_copy: bool) -> NextStep:
        """The stream was reset from the other side."""
        trouble, effect = RULES.get(code, (None, Effect.FINAL))
        if trouble is None:
            return NextStep.TELL
        if trouble is Trouble.OVERLOADED:
            return self._after_refusal(attempt, None, now, other_copy)
        self._context.failed(attempt, trouble, now)
        return self._elsewhere(trouble, effect, other_copy, only_if_better=trouble in ENGINES_FAULT)

    def after_timeout(self) -> NextStep:
        """No attempt began to answer in time."""
        return self._elsewhere(Trouble.TIMEOUT, Effect.HARMLESS, other_copy=False, only_if_better=True)

    def with_retry_after(self, head: ResponseHead, now: float) -> ResponseHead:
        """``head`` with the time after which to come back, where the engine does not say."""
        if any(name in ("retry-after", "retry-after-ms") for name, _ in head.headers):
            return head
        seconds = math.ceil(self._context.admission.retry_after_s(self._request, now))
        return replace(head, headers=(*head.headers, ("retry-after", str(seconds))))

    def _elsewhere(
        self, trouble: Trouble, effect: Effect, other_copy: bool, *, only_if_better: bool
    ) -> NextStep:
        """Whether somebody else may be tried: that is sound and within every budget.

        ``only_if_better``: what the attempt came to can be told to the client.
        """
        if other_copy:
            return NextStep.OTHER_COPY
        request = self._request
        if not self._tries.count(trouble) or not may_be_repeated(request, effect):
            return NextStep.TELL
        if only_if_better and not self._context.someone_else(request, patiently=True):
            return NextStep.TELL
        if not self._context.may_retry(request, trouble):
            return NextStep.TELL
        self._context.metrics.retried(request.model, trouble.name.lower())
        return NextStep.ASK_AGAIN

    def _after_refusal(
        self, attempt: Attempt, head: ResponseHead | None, now: float, other_copy: bool
    ) -> NextStep:
        """The engine has enough to do: the request waits for it, or for another, if that is sound and within
        the time that it may wait. No budget is asked, for no engine began on it."""
        self.refusals = self.refusals or Refusals()
        wait_s = self.refusals.note(head, now)
        attempt.refused = True
        self._context.failed(attempt, Trouble.OVERLOADED, now, wait_s)
        if other_copy:
            return NextStep.OTHER_COPY
        from_s = now if self._context.someone_else(self._request) else now + wait_s
        if not self.may_repeat or from_s >= self._ticket.expires_s or self.refusals.count > MOST_REFUSALS:
            return NextStep.TELL
        self._context.metrics.retried(self._request.model, Trouble.OVERLOADED.name.lower())
        return NextStep.HOLD

    def _after_answer(self, deployment: Deployment, status: int) -> NextStep:
        """The request is sent again without the option that asks for usage, where the engine may have
        rejected that."""
        request = self._request
        if not request.streaming:
            return NextStep.TELL
        if status < 400:
            note_taken(request, deployment, self._rejecting)
        elif self._rejecting is None and is_rejected(request, deployment, status):
            self._rejecting = deployment
            request.note_trouble(deployment.key, USAGE_OPTION)
            self._context.metrics.retried(request.model, USAGE_OPTION)
            return NextStep.ASK_AGAIN
        return NextStep.TELL
