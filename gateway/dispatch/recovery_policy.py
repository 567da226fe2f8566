"""Whether an answer can go on at another engine, and how often that may be tried."""

from enum import Enum, auto

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.domain.request import Request
from gateway.scheduling.health.failover import ENGINES_FAULT, AttemptCount, Trouble

MOST_FAULTS = 12
"""So many engines may fail on one answer, however far it gets: a request can have engine after engine write a
word and die of it."""


class RecoveryStep(Enum):
    """What an answer does whose engine is lost."""

    CLOSE = auto()
    """It ends: it is whole but for how its stream ends."""
    WAIT = auto()
    """It waits for another deployment to go on with it."""


class RecoveryPolicy:
    """Of one answer. Another engine must serve the same ``version``. ``recovery`` is None for answers that
    cannot go on elsewhere."""

    def __init__(
        self, context: DispatchContext, request: Request, version: str, recovery: StreamRecovery | None
    ) -> None:
        self._context = context
        self._request = request
        self._version = version
        self._recovery = recovery
        self._tries = AttemptCount(context.settings.max_attempts)
        """Without the answer getting further than ``_size_bytes``."""
        self._size_bytes = 0
        self._faults = 0
        """Of engines, all told."""

    def wanted(self) -> None:
        """From now on the request is one for engines that can go on with its answer."""
        self._request.version, self._request.continuing = self._version, True

    def reason_not_recoverable(self) -> str | None:
        """Why the answer so far cannot go on at another engine; None when it can, empty when it goes without
        saying."""
        if self._recovery is None:
            return "only streamed text can" if self._request.streaming else ""
        return self._recovery.reason_not_recoverable()

    def reason_nobody_can(self, lost: Attempt | None) -> str | None:
        """Why there is nobody to wait for: no other deployment can, and the lost one could not either."""
        self.wanted()
        if self._context.someone_else(self._request, patiently=True):
            return None
        if lost is None or self._request.route in lost.deployment.continues:
            return None
        return "no engine is there that can"

    def somebody_can(self) -> bool:
        """Somebody else is there who can go on with it, and it can be gone on with."""
        if (
            self._someone_could()
            and self._recovery is not None
            and self._recovery.reason_not_recoverable() is None
        ):
            self.wanted()
            return True
        return False

    def somebody_might(self) -> bool:
        """Somebody else is there who could go on with it, and whether it can be gone on with takes long to
        find out."""
        return self._recovery is not None and not self._recovery.nearly_read and self._someone_could()

    def _someone_could(self) -> bool:
        request = self._request
        before = request.version, request.continuing
        self.wanted()
        try:
            return self._context.someone_else(request)
        finally:
            request.version, request.continuing = before

    def after_loss(self, lost: Attempt | None, trouble: Trouble | None) -> RecoveryStep | str:
        """What follows when the engine is lost, because of ``trouble``; or why nothing does, empty when that
        goes without saying."""
        why_not = self.reason_not_recoverable()
        if why_not is None:
            why_not = self.reason_nobody_can(lost)
        if why_not is None and trouble is None:
            why_not = "trying again would do no better"
        if why_not is not None:
            return why_not
        return self._close_or_wait(trouble) or "too many engines failed on it"

    def after_failed_continuation(self, trouble: Trouble | None) -> RecoveryStep | str:
        """The same when the engine that was to go on did not."""
        why_not = self.reason_not_recoverable()
        return (self._close_or_wait(trouble) or "") if why_not is None else why_not

    def while_it_lives(self, trouble: Trouble) -> RecoveryStep | None:
        """What follows when the attempt may still go on; None: it is waited for."""
        return self._close_or_wait(trouble) if self.somebody_can() else None

    def _close_or_wait(self, trouble: Trouble | None) -> RecoveryStep | None:
        if self._recovery is not None and self._recovery.closing is not None:
            return RecoveryStep.CLOSE
        return RecoveryStep.WAIT if self.may_try(trouble) else None

    def may_pause(self, attempt: Attempt) -> bool:
        """The answer can be gone on with later, if only where it is now, and there is more to come."""
        if (
            self._recovery is None
            or self._recovery.reason_not_recoverable() is not None
            or self._recovery.closing is not None
        ):
            return False
        return self._request.route in attempt.deployment.continues or self.somebody_can()

    def unfit(self, attempt: Attempt) -> None:
        """What its engine wrote did not fit to the answer: it is asked again only when there is no other."""
        self._request.note_failure(attempt.deployment.key, self._context.timers.time())

    def may_try(self, trouble: Trouble | None) -> bool:
        """Whether one more try is allowed, after ``trouble`` (None: the engine is not known to be at fault);
        counts it. No budget is asked: an answer that has begun is not dropped to save work."""
        self._faults += trouble in ENGINES_FAULT
        if self._recovery is not None and self._recovery.record.size_bytes > self._size_bytes:
            self._size_bytes = self._recovery.record.size_bytes
            self._tries.reset()
            self._request.forget_failures(but_last=trouble is None or trouble in ENGINES_FAULT)
        return self._tries.count(trouble) and self._faults < MOST_FAULTS
