"""The life of one request: it waits in the queue, is tried on deployments, and ends exactly once.

States and what moves them::

    WAITING ──slot──> OPENING ──head──> ANSWERING ──> DONE
       ^                 │
       └──── moved ──────┘          every state: error, cancel ──> DONE

While it is ANSWERING an :class:`~gateway.dispatch.running_answer.RunningAnswer` sees to it.
"""

from collections.abc import Callable

from gateway.dispatch.answer_state import ExchangeState as ExchangeState
from gateway.dispatch.answer_state import count_answer
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.pending_attempts import GiveUp, NextStep, PendingAttempts
from gateway.dispatch.recovery import AnswerRecord
from gateway.dispatch.request_heads import comes_by_and_by, head_for
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.response_stream import Ending
from gateway.dispatch.running_answer import RunningAnswer
from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.dispatch.usage_option import leave_out
from gateway.domain.errors import RequestError
from gateway.domain.request import PREEMPTED, RequestBody
from gateway.domain.timers import LazyTimer
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import Effect, may_be_repeated, request_error
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.errors import ErrorCode, SessionClosed, TooManyStreams
from shared.protocol.messages import ResponseHead, Trailers
from shared.protocol.routes import ANY_ROUTE

_WAITING, _OPENING = ExchangeState.WAITING, ExchangeState.OPENING
_ANSWERING, _DONE = ExchangeState.ANSWERING, ExchangeState.DONE
_HARMLESS, _TELL = Effect.HARMLESS, NextStep.TELL
Settle = Callable[[EngineResponse | Exception], None]
"""Is called exactly once, with the response or the error."""

MakeExchange = Callable[[Ticket, DispatchContext, Settle], "RequestExchange"]


class RequestExchange:
    """One request on its way. ``settle`` is called exactly once, with the response or the error."""

    def __init__(self, ticket: Ticket, context: DispatchContext, settle: Settle) -> None:
        self.request = ticket.request
        self.ticket = ticket
        self._context = context
        self._settle: Settle | None = settle  # None once it was called
        self.state = _WAITING
        self.open_attempts = 0
        self._answer: RunningAnswer | None = None
        """None also for an answer that was whole before its client heard of it."""
        self._whole: Attempt | None = None  # that such an answer came from
        self._queue_s = 0.0
        self._pending = PendingAttempts(context, ticket)
        self._timer = LazyTimer(context.timers, self, ticket.expires_s)
        if (trace := self.request.dispatch_trace) is not None:
            trace.wait(ticket.entered_s)

    # --- From the dispatcher ---

    def begin(self, deployment: Deployment, now: float) -> None:
        """Give the request to ``deployment``, which has a slot free. Raises as :class:`Attempt` does, and
        changes nothing then."""
        if self._answer is not None:
            self._answer.begin(deployment, now)
            return
        assert self.state is _WAITING
        request = self.request
        if deployment.takes_usage_option is False:
            leave_out(request)
        attempt = self._open(deployment, now, request.body)
        self.state = _OPENING
        self._queue_s += now - self.ticket.entered_s
        self._timer.set(self._pending.begin(attempt, now))

    def _open(self, deployment: Deployment, now: float, body: RequestBody) -> Attempt:
        """Open a stream with ``body``. Raises as :class:`Attempt` does, and changes nothing then."""
        request, ticket, context = self.request, self.ticket, self._context
        head = head_for(request, deployment, now, None if body is request.body else body.held_bytes)
        if deployment.session.tells_others:
            head.expected = context.scheduling.expected(ticket.seen or ticket.as_pending())
        attempt = Attempt(self, deployment, head, ticket.work, now)
        self.open_attempts += 1
        request.attempts.append(deployment.key)
        context.taken(ticket, attempt)
        attempt.send(body, context)
        return attempt

    @property
    def answering(self) -> bool:
        """Its client has heard of its answer."""
        return self._answer is not None or self._whole is not None

    def preempt(self, attempt: Attempt, now: float) -> bool:
        """Give back the slot of ``attempt`` and wait again; what there is of an answer is kept and gone on
        with later. False, and nothing is changed, when that would not be sound."""
        if self._answer is not None:
            given_back = self._answer.preempt(attempt, now)
        elif given_back := self._pending.only(attempt) and self._pending.may_repeat:
            self._wait_again(preempted=True)
        if given_back:
            self.request.preempted += 1
            self.request.note_trouble(attempt.deployment.key, PREEMPTED)
            self._context.metrics.preempted(self.request.model, self.request.tier)
        return given_back

    def reads_first(self, attempt: Attempt, then: Callable[[], None]) -> bool:
        """Whether it takes long to find out whether ``attempt`` can be preempted soundly; ``then`` is called
        once it has been, unless the attempt is over by then."""
        return self._answer is not None and self._answer.reads_first(attempt, then)

    def fail(self, error: Exception, code: ErrorCode = ErrorCode.CANCELLED) -> None:
        """The exchange ends with ``error``; what runs is reset with ``code``."""
        if self._answer is not None:
            self._answer.give_up_waiting(str(error).rstrip("."))
            return
        if self.state is ExchangeState.WAITING:
            self._context.withdraw(self.ticket)
        self._pending.give_up(code)
        self._finish()
        self._say(error)

    def cancel(self) -> None:
        """The client has left: reset the stream or take the request out of the queue."""
        if self._answer is not None:
            self._answer.response.abort()
        elif self._whole is not None:
            assert self._whole.response is not None
            self._whole.response.abort()
        elif self.state is not ExchangeState.DONE:
            self._settle = None
            self.fail(RequestError("nobody awaits the answer"))

    def break_off(self, code: ErrorCode, reason: str) -> None:
        """The response has begun and cannot go on, for a reason of our own."""
        if self._answer is not None:
            self._answer.break_off(code, reason)

    # --- From the attempts ---

    def answered(self, attempt: Attempt, head: ResponseHead) -> None:
        """A response's head is there."""
        if self._answer is not None:
            self._answer.answered(attempt, head)
            return
        context, request, now = self._context, self.request, self._context.timers.time()
        if head.lacks_path and request.route != ANY_ROUTE:
            if not self._goes_on(self._pending.after_missing_path(attempt), attempt):
                self.fail(context.admission.path_missing(request))
            return
        step = self._pending.after_head(attempt, head, now)
        if step is not _TELL:
            self._goes_on(step, attempt)
            return
        if attempt.refused:
            head = self._pending.with_retry_after(head, now)
        if len(self._pending.attempts) > 1:
            self._pending.answered(attempt, now)
        attempt.first_byte_s = now
        record, held = None, False
        if not request.streaming:
            held = not comes_by_and_by(head.headers) and may_be_repeated(request, _HARMLESS)
        elif StreamRecovery.recordable(request, head):
            record = AnswerRecord(request.route, context.records, context.settings.record_bytes)
        deployment = attempt.deployment
        attempt.response = EngineResponse(  # by position: names would take twice as long
            head,
            attempt.stream,
            deployment.agent,
            deployment.key,
            deployment.version,
            self._queue_s,
            len(request.attempts),
            self,
            record,
            held,
            context.unread,
            request.principal,
        )
        if not held:
            self._begin_answer(attempt, record, now)

    def began(self, attempt: Attempt) -> None:
        """The first of a stream's answer is there."""
        self._context.began(attempt)

    def progressed(self) -> None:
        self._context.metrics.progress_told(self.request.model)

    def complete(self, attempt: Attempt, trailers: Trailers | None) -> None:
        """A stream ended in order."""
        if self._answer is not None:
            self._answer.complete(attempt, trailers)
        elif attempt.response is not None:
            self._answer_whole(attempt, attempt.response, trailers)
        else:
            self.lost(attempt, ErrorCode.ENGINE_FAILED, "the stream ended without a response")

    def lost(self, attempt: Attempt, code: ErrorCode, reason: str) -> None:
        """A stream was reset from the other side."""
        self._context.decisions.failed(attempt, reason)
        if self._answer is not None:
            self._answer.lost(attempt, code, reason)
            return
        if self._whole is not None:
            return
        step = self._pending.after_reset(attempt, code, self._context.timers.time())
        if not self._goes_on(step, attempt):
            self.fail(request_error(code, reason))

    def unjoinable(self, attempt: Attempt, reason: str) -> None:
        """What came cannot be joined to the answer so far."""
        assert self._answer is not None
        self._answer.unjoinable(attempt, reason)

    def suspended(self, attempt: Attempt) -> None:
        """The tunnel is gone or silent."""
        attempt.suspend(self._context.timers.time())
        if self._answer is not None:
            self._answer.suspended(attempt)
        elif self.state is ExchangeState.OPENING:
            self._watch()

    def resumed(self, attempt: Attempt) -> None:
        """The stream goes on."""
        now = self._context.timers.time()
        away_s = attempt.resume(now)
        if self._answer is not None:
            self._answer.resumed(attempt)
        elif self.state is ExchangeState.OPENING:
            self._pending.came_back(away_s, now)
            self._watch()

    def engine_lost(self, attempt: Attempt) -> None:
        """The agent says that its engine is not there any more."""
        if self._answer is not None:
            self._answer.engine_lost(attempt)
        elif self.state is ExchangeState.OPENING:
            self._act(self._pending.engine_lost(attempt, self._context.timers.time()), attempt)

    def body_failed(self, error: Exception) -> None:
        """The client's side could not deliver the rest of the body."""
        if self._answer is not None:
            self.break_off(ErrorCode.CANCELLED, "The rest of the request's body could not be read.")
        elif self.state is ExchangeState.OPENING:
            self.fail(error)

    def closed(self, attempt: Attempt) -> None:
        """A stream of this exchange is closed at both ends."""
        self.open_attempts -= 1
        if attempt.traced is not None:
            attempt.traced.ended_s = self._context.timers.time()
        self._context.released(attempt)
        if self.state is _DONE:
            self._leave()

    # --- From the response ---

    def much_came(self) -> None:
        """So much of an answer that was kept back is there that its client is to hear of it."""
        (attempt,) = (each for each in self._pending.attempts if each.response is not None)
        self._begin_answer(attempt, None, self._context.timers.time())

    def held_up(self, held_up: bool) -> None:
        if self._answer is not None:
            now = self._context.timers.time()
            self._context.slow_readers.note(self.request.model, self._answer, held_up, now)

    def reader_done(self, ending: Ending) -> None:
        if self._answer is not None:
            if ending is Ending.ABORTED:
                self._answer.stop(ErrorCode.CANCELLED)
            self._context.slow_readers.forget(self.request.model, self._answer)
            attempt = self._answer.attempt
        else:
            attempt = self._whole
        if attempt is not None and attempt.deployment.session.full:
            # The bytes that were held for the reader may be what kept it full.
            attempt.deployment.session.set_full(False)
        self._finish()

    # --- Steps ---

    def _goes_on(self, step: NextStep, attempt: Attempt) -> bool:
        """Do what ``step`` says of ``attempt``. False when that is to tell the client, as the caller does."""
        if step is NextStep.OTHER_COPY:
            self._pending.drop(attempt)
            self._watch()  # the tunnel of the one that is left may be away
        elif step is not _TELL:
            self._wait_again(held=step is NextStep.HOLD)
        return step is not _TELL

    def _wait_again(self, *, preempted: bool = False, held: bool = False) -> None:
        self._pending.give_up(ErrorCode.CANCELLED)
        self.state = ExchangeState.WAITING
        self._context.wait_again(self.ticket, preempted=preempted, refused=held)
        if self.request.dispatch_trace is not None:
            self.request.dispatch_trace.wait(self.ticket.entered_s)
        self._timer.set(self.ticket.expires_s)

    def _answer_begins(self, attempt: Attempt, now: float) -> None:
        """From here on the client hears of it."""
        self.state = _ANSWERING
        if len(self._pending.attempts) > 1:  # there may be a second copy by now
            self._pending.give_up(ErrorCode.CANCELLED, but=attempt)
        self._pending.attempts = ()
        self._context.metrics.first_byte(self.request.model, now - self.request.arrived_s)

    def _answer_whole(self, attempt: Attempt, response: EngineResponse, trailers: Trailers | None) -> None:
        """An answer that was kept back is all there: nothing can happen to it any more."""
        now = self._context.timers.time()
        self._answer_begins(attempt, now)
        self._whole = attempt
        self.request.body.forget()
        usage = None if trailers is None else trailers.usage
        count_answer(self._context, self.ticket, attempt, response.status, usage, usage, now)
        response.end(trailers)
        self._say(response)

    def _begin_answer(self, attempt: Attempt, record: AnswerRecord | None, now: float) -> None:
        """The client hears of an answer of which more is to come."""
        response = attempt.response
        assert response is not None
        self._answer_begins(attempt, now)
        recovery = StreamRecovery(self._context, self.request, attempt.deployment.version, record)
        if record is None:
            # Nothing will repeat it; what is still going up has its own hold on it.
            self.request.body.forget()
        self._answer = RunningAnswer(
            self._context, self.ticket, self._open, attempt, response, recovery, self._timer
        )
        self._say(response)

    def _finish(self) -> None:
        self.state = _DONE
        self._timer.close()
        self._leave()

    def _leave(self) -> None:
        """The last to close lets go of all that knows the exchange: it can go at once, and not when cycles
        are looked for."""
        if not self.open_attempts:
            self._answer = self._whole = None
            self._pending.attempts = ()
            self._context.finished(self.ticket)

    def _say(self, outcome: EngineResponse | Exception) -> None:
        if self._settle is not None:
            settle, self._settle = self._settle, None
            settle(outcome)

    # --- Time ---

    def _watch(self) -> None:
        """When to look again while no answer has begun."""
        self._timer.set(self._pending.due_s)

    def on_time(self, now: float) -> None:
        """Its timer says so."""
        if self._answer is not None:
            self._answer.on_time(now)
        elif self.state is ExchangeState.WAITING:
            self._still_waiting(now)
        elif self.state is ExchangeState.OPENING:
            self._act(self._pending.look(now), self._pending.attempts[0])

    def _still_waiting(self, now: float) -> None:
        until_s = self._context.admission.extended_expiry(self.ticket, now)
        if until_s is None:
            self.fail(self._context.waited_too_long(self.request, self._pending.refusals))
        else:
            self.ticket.expires_s = until_s
            self._timer.set(until_s)

    def _act(self, decision: Deployment | GiveUp | NextStep | None, attempt: Attempt) -> None:
        """What was decided while no answer has begun."""
        if isinstance(decision, GiveUp):
            self.fail(decision.error, decision.code)
        elif isinstance(decision, NextStep):
            self._goes_on(decision, attempt)
        else:
            self._watch()
            if decision is not None:
                self._open_copy(decision)

    def _open_copy(self, deployment: Deployment) -> None:
        try:
            attempt = self._open(deployment, self._context.timers.time(), self.request.body)
        except SessionClosed:
            deployment.session.end()
        except TooManyStreams:
            deployment.session.set_full(True)
        else:
            self._pending.attempts += (attempt,)
