"""One request from its place in the queue to its one end, over any number of attempts.

States and what moves them::

    WAITING ──slot──> OPENING ──head──> ANSWERING ──> DONE
       ^                 │
       └──── moved ──────┘          every state: error, cancel ──> DONE

While it is ANSWERING an :class:`~gateway.dispatch.running_answer.RunningAnswer` sees to it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.pending_attempts import PendingAttempts
from gateway.dispatch.request_heads import head_for
from gateway.dispatch.response import Ending, EngineResponse, is_event_stream
from gateway.dispatch.running_answer import RunningAnswer
from gateway.dispatch.stall_detection import ANSWER_S, LOST_PATIENCE_S
from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.dispatch.upload import StreamUpload
from gateway.dispatch.usage_option import fit, is_rejected, note_taken
from gateway.domain.errors import DeadlineExceeded, RequestError
from gateway.domain.lazy_timer import LazyTimer
from gateway.domain.request import PREEMPTED, Request, RequestBody
from gateway.fleet.deployments import Deployment
from gateway.scheduling.base import ANY_ROUTE
from gateway.scheduling.health.failover import (
    ENGINES_FAULT,
    MOST_REFUSALS,
    RULES,
    Effect,
    Refusals,
    Tries,
    Trouble,
    may_be_repeated,
    request_error,
    trouble_of,
)
from gateway.scheduling.queue.queue import Ticket
from shared.protocol.errors import ErrorCode, SessionClosed, TooManyStreams
from shared.protocol.messages import ResponseHead, Trailers

USAGE_OPTION = "usage_option"
"""Why a request is asked again that its engine may have rejected for what the gateway added to it."""

HEDGE_AGAIN_S = 1.0
"""When to try again to place a second copy for which there was no slot or no budget."""

HEDGE_TIMES = 5.0
"""An engine silent for so many times as long as another took for the same request is taken to hang."""


class ExchangeState(Enum):
    WAITING = auto()
    OPENING = auto()
    """One stream is open, or two of a hedged request; nothing has been said to the client."""
    ANSWERING = auto()
    """The head is out."""
    DONE = auto()


class Dispatch(DispatchContext, Protocol):
    """What an exchange needs of the dispatcher."""

    def taken(self, exchange: "RequestExchange", attempt: Attempt) -> None:
        """An attempt has its stream: the request leaves the waiting room, if it is there; takes a slot."""

    def wait_again(self, exchange: "RequestExchange", *, preempted: bool = False) -> None:
        """Back into the waiting room. ``preempted``: it gave way, and may wait until its time is over."""

    def hold(self, exchange: "RequestExchange") -> None:
        """Back into the waiting room until the time that it may wait is over: engines have enough to do."""

    def slot_expected_s(self, request: Request) -> float:
        """When somebody whose request is refused now should come back, in seconds."""
        ...

    def withdraw(self, exchange: "RequestExchange") -> None:
        """Out of the waiting room, without a slot."""

    def may_wait_until(self, exchange: "RequestExchange") -> float | None:
        """Until when a request may wait on that waited as long as it was to, for a model that is being
        loaded; None: no longer."""
        ...

    def waited_too_long(self, exchange: "RequestExchange") -> RequestError:
        """What to say to a request that waited as long as it may."""
        ...

    def hedge(self, exchange: "RequestExchange", now: float) -> Deployment | None:
        """Where a second copy goes, if it may."""
        ...

    def lacks_path(self, attempt: Attempt) -> None:
        """The attempt's engine has nothing at the request's path: such requests go there no more."""

    def nobody_has(self, request: Request) -> RequestError:
        """What to say to a request whose path the engine that was asked lacks, when nobody else gets it."""
        ...

    def finished(self, exchange: "RequestExchange") -> None:
        """Nobody waits for anything of the exchange any more, but its streams may still be closing."""


class RequestExchange:
    """One request on its way. ``settle`` is called exactly once, with the response or the error."""

    def __init__(
        self,
        request: Request,
        ticket: Ticket,
        home: Dispatch,
        settle: Callable[[EngineResponse | Exception], None],
    ) -> None:
        self.request = request
        self.ticket = ticket
        self.state = ExchangeState.WAITING
        self.open_attempts = 0
        self._home = home
        self._settle = settle
        self._settled = False
        self._opening = PendingAttempts()
        self._answer: RunningAnswer | None = None
        self._queue_s = 0.0
        self._rejecting: Deployment | None = None
        """Which seemed to reject the option that asks for usage."""
        self._tries = Tries(home.settings.max_attempts)
        self.refusals: Refusals | None = None
        """Engines that had enough to do; None: none had."""
        self._alarm = LazyTimer(home.timers, self._on_time)
        self._alarm.due(ticket.expires_s)

    # --- From the dispatcher ---

    def begin(self, deployment: Deployment, now: float) -> None:
        """Give the request to ``deployment``, which has a slot free. Raises as :class:`Attempt` does, and
        changes nothing then."""
        if self._answer is not None:
            self._answer.begin(deployment, now)
            return
        assert self.state is ExchangeState.WAITING
        fit(self.request, deployment)
        attempt = self.open(deployment, now, self.request.body)
        self.state = ExchangeState.OPENING
        self._queue_s += now - self.ticket.entered_s
        self._opening.begin(
            attempt, now, None if self.request.body.rest else self._home.hedge_at(self.request, now)
        )
        self._watch()

    def open(self, deployment: Deployment, now: float, body: RequestBody) -> Attempt:
        """Open a stream with ``body``. Raises as :class:`Attempt` does, and changes nothing then."""
        head = head_for(self.request, deployment, now, None if body is self.request.body else body.held_bytes)
        attempt = Attempt(self, deployment, head, self.ticket.work, now)
        self.open_attempts += 1
        self.request.attempts.append(deployment.key)
        self._home.taken(self, attempt)
        attempt.upload = StreamUpload(body, attempt.stream, attempt, self._home.spawn)
        attempt.upload.start()
        return attempt

    def wait_again(self, *, preempted: bool = False) -> None:
        self._home.wait_again(self, preempted=preempted)

    def withdraw(self) -> None:
        self._home.withdraw(self)

    @property
    def answering(self) -> bool:
        """Its client has heard of its answer."""
        return self._answer is not None

    def preempt(self, attempt: Attempt, now: float) -> bool:
        """Give back the slot of ``attempt`` and wait again; what there is of an answer is kept and gone on
        with later. False, and nothing is changed, when that would not be sound."""
        if self._answer is not None:
            given_back = self._answer.preempt(attempt, now)
        elif given_back := self._opening.only(attempt) and self._may_repeat:
            self._wait_again(preempted=True)
        if given_back:
            self.request.preempted += 1
            self.request.note_trouble(attempt.deployment.key, PREEMPTED)
            self._home.metrics.preempted(self.request.model, self.request.tier)
        return given_back

    def reads_first(self, attempt: Attempt, then: Callable[[], None]) -> bool:
        """Whether it takes long to find out whether ``attempt`` can be preempted soundly; ``then`` is called
        once it has been, unless the attempt is over by then."""
        return self._answer is not None and self._answer.reads_first(attempt, then)

    def fail(self, error: Exception, code: ErrorCode = ErrorCode.CANCELLED) -> None:
        """The exchange ends with ``error``; what runs is reset with ``code``."""
        if self._answer is not None:
            self._answer.nobody(str(error).rstrip("."))
            return
        if self.state is ExchangeState.WAITING:
            self._home.withdraw(self)
        self._opening.give_up(code)
        self._finish()
        self._say(error)

    def cancel(self) -> None:
        """Nobody awaits the answer any more."""
        if self._answer is not None:
            self._answer.response.abort()
        elif self.state is not ExchangeState.DONE:
            self._settle, self._settled = _nobody, True
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
        if head.lacks_path and self.request.route != ANY_ROUTE:
            self._lacks_path(attempt)
            return
        now = self._home.timers.time()
        trouble = None if self.request.route == ANY_ROUTE else trouble_of(head)
        if trouble is Trouble.OVERLOADED:
            if self._held_back(attempt, head, now):
                return
            head = self._with_retry_after(head)
        elif trouble is not None:
            self._home.failed(attempt, trouble, now)
            if self._goes_elsewhere(attempt, trouble, Effect.HARMLESS, only_if_better=True):
                return
        else:
            self._home.answered(attempt, now)
            if self._is_asked_again(attempt, head.status):
                return
        if attempt is not self._opening.attempts[0]:
            self._hedge_won(attempt, now)
        self._opening.give_up(ErrorCode.CANCELLED, but=attempt)
        attempt.first_byte_s = now
        recordable = StreamRecovery.recordable(self.request, head)
        settings = self._home.settings
        course = (
            StreamRecovery(self.request, self._home.records, settings.record_bytes) if recordable else None
        )
        held = not self.request.streaming and not is_event_stream(head.headers) and self._may_repeat
        attempt.response = self._response(attempt, head, course, held)
        if not held:
            self._begin_answer(attempt, course)

    def _is_asked_again(self, attempt: Attempt, status: int) -> bool:
        """Ask again, and without the option that asks for usage, where the engine may have rejected that."""
        request, deployment = self.request, attempt.deployment
        if not request.streaming:
            return False
        if status < 400:
            note_taken(request, deployment, self._rejecting)
        elif self._rejecting is None and is_rejected(request, deployment, status):
            self._rejecting = deployment
            request.note_trouble(deployment.key, USAGE_OPTION)
            self._home.metrics.retried(request.model, USAGE_OPTION)
            self._wait_again()
            return True
        return False

    def began(self, attempt: Attempt) -> None:
        """The first of a response's body is there."""
        if self.request.streaming:
            self._home.began(attempt)

    def complete(self, attempt: Attempt, trailers: Trailers | None) -> None:
        """A stream ended in order."""
        if self._answer is None and attempt.response is not None:
            self._begin_answer(attempt, None)
        if self._answer is not None:
            self._answer.complete(attempt, trailers)
        else:
            self.lost(attempt, ErrorCode.ENGINE_FAILED, "the stream ended without a response")

    def lost(self, attempt: Attempt, code: ErrorCode, reason: str) -> None:
        """A stream was reset from the other side."""
        if self._answer is not None:
            self._answer.lost(attempt, code, reason)
            return
        trouble, effect = RULES.get(code, (None, Effect.FINAL))
        if trouble is Trouble.OVERLOADED:
            if self._held_back(attempt, None, self._home.timers.time()):
                return
        elif trouble is not None:
            self._home.failed(attempt, trouble, self._home.timers.time())
        if trouble in (None, Trouble.OVERLOADED) or not self._goes_elsewhere(
            attempt, trouble, effect, only_if_better=trouble in ENGINES_FAULT
        ):
            self.fail(request_error(code, reason))

    def unjoinable(self, attempt: Attempt, reason: str) -> None:
        """What came cannot be joined to the answer so far."""
        assert self._answer is not None
        self._answer.unjoinable(attempt, reason)

    def suspended(self, attempt: Attempt) -> None:
        """The tunnel is gone or silent."""
        attempt.suspend(self._home.timers.time())
        if self._answer is not None:
            self._answer.suspended(attempt)
        elif self.state is ExchangeState.OPENING:
            self._watch()

    def resumed(self, attempt: Attempt) -> None:
        """The stream goes on."""
        now = self._home.timers.time()
        away_s = attempt.resume(now)
        if self._answer is not None:
            self._answer.resumed(attempt)
        elif self.state is ExchangeState.OPENING:
            self._opening.came_back(away_s, now, self._home.settings.first_byte_s)
            self._watch()

    def engine_lost(self, attempt: Attempt) -> None:
        """The agent says that its engine is not there any more."""
        now = self._home.timers.time()
        if self._answer is not None:
            self._answer.engine_lost(attempt)
        elif self.state is not ExchangeState.OPENING:
            return
        elif self._opening.drop(attempt):
            self._home.failed(attempt, Trouble.ENGINE_LOST, now)
            self._watch()
        elif self._opening.lost_s is not None:
            self._at_lost_engine(now)

    def body_failed(self, error: Exception) -> None:
        """The client's side could not deliver the rest of the body."""
        if self._answer is not None:
            self.break_off(ErrorCode.CANCELLED, "The rest of the request's body could not be read.")
        elif self.state is ExchangeState.OPENING:
            self.fail(error)

    def closed(self, attempt: Attempt) -> None:
        """A stream of this exchange is closed at both ends."""
        self.open_attempts -= 1
        self._home.released(attempt)
        if self.state is ExchangeState.DONE:
            self._leave()

    # --- Steps ---

    @property
    def _may_repeat(self) -> bool:
        """Whether an engine that may have worked on the request is no reason not to ask another."""
        return may_be_repeated(self.request, Effect.HARMLESS)

    def _goes_elsewhere(
        self, attempt: Attempt, trouble: Trouble, effect: Effect, *, only_if_better: bool = False
    ) -> bool:
        """Give up ``attempt`` and try somebody else, if that is sound and within every budget.

        ``only_if_better``: what the attempt came to can be told to the client.
        """
        if self._opening.drop(attempt):
            return True
        request = self.request
        if not self._tries.count(trouble) or not may_be_repeated(request, effect):
            return False
        if only_if_better and not self._home.someone_else(request, patiently=True):
            return False
        if not self._home.may_retry(request, trouble):
            return False
        self._home.metrics.retried(request.model, trouble.name.lower())
        self._wait_again()
        return True

    def _lacks_path(self, attempt: Attempt) -> None:
        """Its engine's router says that there is nothing at the request's path: another engine may have
        it."""
        self._home.lacks_path(attempt)
        if not self._goes_elsewhere(attempt, Trouble.NO_PATH, Effect.NONE, only_if_better=True):
            self.fail(self._home.nobody_has(self.request))

    def _held_back(self, attempt: Attempt, head: ResponseHead | None, now: float) -> bool:
        """The engine has enough to do: have the request wait for it, or for another, if that is sound and
        within the time that it may wait. No budget is asked, for no engine began on it."""
        self.refusals = self.refusals or Refusals()
        wait_s = self.refusals.note(head, now)
        attempt.refused = True
        self._home.failed(attempt, Trouble.OVERLOADED, now, wait_s)
        if self._opening.drop(attempt):
            return True
        from_s = now if self._home.someone_else(self.request) else now + wait_s
        if not self._may_repeat or from_s >= self.ticket.expires_s or self.refusals.count > MOST_REFUSALS:
            return False
        self._home.metrics.retried(self.request.model, Trouble.OVERLOADED.name.lower())
        self._opening.give_up(ErrorCode.CANCELLED)
        self.state = ExchangeState.WAITING
        self._home.hold(self)
        self._alarm.due(self.ticket.expires_s)
        return True

    def _with_retry_after(self, head: ResponseHead) -> ResponseHead:
        """``head`` with the time after which to come back, where the engine does not say."""
        if any(name in ("retry-after", "retry-after-ms") for name, _ in head.headers):
            return head
        seconds = math.ceil(self._home.slot_expected_s(self.request))
        return replace(head, headers=(*head.headers, ("retry-after", str(seconds))))

    def _wait_again(self, *, preempted: bool = False) -> None:
        self._opening.give_up(ErrorCode.CANCELLED)
        self.state = ExchangeState.WAITING
        self._home.wait_again(self, preempted=preempted)
        self._alarm.due(self.ticket.expires_s)

    def _response(
        self, attempt: Attempt, head: ResponseHead, course: StreamRecovery | None, held: bool
    ) -> EngineResponse:
        return EngineResponse(
            head,
            attempt.stream,
            agent=attempt.deployment.agent,
            deployment=attempt.deployment.key,
            queue_s=self._queue_s,
            attempts=len(self.request.attempts),
            on_done=self._reader_done,
            record=None if course is None else course.record,
            on_full=(lambda: self._begin_answer(attempt, None)) if held else None,
            version=attempt.deployment.version,
            unread=self._home.unread.share(self.request.principal.key_id, self.request.principal.tenant),
            on_held_up=self._held_up,
        )

    def _begin_answer(self, attempt: Attempt, course: StreamRecovery | None) -> None:
        """From here on the client hears of it."""
        response = attempt.response
        assert response is not None
        self.state = ExchangeState.ANSWERING
        self._opening.give_up(ErrorCode.CANCELLED, but=attempt)  # there may be a second copy by now
        self._opening.attempts = []
        self._home.metrics.first_byte(self.request.model, self._home.timers.time() - self.request.arrived_s)
        if course is None:
            # Nothing will repeat it; what is still going up has its own hold on it.
            self.request.body.prefix = b""
        self._answer = RunningAnswer(self, self._home, attempt, response, course, self._alarm)
        self._say(response)

    def _held_up(self, held_up: bool) -> None:
        if self._answer is not None:
            note = self._home.slow_readers.holds_up if held_up else self._home.slow_readers.lets_go
            note(self.request.model, self._answer, self._home.timers.time())

    def _reader_done(self, ending: Ending) -> None:
        assert self._answer is not None
        attempt = self._answer.attempt
        self._home.slow_readers.forget(self.request.model, self._answer)
        if ending is Ending.ABORTED:
            self._answer.stop(ErrorCode.CANCELLED)
        if attempt is not None and attempt.deployment.session.full:
            attempt.deployment.session.set_full(False)  # bytes held so long may have kept it full
        self._finish()

    def _finish(self) -> None:
        self.state = ExchangeState.DONE
        self._alarm.off()
        self._leave()

    def _leave(self) -> None:
        """The last to close lets go of all that knows the exchange: it can go at once, and not when cycles
        are looked for."""
        if not self.open_attempts:
            self._answer = None
            self._opening.attempts = []
            self._alarm.close()
        self._home.finished(self)

    def _say(self, outcome: EngineResponse | Exception) -> None:
        if not self._settled:
            self._settled = True
            settle, self._settle = self._settle, _nobody
            settle(outcome)

    # --- Time ---

    def _watch(self) -> None:
        """When to look again while no answer has begun."""
        self._alarm.due(self._opening.due_s(self._home.settings, self.request.deadline_s))

    def _on_time(self, now: float) -> None:
        if self._answer is not None:
            self._answer.on_time(now)
        elif self.state is ExchangeState.WAITING:
            self._still_waiting()
        elif self.state is ExchangeState.OPENING:
            self._still_opening(now)

    def _still_waiting(self) -> None:
        until_s = self._home.may_wait_until(self)
        if until_s is None:
            self.fail(self._home.waited_too_long(self))
        else:
            self.ticket.expires_s = until_s
            self._alarm.due(until_s)

    def _still_opening(self, now: float) -> None:
        deadline_s = self.request.deadline_s
        if deadline_s is not None and now >= deadline_s:
            self._fail_late()
        elif self._opening.gone:
            self._still_suspended(now)
        elif self._opening.lost_s is not None:
            self._at_lost_engine(now)
        elif now >= self._opening.opened_s + self._home.settings.first_byte_s:
            self._took_too_long(now)
        elif self._opening.hedge_at_s is not None and now >= self._opening.hedge_at_s:
            self._hedge(now)
        else:
            self._watch()

    def _at_lost_engine(self, now: float) -> None:
        """Its agent has declared the engine lost: somebody else gets the request, if there is somebody. Else
        the engine may answer yet, for a while."""
        attempt, lost_s = self._opening.attempts[0], self._opening.lost_s
        assert lost_s is not None
        over = now >= max(lost_s, self._opening.opened_s) + LOST_PATIENCE_S
        elsewhere = self._may_repeat and self._home.someone_else(self.request, patiently=over)
        if not (over or elsewhere):
            self._opening.looked_s = now
            self._watch()
            return
        self._home.failed(attempt, Trouble.ENGINE_LOST, now)
        if elsewhere and self._tries.move():
            self._home.metrics.failed_over(self.request.model, "engine_lost")
            self._wait_again()
        else:
            reason = attempt.deployment.reason
            self.fail(request_error(ErrorCode.ENGINE_UNREACHABLE, reason), ErrorCode.ENGINE_TIMEOUT)

    def _took_too_long(self, now: float) -> None:
        """None of the attempts began to answer in time. Those whose tunnel is away are not to blame, and none
        where the client was still sending: it may have taken the time."""
        late = self._opening.late(now)
        if not late:
            self._alarm.due(now + ANSWER_S)
            return
        for attempt in late if self.request.body.rest is None else ():
            self._home.failed(attempt, Trouble.TIMEOUT, now)
        self._opening.give_up(ErrorCode.ENGINE_TIMEOUT, but=late[0])
        if not self._goes_elsewhere(late[0], Trouble.TIMEOUT, Effect.HARMLESS, only_if_better=True):
            self._fail_late()

    def _fail_late(self) -> None:
        message = "The engine did not begin to answer in the time there was."
        self.fail(DeadlineExceeded(message), ErrorCode.DEADLINE)

    def _still_suspended(self, now: float) -> None:
        """The tunnel stays away: somebody else gets the request, if there is somebody."""
        if self._may_repeat and self._home.someone_else(self.request) and self._tries.move():
            self._home.metrics.failed_over(self.request.model, "suspended")
            self._wait_again()
        else:
            self._opening.looked_s = now
            self._watch()

    def _hedge_won(self, attempt: Attempt, now: float) -> None:
        """The second copy was answered first. An engine that said nothing in much longer than that took is
        taken to answer nothing."""
        self._home.metrics.hedge_won(self.request.model)
        first, took_s = self._opening.attempts[0], now - attempt.opened_s
        silent_s = now - first.opened_s - first.away_s
        if (
            first.response is None
            and first.suspended_s is None
            and silent_s >= max(self._home.settings.stall_s, HEDGE_TIMES * took_s)
        ):
            self._home.failed(first, Trouble.TIMEOUT, now)

    def _hedge(self, now: float) -> None:
        """It is late: a second copy may be sooner, unless the answer is on its way already."""
        may = self._opening.alone and self._may_repeat
        deployment = self._home.hedge(self, now) if may else None
        self._opening.hedge_at_s = now + HEDGE_AGAIN_S if may and deployment is None else None
        if deployment is not None:
            try:
                self._opening.attempts.append(self.open(deployment, now, self.request.body))
            except SessionClosed:
                deployment.session.end()
            except TooManyStreams:
                deployment.session.set_full(True)
        self._watch()


def _nobody(outcome: EngineResponse | Exception) -> None:
    """Was to be told."""
