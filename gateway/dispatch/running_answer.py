"""An answer whose head is out: over one engine, or over several, each going on where the last was lost.

Phases and what moves them::

    STREAMING ──its tunnel gone for long──> WAITING ──slot──> ASKING ──head──> STREAMING
        │  ^                                  │ ^                │
        │  └────── the tunnel is back ────────┘ │                │
        └─────engine lost──> READING ─────read──┘                │
        │                       ^──────────── failed ────────────┘
        └── end, break, client gone ──> OVER   (from every phase)

How far the answer came is read a slice at a time where it is long.

The client notices a pause and nothing else (PROTOCOL §7.4).
"""

from collections.abc import Callable

from gateway.dispatch.answer_state import AnswerPhase, AnswerState
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.recovery import NotContinuable, SpliceFailed
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.stall_detection import COMMENT_S, SuspectedStall
from gateway.dispatch.stream_recovery import RecoveryStep, StreamRecovery
from gateway.domain.request import RequestBody
from gateway.domain.timers import LazyTimer
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import RULES, Trouble, break_reason, trouble_of
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers

_STREAMING = AnswerPhase.STREAMING  # a global is found faster

PATIENCE_S = 30.0
"""How long an answer waits for another deployment to go on with it when there is none: an agent's restart."""


class RunningAnswer(AnswerState):
    """How it goes on. ``open_attempt`` opens a stream with another body, and raises as :class:`Attempt`."""

    def __init__(
        self,
        context: DispatchContext,
        ticket: Ticket,
        open_attempt: Callable[[Deployment, float, RequestBody], Attempt],
        attempt: Attempt | None,
        response: EngineResponse,
        recovery: StreamRecovery,
        timer: LazyTimer,
    ) -> None:
        super().__init__(context, ticket, attempt, response, recovery, timer)
        self._open_attempt = open_attempt
        self._fixed = False
        """It cannot go on elsewhere, as was found while the tunnel was gone."""
        self._expires_s = 0.0
        if attempt is not None:
            self._watch.expect_bytes(attempt, context.timers.time())

    # --- From the exchange ---

    def begin(self, deployment: Deployment, now: float) -> None:
        """A slot is free at a deployment that can go on. Raises as :class:`Attempt` does."""
        assert self.phase is AnswerPhase.WAITING
        try:
            body = self._recovery.ask(deployment)
        except NotContinuable as error:
            self._context.withdraw(self._ticket)
            self._stop_waiting(str(error))
            return
        attempt = self._open_attempt(deployment, now, body)
        if self.attempt is not None:
            self.attempt.give_up(ErrorCode.CANCELLED)
        self.attempt = attempt
        self.phase = AnswerPhase.ASKING
        self._watch.again_at(now + COMMENT_S)

    def on_time(self, now: float) -> None:
        attempt = self.attempt
        if self.phase is _STREAMING and attempt is not None and self._watch.went_on(attempt, now):
            return  # nearly always
        if self.phase is AnswerPhase.WAITING:
            self._still_waiting(now)
        elif self.phase is AnswerPhase.OVER:
            return
        elif now >= self._watch.ends_s:
            self.break_off(ErrorCode.DEADLINE, "The answer took longer than it may.")
        elif self.phase is AnswerPhase.ASKING:
            assert attempt is not None
            self._still_asking(attempt, now)
        elif self.phase is AnswerPhase.READING:
            self._comment(now)
            self._watch.again_at(now + COMMENT_S)
        elif attempt is not None:
            if self._is_read_first(attempt, now):
                self._watch.again_at(now + COMMENT_S)
            elif attempt.suspended_s is not None:
                self._still_suspended(attempt, now)
            else:
                self._look_at(attempt, now)

    def preempt(self, attempt: Attempt, now: float) -> bool:
        """Give back the slot of ``attempt`` and go on later. False when that would not be sound: nothing is
        changed then."""
        if self.phase not in (AnswerPhase.STREAMING, AnswerPhase.ASKING) or attempt is not self.attempt:
            return False
        if attempt.suspended_s is not None or attempt.stalled or now >= self._watch.ends_s:
            return False
        if self._recovery.being_read or not self._recovery.may_pause(attempt):
            return False
        attempt.give_up(ErrorCode.CANCELLED)
        self.attempt = None
        self._wait_for_another(preempted=True)
        return True

    def reads_first(self, attempt: Attempt, then: Callable[[], None]) -> bool:
        """Whether it takes long to find out whether ``attempt`` can be preempted soundly. ``then`` is called
        once it has been, unless the attempt is over by then."""
        if self.phase is not AnswerPhase.STREAMING or attempt is not self.attempt:
            return False
        return not (self._recovery.being_read or self._recovery.nearly_read or self._is_read(then))

    def give_up_waiting(self, reason: str) -> None:
        """No deployment is left that could continue the answer."""
        if self.phase is AnswerPhase.WAITING:
            self._context.withdraw(self._ticket)
            self._stop_waiting(reason)
        else:
            self.break_off(ErrorCode.INTERNAL, reason)

    # --- From its attempts ---

    def answered(self, attempt: Attempt, head: ResponseHead) -> None:
        """The engine that was asked to go on answers."""
        if attempt is not self.attempt or self.phase is not AnswerPhase.ASKING:
            return
        now, request = self._context.timers.time(), self._request
        if not StreamRecovery.recordable(request, head):
            trouble = trouble_of(head)
            attempt.refused = trouble is Trouble.OVERLOADED
            self._failed_to_go_on(attempt, trouble, f"the next engine answered with status {head.status}")
            return
        self._context.health.answered(attempt.deployment, request, now)
        self._context.metrics.continued(request.model, "begun")
        attempt.response = self.response
        attempt.first_byte_s = now
        if not self.response.deployment:  # who began it is not known
            self.response.agent, self.response.deployment = attempt.deployment.agent, attempt.deployment.key
            self.response.attempts = len(request.attempts)
        self.response.go_on(attempt.stream, self._recovery.splicer())
        self.phase = AnswerPhase.STREAMING
        self._watch.expect_bytes(attempt, now)

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
            self.unjoinable(attempt, str(error))
            return
        missing = self._recovery.missing
        if missing is None:
            self._context.failed(attempt, Trouble.BROKEN, self._context.timers.time())
            self._broke(ErrorCode.ENGINE_FAILED, "the stream ended early", Trouble.BROKEN)
            return
        self.response.flush()
        if missing:
            self.response.add(missing)
        self._finish(attempt, trailers)

    def lost(self, attempt: Attempt, code: ErrorCode, reason: str) -> None:
        """The stream was reset from the other side."""
        if attempt is not self.attempt or self.phase is AnswerPhase.OVER:
            return
        trouble, _ = RULES.get(code, (None, None))
        if self.phase is AnswerPhase.ASKING:
            self._failed_to_go_on(attempt, trouble, reason or code.name.lower())
            return
        if trouble is not None:
            self._context.failed(attempt, trouble, self._context.timers.time())
        if self.phase is AnswerPhase.WAITING:
            attempt.give_up(ErrorCode.CANCELLED)
            self.attempt = None
        else:
            self._broke(code, reason, trouble)

    def unjoinable(self, attempt: Attempt, reason: str) -> None:
        """What another engine sent does not fit to the answer so far."""
        if attempt is self.attempt and self.phase is AnswerPhase.STREAMING:
            # Its engine is asked again only when there is no other.
            self._request.note_failure(attempt.deployment.key, self._context.timers.time())
            self._failed_to_go_on(attempt, None, reason)

    def suspended(self, attempt: Attempt) -> None:
        if attempt is self.attempt and self.phase in (AnswerPhase.STREAMING, AnswerPhase.ASKING):
            settings, streams = self._context.settings, self.phase is AnswerPhase.STREAMING
            wait_s = settings.continue_after_s if streams else settings.failover_after_s
            self._watch.again_at(self._context.timers.time() + wait_s)

    def engine_lost(self, attempt: Attempt) -> None:
        """Its agent says that its engine is lost: if nothing comes any more, another one is to go on."""
        if attempt is self.attempt and attempt.suspended_s is None:
            now = self._context.timers.time()
            if self.phase is AnswerPhase.STREAMING:
                attempt.quiet_s, attempt.heard = now, False
                self._watch.again_at(now + self._context.settings.continue_after_s)
            elif self.phase is AnswerPhase.ASKING:
                self._watch.again_at(now)

    def resumed(self, attempt: Attempt) -> None:
        if attempt is not self.attempt:
            return
        now = self._context.timers.time()
        if self.phase is AnswerPhase.WAITING:
            self._context.withdraw(self._ticket)
            self.phase = AnswerPhase.STREAMING
            if self._request.dispatch_trace is not None:
                self._request.dispatch_trace.end_wait(now)
        self._fixed = False
        if self.phase is AnswerPhase.STREAMING:
            self._watch.again_at(attempt.quiet_s + self._context.settings.stall_s)
        else:
            self._watch.again_at(now + COMMENT_S)

    # --- Going on elsewhere ---

    def _broke(self, code: ErrorCode, reason: str, trouble: Trouble | None) -> None:
        """The engine is lost in the middle. Another one goes on, or the client is told why not."""
        attempt, self.attempt = self.attempt, None
        self._once_read(lambda: self._go_on(attempt, code, reason, trouble))

    def _go_on(self, attempt: Attempt | None, code: ErrorCode, reason: str, trouble: Trouble | None) -> None:
        """``attempt`` was lost with ``code``, and what came of it has been read."""
        step = self._recovery.after_loss(attempt, trouble)
        if step is RecoveryStep.WAIT and attempt is not None:
            attempt.give_up(ErrorCode.CANCELLED)  # what the reader still has of it is not credited to it
        self._recover(step, code, break_reason(code, reason))

    def _recover(self, step: RecoveryStep | str, code: ErrorCode, words: str) -> None:
        """Do ``step``, or tell the client ``words`` and why there is none."""
        if step is RecoveryStep.CLOSE:
            self._close()
        elif step is RecoveryStep.WAIT:
            self._wait_for_another()
        else:
            self._context.metrics.continued(self._request.model, "impossible")
            if step:
                words = f"{words} It could not go on at another engine: {step}."
            self.break_off(code, words, not_continued=True)

    def _close(self) -> None:
        """End the answer, which is whole but for how its stream ends."""
        assert self._recovery.closing is not None
        self._recovery.forget_unfinished()
        self.response.add(self._recovery.closing)
        if self.attempt is not None:
            self.attempt.give_up(ErrorCode.CANCELLED)
        self._finish(None, None)

    def _wait_for_another(self, *, preempted: bool = False) -> None:
        request, now = self._request, self._context.timers.time()
        self._recovery.require_continuation()
        self.phase = AnswerPhase.WAITING
        self._context.wait_again(self._ticket, preempted=preempted)
        if request.dispatch_trace is not None:
            request.dispatch_trace.wait(now, continuation=True)
        self._context.metrics.continued(request.model, "wanted")
        patient = preempted or self._context.someone_else(request)
        patience_s = self._context.settings.total_s if patient else PATIENCE_S
        self._expires_s = min(self._ticket.expires_s, now + patience_s, self._watch.ends_s)
        self._comment_s = now
        self._watch.again_at(min(self._expires_s, now + COMMENT_S))

    def _still_waiting(self, now: float) -> None:
        if now >= self._expires_s:
            self._context.withdraw(self._ticket)
            self._stop_waiting("no other deployment could go on with it in time")
        else:
            self._comment(now)
            self._watch.again_at(min(self._expires_s, now + COMMENT_S))

    def _still_asking(self, attempt: Attempt, now: float) -> None:
        found = self._watch.look_at_asked(attempt, now)
        if found is None:
            self._comment(now)
        else:
            blamed = attempt.suspended_s is None
            self._failed_to_go_on(attempt, found.trouble, found.reason, blamed=blamed)

    def _stop_waiting(self, reason: str) -> None:
        """No other deployment continues the answer. If the tunnel of its attempt is only interrupted, the
        answer waits for that; otherwise it fails. The ticket has been withdrawn."""
        attempt = self.attempt
        if attempt is not None and self.phase is AnswerPhase.WAITING:
            self.phase = AnswerPhase.STREAMING
            self._fixed = True
            self._watch.again_at(self._context.timers.time() + self._context.settings.continue_after_s)
        elif self.phase is not AnswerPhase.OVER:
            self.phase = AnswerPhase.STREAMING
            self._recover(reason, ErrorCode.SESSION_LOST, break_reason(ErrorCode.SESSION_LOST, ""))

    def _failed_to_go_on(
        self, attempt: Attempt, trouble: Trouble | None, reason: str, *, blamed: bool = True
    ) -> None:
        """The engine that was to go on did not. What it added, if anything, was sound."""
        if trouble is not None and blamed:
            self._context.failed(attempt, trouble, self._context.timers.time())
        attempt.give_up(ErrorCode.CANCELLED)
        self.attempt = None
        self._once_read(lambda: self._try_another(reason, trouble))

    def _try_another(self, reason: str, trouble: Trouble | None) -> None:
        """The engine that was to go on did not, because of ``trouble``; what there is has been read."""
        words = f"The answer could not go on at another engine: {reason}."
        self._recover(self._recovery.after_failed_continuation(trouble), ErrorCode.ENGINE_FAILED, words)

    # --- Reading ---

    def _once_read(self, then: Callable[[], None]) -> None:
        """No attempt is left. Read how far the answer came, then do ``then`` unless it is over meanwhile."""
        self.phase = AnswerPhase.READING
        self._recovery.stop_reading()
        if self._is_read(then):
            then()
        else:
            self._comment_s = now = self._context.timers.time()
            self._watch.again_at(now + COMMENT_S)

    def _is_read(self, then: Callable[[], None]) -> bool:
        """Whether how far the answer came has been read at once; else ``then`` is called when it has."""
        return self._recovery.is_read(lambda: self._was_read(then))

    def _was_read(self, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception:
            self.break_off(ErrorCode.INTERNAL, "The gateway failed on what it had read of the answer.")
            raise  # it is logged where it was read

    def _is_read_first(self, attempt: Attempt, now: float) -> bool:
        """Whether the attempt is at a point where another deployment may be asked, and how far the answer
        came must be read before: that is looked at once it has been."""
        if self._recovery.being_read:
            return True
        if attempt.suspended_s is not None:
            asks = not self._fixed
        else:
            asks = self._watch.may_suspect(attempt, self.response.behind, now)
        return asks and self._recovery.may_recover_elsewhere() and not self._is_read(self._look_now)

    def _look_now(self) -> None:
        if self.phase is AnswerPhase.STREAMING:
            self.on_time(self._context.timers.time())

    # --- Time ---

    def _look_at(self, attempt: Attempt, now: float) -> None:
        found = self._watch.look(attempt, self.response.behind, now)
        if isinstance(found, SuspectedStall):
            stalled = found.trouble is Trouble.STALLED
            if stalled:  # that is sure; that an engine is lost may be an error of its agent's
                attempt.stalled = True
                self._context.failed(attempt, found.trouble, now)
            if self._goes_on_elsewhere(found.trouble):
                if not stalled:
                    self._context.failed(attempt, found.trouble, now)
                attempt.give_up(ErrorCode.ENGINE_TIMEOUT)
                return
            found = found.otherwise
        if found is not None:
            self._context.failed(attempt, found.trouble, now)
            attempt.give_up(ErrorCode.ENGINE_TIMEOUT)
            self._broke(found.code, found.reason, found.trouble)

    def _still_suspended(self, attempt: Attempt, now: float) -> None:
        """The attempt stays: whichever comes first goes on, its tunnel or another deployment."""
        if self._fixed or not self._goes_on_elsewhere(Trouble.LOST):
            self._comment(now)
            self._watch.again_at(now + self._context.settings.continue_after_s)

    def _goes_on_elsewhere(self, trouble: Trouble) -> bool:
        """Have another deployment go on, or end the answer if all is there, while its attempt still lives."""
        step = self._recovery.while_attempt_runs(trouble)
        if step is RecoveryStep.WAIT:
            if trouble is not Trouble.LOST:
                self.attempt = None
            self._wait_for_another()
        elif step is RecoveryStep.CLOSE:
            self._close()
        return step is not None
