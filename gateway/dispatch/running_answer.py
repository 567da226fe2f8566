"""An answer whose head is out: over one engine, or over several, each going on where the last was lost.

Phases and what moves them::

    STREAMING ──its tunnel gone for long──> WAITING ──slot──> ASKING ──head──> STREAMING
        │  ^                                  │ ^                │
        │  └────── the tunnel is back ────────┘ │                │
        └─────engine lost──> READING ─────read──┘                │
        │                       ^──────────── failed ────────────┘
        └── end, break, client gone ──> OVER   (from every phase)

How far the answer came is read a slice at a time where it is long.

The client notices a pause and nothing else (PROTOCOL §7.4, SCHEDULING §6).
"""

from collections.abc import Callable
from enum import Enum, auto

from gateway.dispatch.attempt import Attempt, work_done, work_so_far
from gateway.dispatch.context import DispatchContext, ResponseObserver
from gateway.dispatch.readings import Task
from gateway.dispatch.recovery import NotContinuable, SpliceFailed
from gateway.dispatch.recovery_policy import RecoveryPolicy
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.stall_detection import (
    ANSWER_S,
    LOST_PATIENCE_S,
    idle_at_s,
    look_s,
    may_be_the_tunnels,
    stalls_at_s,
)
from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.domain.timers import LazyTimer
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import RULES, Trouble, break_reason, trouble_of
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers

COMMENT_S = 15.0
"""So often a client whose answer pauses gets a comment, before a proxy in between gives up."""

PATIENCE_S = 30.0
"""How long an answer waits for another deployment to go on with it when there is none: an agent's restart."""


class AnswerPhase(Enum):
    STREAMING = auto()
    READING = auto()
    """Its engine is lost, and how far the answer came is being read."""
    WAITING = auto()
    """For another deployment to go on with it; the attempt there was may still come back."""
    ASKING = auto()
    """Another deployment was asked to go on."""
    OVER = auto()


class RunningAnswer:
    """From the head on. ``course`` is None for answers that cannot go on elsewhere."""

    def __init__(
        self,
        asker: ResponseObserver,
        home: DispatchContext,
        attempt: Attempt,
        response: EngineResponse,
        course: StreamRecovery | None,
        alarm: LazyTimer,
    ) -> None:
        self.phase = AnswerPhase.STREAMING
        self.response = response
        self.attempt: Attempt | None = attempt
        self._asker = asker
        self._home = home
        self._course = course
        self._alarm = alarm
        self._prospects = RecoveryPolicy(home, asker.request, attempt.deployment.version, course)
        self._began_s = attempt.opened_s
        self._comment_s = 0.0
        self._fixed = False
        """It cannot go on elsewhere, as was found while the tunnel was gone."""
        self._expires_s = 0.0
        self._reads: Task | None = None
        """Where how far it came is being read."""
        self._watch(attempt, home.timers.time())

    # --- From the exchange ---

    def begin(self, deployment: Deployment, now: float) -> None:
        """A slot is free at a deployment that can go on. Raises as :class:`Attempt` does."""
        assert self.phase is AnswerPhase.WAITING
        assert self._course is not None
        try:
            body = self._course.ask(deployment)
        except NotContinuable as error:
            self._asker.withdraw()
            self._stay(error.reason)
            return
        attempt = self._asker.open(deployment, now, body)
        if self.attempt is not None:
            self.attempt.give_up(ErrorCode.CANCELLED)
        self.attempt = attempt
        self.phase = AnswerPhase.ASKING
        self._look_after(COMMENT_S, now)

    def on_time(self, now: float) -> None:
        attempt = self.attempt
        if self.phase is AnswerPhase.WAITING:
            self._still_waiting(now)
        elif self.phase is AnswerPhase.ASKING:
            assert attempt is not None
            self._still_asking(attempt, now)
        elif self.phase is AnswerPhase.OVER:
            return
        elif now >= self._ends_s():
            self.break_off(ErrorCode.DEADLINE, "The answer took longer than it may.")
        elif self.phase is AnswerPhase.READING:
            self._comment(now)
            self._look_after(COMMENT_S, now)
        elif attempt is not None:
            if self._is_read_first(attempt, now):
                self._look_after(COMMENT_S, now)
            elif attempt.suspended_s is not None:
                self._still_suspended(attempt, now)
            else:
                self._look_at(attempt, now)

    def preempt(self, attempt: Attempt, now: float) -> bool:
        """Give back the slot of ``attempt`` and go on later. False when that would not be sound: nothing is
        changed then."""
        if self.phase not in (AnswerPhase.STREAMING, AnswerPhase.ASKING) or attempt is not self.attempt:
            return False
        if attempt.suspended_s is not None or attempt.stalled or now >= self._ends_s():
            return False
        if self._reads is not None or not self._prospects.may_pause(attempt):
            return False
        attempt.give_up(ErrorCode.CANCELLED)
        self.attempt = None
        self._wait_for_another(preempted=True)
        return True

    def reads_first(self, attempt: Attempt, then: Callable[[], None]) -> bool:
        """Whether it takes long to find out whether ``attempt`` can be preempted soundly. ``then`` is called
        once it has been, unless the attempt is over by then."""
        if self.phase is not AnswerPhase.STREAMING or attempt is not self.attempt or self._reads is not None:
            return False
        return not (self._course is None or self._course.nearly_read or self._is_read(then))

    def nobody(self, reason: str) -> None:
        """Nobody is left to go on with it."""
        if self.phase is AnswerPhase.WAITING:
            self._asker.withdraw()
            self._stay(reason)
        else:
            self.break_off(ErrorCode.INTERNAL, reason)

    def read_too_slowly(self, reason: str) -> None:
        """The engine waits for its client, and others wait for the engine."""
        if self.phase is AnswerPhase.OVER:
            return
        self._home.metrics.broken(self._asker.request.model, "read_too_slowly")
        self.response.break_off(ErrorCode.CANCELLED, reason, read_slowly=True)
        self.stop(ErrorCode.CANCELLED, "its client reads too slowly")

    def break_off(self, code: ErrorCode, reason: str, *, not_continued: bool = False) -> None:
        """It cannot go on."""
        if self.phase is AnswerPhase.OVER:
            return
        self._home.metrics.broken(self._asker.request.model, code.name.lower())
        self.response.break_off(code, reason, not_continued=not_continued)
        self.stop(code, reason)

    def stop(self, code: ErrorCode, reason: str = "") -> None:
        """Nobody wants more of it, or there is no more. Idempotent."""
        if self.phase is AnswerPhase.WAITING:
            self._asker.withdraw()
        if self.phase is not AnswerPhase.OVER:
            self.phase = AnswerPhase.OVER
            self._alarm.off()
            self._read_no_more()
            if self.attempt is not None and self._asker.request.streaming:
                self._home.spent(self._asker.ticket, work_so_far(self.attempt))
            if self._course is not None:
                self._course.release()
        if self.attempt is not None:
            self.attempt.give_up(code, reason)

    # --- From its attempts ---

    def answered(self, attempt: Attempt, head: ResponseHead) -> None:
        """The engine that was asked to go on answers."""
        if attempt is not self.attempt or self.phase is not AnswerPhase.ASKING or self._course is None:
            return
        now, request = self._home.timers.time(), self._asker.request
        if not StreamRecovery.recordable(request, head):
            trouble = trouble_of(head)
            attempt.refused = trouble is Trouble.OVERLOADED
            self._failed_to_go_on(attempt, trouble, f"the next engine answered with status {head.status}")
            return
        self._home.answered(attempt, now)
        self._home.metrics.continued(request.model, "begun")
        attempt.response = self.response
        attempt.first_byte_s = now
        self._course.record.break_off()
        self.response.go_on(attempt.stream, self._course.splicer())
        self.phase = AnswerPhase.STREAMING
        self._watch(attempt, now)

    def complete(self, attempt: Attempt, trailers: Trailers | None) -> None:
        """The stream ended in order. An engine that said why its answer ends has answered, also when it omits
        the event that ends its route's streams: the client gets that from here."""
        if attempt is not self.attempt or self.phase is AnswerPhase.OVER:
            return
        if self.phase is AnswerPhase.WAITING:
            self.resumed(attempt)
        if self.phase is AnswerPhase.ASKING:
            self._failed_to_go_on(attempt, Trouble.BROKEN, "it ended without an answer")
            return
        try:
            self.response.flush_joined()
        except SpliceFailed as error:
            self.unjoinable(attempt, error.reason)
            return
        if self._course is None or self._course.whole:
            self.response.flush()
            self._finish(attempt, trailers)
        elif (missing := self._course.missing) is not None:
            self.response.flush()
            self.response.add(missing)
            self._finish(attempt, trailers)
        else:
            now = self._home.timers.time()
            self._home.failed(attempt, Trouble.BROKEN, now)
            self._broke(ErrorCode.ENGINE_FAILED, "the stream ended early", Trouble.BROKEN)

    def lost(self, attempt: Attempt, code: ErrorCode, reason: str) -> None:
        """The stream was reset from the other side."""
        if attempt is not self.attempt or self.phase is AnswerPhase.OVER:
            return
        trouble, _ = RULES.get(code, (None, None))
        if self.phase is AnswerPhase.ASKING:
            self._failed_to_go_on(attempt, trouble, reason or code.name.lower())
            return
        if trouble is not None:
            self._home.failed(attempt, trouble, self._home.timers.time())
        if self.phase is AnswerPhase.WAITING:
            attempt.give_up(ErrorCode.CANCELLED)
            self.attempt = None
        else:
            self._broke(code, reason, trouble)

    def unjoinable(self, attempt: Attempt, reason: str) -> None:
        """What another engine sent does not fit to the answer so far."""
        if attempt is self.attempt and self.phase is AnswerPhase.STREAMING:
            self._prospects.unfit(attempt)
            self._failed_to_go_on(attempt, None, reason)

    def suspended(self, attempt: Attempt) -> None:
        if attempt is self.attempt and self.phase in (AnswerPhase.STREAMING, AnswerPhase.ASKING):
            settings, streams = self._home.settings, self.phase is AnswerPhase.STREAMING
            wait_s = settings.continue_after_s if streams else settings.failover_after_s
            self._look_after(wait_s, self._home.timers.time())

    def engine_lost(self, attempt: Attempt) -> None:
        """Its agent says that its engine is lost: if nothing comes any more, another one is to go on."""
        if attempt is self.attempt and attempt.suspended_s is None:
            now = self._home.timers.time()
            if self.phase is AnswerPhase.STREAMING:
                attempt.quiet_s, attempt.heard = now, False
                self._look_after(self._home.settings.continue_after_s, now)
            elif self.phase is AnswerPhase.ASKING:
                self._look_after(0.0, now)

    def resumed(self, attempt: Attempt) -> None:
        if attempt is not self.attempt:
            return
        now = self._home.timers.time()
        if self.phase is AnswerPhase.WAITING:
            self._asker.withdraw()
            self.phase = AnswerPhase.STREAMING
        self._fixed = False
        if self.phase is AnswerPhase.STREAMING:
            self._alarm.due(min(attempt.quiet_s + self._home.settings.stall_s, self._ends_s()))
        else:
            self._look_after(COMMENT_S, now)

    # --- Going on elsewhere ---

    def _broke(self, code: ErrorCode, reason: str, trouble: Trouble | None) -> None:
        """The engine is lost in the middle. Another one goes on, or the client is told why not."""
        attempt, self.attempt = self.attempt, None
        self._once_read(lambda: self._go_on(attempt, code, reason, trouble))

    def _go_on(self, attempt: Attempt | None, code: ErrorCode, reason: str, trouble: Trouble | None) -> None:
        """``attempt`` was lost with ``code``, and what came of it has been read."""
        why_not = self._prospects.why_not()
        if why_not is None:
            why_not = self._prospects.nobody_can(attempt)
        if why_not is None and trouble is None:
            why_not = "trying again would do no better"
        if why_not is None and self._close():
            return
        if why_not is None and self._prospects.may_try(trouble):
            if attempt is not None:
                attempt.give_up(ErrorCode.CANCELLED)  # what the reader still has of it is not credited to it
            self._wait_for_another()
        else:
            self._give_up(code, break_reason(code, reason), why_not or "too many engines failed on it")

    def _close(self) -> bool:
        """If the answer is whole but for how its stream ends, end it. To be asked after ``why_not``."""
        if self._course is None or self._course.closing is None:
            return False
        self._course.record.break_off()
        self.response.add(self._course.closing)
        if self.attempt is not None:
            self.attempt.give_up(ErrorCode.CANCELLED)
        self._finish(None, None)
        return True

    def _wait_for_another(self, *, preempted: bool = False) -> None:
        request, now = self._asker.request, self._home.timers.time()
        self._prospects.wanted()
        self.phase = AnswerPhase.WAITING
        self._asker.wait_again(preempted=preempted)
        self._home.metrics.continued(request.model, "wanted")
        patient = preempted or self._home.someone_else(request)
        patience_s = self._home.settings.total_s if patient else PATIENCE_S
        self._expires_s = min(self._asker.ticket.expires_s, now + patience_s, self._ends_s())
        self._comment_s = now
        self._alarm.due(min(self._expires_s, now + COMMENT_S))

    def _still_waiting(self, now: float) -> None:
        if now >= self._expires_s:
            self._asker.withdraw()
            self._stay("no other deployment could go on with it in time")
        else:
            self._comment(now)
            self._alarm.due(min(self._expires_s, now + COMMENT_S))

    def _still_asking(self, attempt: Attempt, now: float) -> None:
        """A tunnel that is away is no reason to blame the engine, and one to ask somebody else."""
        settings = self._home.settings
        if attempt.suspended_s is not None:
            away_s = now - attempt.suspended_s
            if away_s >= settings.failover_after_s and self._home.someone_else(self._asker.request):
                self._failed_to_go_on(attempt, None, "its tunnel is gone", blamed=False)
                return
        elif attempt.deployment.lost_s is not None and (
            self._home.someone_else(self._asker.request) or now >= attempt.deployment.lost_s + LOST_PATIENCE_S
        ):
            self._failed_to_go_on(attempt, Trouble.ENGINE_LOST, "its agent has declared it lost")
            return
        elif now - attempt.opened_s - attempt.away_s >= settings.first_byte_s:
            if may_be_the_tunnels(attempt, now):
                self._look_after(ANSWER_S, now)
            else:
                self._failed_to_go_on(attempt, Trouble.TIMEOUT, "it did not begin in time")
            return
        self._comment(now)
        self._look_after(settings.failover_after_s if attempt.suspended_s is not None else COMMENT_S, now)

    def _comment(self, now: float) -> None:
        """Tell whoever is in between that the client is not forgotten."""
        if now - self._comment_s >= COMMENT_S and self._course is not None and self._course.commentable:
            self._comment_s = now
            self.response.comment()

    def _look_after(self, wait_s: float, now: float) -> None:
        self._alarm.due(min(now + wait_s, self._ends_s()))

    def _stay(self, reason: str) -> None:
        """Nobody else goes on. An attempt whose tunnel is gone may still come back; else that was it.
        The ticket has been withdrawn."""
        attempt = self.attempt
        if attempt is not None and self.phase is AnswerPhase.WAITING:
            self.phase = AnswerPhase.STREAMING
            self._fixed = True
            self._look_after(self._home.settings.continue_after_s, self._home.timers.time())
        elif self.phase is not AnswerPhase.OVER:
            self.phase = AnswerPhase.STREAMING
            self._give_up(ErrorCode.SESSION_LOST, break_reason(ErrorCode.SESSION_LOST, ""), reason)

    def _failed_to_go_on(
        self, attempt: Attempt, trouble: Trouble | None, reason: str, *, blamed: bool = True
    ) -> None:
        """The engine that was to go on did not. What it added, if anything, was sound."""
        if trouble is not None:
            self._home.failed(attempt, trouble, self._home.timers.time())
        attempt.give_up(ErrorCode.CANCELLED)
        self.attempt = None
        self._once_read(lambda: self._try_another(reason, trouble if blamed else Trouble.LOST))

    def _try_another(self, reason: str, trouble: Trouble | None) -> None:
        """The engine that was to go on did not, because of ``trouble``; what there is has been read."""
        why_not = self._prospects.why_not()
        if why_not is None and self._close():
            return
        if why_not is None and self._prospects.may_try(trouble):
            self._wait_for_another()
        else:
            words = f"The answer could not go on at another engine: {reason}."
            self._give_up(ErrorCode.ENGINE_FAILED, words, why_not or "")

    # --- Reading ---

    def _once_read(self, then: Callable[[], None]) -> None:
        """No attempt is left. Read how far the answer came, then do ``then`` unless it is over meanwhile."""
        self.phase = AnswerPhase.READING
        self._read_no_more()
        if self._is_read(then):
            then()
        else:
            self._comment_s = now = self._home.timers.time()
            self._look_after(COMMENT_S, now)

    def _is_read(self, then: Callable[[], None]) -> bool:
        """Whether how far the answer came has been read at once; else ``then`` is called when it has."""
        if self._course is not None:
            self._reads = self._home.readings.read(self._course, lambda: self._was_read(then))
        return self._reads is None

    def _was_read(self, then: Callable[[], None]) -> None:
        self._reads = None
        try:
            then()
        except Exception:
            self.break_off(ErrorCode.INTERNAL, "The gateway failed on what it had read of the answer.")
            raise  # it is logged where it was read

    def _read_no_more(self) -> None:
        if self._reads is not None:
            self._reads.cancel()
            self._reads = None

    def _is_read_first(self, attempt: Attempt, now: float) -> bool:
        """Whether the attempt is at a point where another deployment may be asked, and how far the answer
        came must be read before: that is looked at once it has been."""
        if self._reads is not None:
            return True
        if attempt.suspended_s is not None:
            asks = not self._fixed
        elif attempt.heard or self.response.behind:
            asks = False
        else:
            asks = attempt.deployment.lost_s is not None or now >= stalls_at_s(attempt, self._home.settings)
        return asks and self._prospects.somebody_might() and not self._is_read(self._look_now)

    def _look_now(self) -> None:
        if self.phase is AnswerPhase.STREAMING:
            self.on_time(self._home.timers.time())

    def _give_up(self, code: ErrorCode, words: str, why_not: str) -> None:
        self._home.metrics.continued(self._asker.request.model, "impossible")
        if why_not:
            words = f"{words} It could not go on at another engine: {why_not}."
        self.break_off(code, words, not_continued=True)

    # --- Time ---

    def _watch(self, attempt: Attempt, now: float) -> None:
        """Bytes are expected from now on."""
        attempt.quiet_s, attempt.heard = now, False
        self._look_after(look_s(self._home.settings), now)

    def _look_at(self, attempt: Attempt, now: float) -> None:
        settings = self._home.settings
        if attempt.heard or self.response.behind:
            self._watch(attempt, now)
            return
        if attempt.deployment.lost_s is not None:
            self._look_at_lost(attempt, attempt.deployment.lost_s, now)
            return
        silent_s = stalls_at_s(attempt, settings)
        if now >= silent_s and may_be_the_tunnels(attempt, now):
            self._look_after(ANSWER_S, now)
        elif now >= idle_at_s(attempt, settings):
            self._home.failed(attempt, Trouble.TIMEOUT, now)
            attempt.give_up(ErrorCode.ENGINE_TIMEOUT)
            self._broke(ErrorCode.ENGINE_TIMEOUT, f"silent for {settings.idle_s:g} s", Trouble.TIMEOUT)
        elif now >= silent_s:
            self._stalled(attempt, now)
        else:
            self._alarm.due(min(silent_s, self._ends_s()))

    def _look_at_lost(self, attempt: Attempt, lost_s: float, now: float) -> None:
        """Nothing comes, and the agent has declared the engine lost."""
        after_s, quiet_s = self._home.settings.continue_after_s, now - max(lost_s, attempt.quiet_s)
        if quiet_s < after_s:
            self._look_after(after_s - quiet_s, now)
        elif self._goes_on_elsewhere(Trouble.ENGINE_LOST):
            self._home.failed(attempt, Trouble.ENGINE_LOST, now)
            attempt.give_up(ErrorCode.ENGINE_TIMEOUT)
        elif quiet_s < LOST_PATIENCE_S:
            self._look_after(min(after_s, LOST_PATIENCE_S - quiet_s), now)
        else:
            self._home.failed(attempt, Trouble.ENGINE_LOST, now)
            attempt.give_up(ErrorCode.ENGINE_TIMEOUT)
            reason = f"its agent has declared it lost: {attempt.deployment.reason or 'it does not answer'}"
            self._broke(ErrorCode.ENGINE_FAILED, reason, Trouble.ENGINE_LOST)

    def _stalled(self, attempt: Attempt, now: float) -> None:
        """The deployment is marked; the answer goes on elsewhere if it can, else it has until ``idle_s``."""
        attempt.stalled = True
        self._home.failed(attempt, Trouble.STALLED, now)
        if self._goes_on_elsewhere(Trouble.STALLED):
            attempt.give_up(ErrorCode.ENGINE_TIMEOUT)
        else:
            self._alarm.due(min(idle_at_s(attempt, self._home.settings), self._ends_s()))

    def _still_suspended(self, attempt: Attempt, now: float) -> None:
        """The attempt stays: whichever comes first goes on, its tunnel or another deployment."""
        if self._fixed or not self._goes_on_elsewhere(Trouble.LOST):
            self._comment(now)
            self._look_after(self._home.settings.continue_after_s, now)

    def _goes_on_elsewhere(self, trouble: Trouble) -> bool:
        """Have another deployment go on, or end the answer if all is there, while its attempt still lives."""
        if not self._prospects.somebody_can():
            return False
        if self._close():
            return True
        if not self._prospects.may_try(trouble):
            return False
        if trouble is not Trouble.LOST:
            self.attempt = None
        self._wait_for_another()
        return True

    def _ends_s(self) -> float:
        """When the answer must be complete. A streaming request's deadline ends with its first byte."""
        request = self._asker.request
        ends_s = self._began_s + self._home.settings.total_s
        return ends_s if request.streaming or request.deadline_s is None else min(ends_s, request.deadline_s)

    def _finish(self, attempt: Attempt | None, trailers: Trailers | None) -> None:
        """The answer is whole."""
        now, request = self._home.timers.time(), self._asker.request
        own = None if trailers is None else trailers.usage
        if trailers is not None and self._course is not None:
            trailers = self._course.add_up(trailers)
        if trailers is not None and trailers.usage is not None:
            self._home.metrics.used(request.model, trailers.usage)
            self._home.spent(self._asker.ticket, work_done(trailers.usage))
        elif attempt is not None and request.streaming:
            self._home.spent(self._asker.ticket, work_so_far(attempt))
        if attempt is not None and self.response.status < 500 and not attempt.refused:
            first_byte_s = (attempt.first_byte_s or now) - attempt.opened_s
            self._home.succeeded(attempt, first_byte_s, now - attempt.opened_s - attempt.away_s, now, own)
        if self._course is not None:
            if self._course.continued:
                self._home.metrics.continued(request.model, "done")
            self._course.release()
        self.phase = AnswerPhase.OVER
        self._alarm.off()
        self._read_no_more()
        self.response.end(trailers)
