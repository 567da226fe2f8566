"""One request from its place in the queue to its one end, over any number of attempts.

States and what moves them::

    WAITING ──slot──> OPENING ──head──> ANSWERING ──> DONE
       ^                 │
       └──── retry ──────┘          every state: error, cancel ──> DONE
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from gateway.attempt import Attempt
from gateway.deployments import Deployment
from gateway.domain import Request
from gateway.errors import DeadlineExceeded, RequestError
from gateway.failover import TROUBLED, break_reason, may_go_elsewhere, request_error
from gateway.metrics import Metrics
from gateway.queue import Ticket
from gateway.response import Ending, EngineResponse
from gateway.timers import Cancellable, Timers
from gateway.upload import Upload
from shared.errors import ErrorCode
from shared.messages import RequestHead, ResponseHead, Trailers


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Time budgets and attempts."""

    max_attempts: int = 3
    first_byte_s: float = 600.0
    """From the stream's opening to the response's head. Unary answers have no head before they are done."""
    idle_s: float = 300.0
    """Longest silence in a response whose reader keeps up; noticed after at most twice as long."""
    total_s: float = 3600.0
    """From the stream's opening to the response's end."""
    reconnect_grace_s: float = 5.0
    """How long requests are held for a model whose last deployment went away (agents redial at once)."""
    rest_s: float = 0.1
    """How long a deployment is left alone after it refused a request or its engine could not be reached;
    twice as long for each further failure in a row."""
    rest_max_s: float = 5.0
    slow_start_s: float = 30.0
    """How long the slots of a new or recovered deployment ramp up; 0 for not at all."""
    retry_share: float = 0.2
    """Retries, as a share of requests; ten a second are always allowed."""
    hedge_share: float = 0.02
    """Second copies of late requests, as a share of requests; 0 for none."""


class State(Enum):
    WAITING = auto()
    OPENING = auto()
    """A stream is open; no head has come."""
    ANSWERING = auto()
    """The head is out; attempts are over."""
    DONE = auto()


class Home(Protocol):
    """What an exchange needs of the dispatcher."""

    timers: Timers
    settings: DispatchSettings
    metrics: Metrics

    def spawn(self, work: Coroutine[Any, Any, None], /) -> "asyncio.Task[None]":
        """Starts a task and owns it."""
        ...

    def taken(self, exchange: "Exchange", attempt: Attempt) -> None:
        """An attempt has its stream: it leaves the waiting room and takes a slot."""

    def released(self, attempt: Attempt) -> None:
        """An attempt's stream is closed at both ends: its slot is free."""

    def troubled(self, deployment: Deployment) -> None:
        """A deployment did not take a request."""

    def wait_again(self, exchange: "Exchange") -> None:
        """Back into the waiting room."""

    def withdraw(self, exchange: "Exchange") -> None:
        """Out of the waiting room, without a slot."""

    def waited_too_long(self, exchange: "Exchange") -> RequestError:
        """What to say to a request that waited as long as it may."""

    def finished(self, exchange: "Exchange") -> None:
        """Nobody waits for anything of the exchange any more, but its streams may still be closing."""


class Exchange:
    """One request on its way. ``settle`` is called exactly once, with the response or the error."""

    def __init__(
        self,
        request: Request,
        ticket: Ticket,
        home: Home,
        settle: Callable[[EngineResponse | Exception], None],
    ) -> None:
        self.request = request
        self.ticket = ticket
        self.state = State.WAITING
        self.open_attempts = 0
        self._home = home
        self._settle = settle
        self._settled = False
        self._attempt: Attempt | None = None
        self._queue_s = 0.0
        self._due_s = ticket.expires_s
        self._timer_s = self._due_s
        self._timer: Cancellable | None = home.timers.call_at(self._due_s, self._on_time)

    # --- From the dispatcher ---

    def begin(self, deployment: Deployment, now: float) -> None:
        """Give the request to ``deployment``, which has a slot free. Raises as :class:`Attempt` does, and
        changes nothing then."""
        assert self.state is State.WAITING
        request, home = self.request, self._home
        self._attempt = attempt = Attempt(
            self, deployment, self._head(deployment, now), self.ticket.work, now
        )
        self.state = State.OPENING
        self._queue_s += now - self.ticket.entered_s
        self.open_attempts += 1
        request.attempts.append(deployment.key)
        home.taken(self, attempt)
        first_byte_at = now + home.settings.first_byte_s
        self._due(first_byte_at if request.deadline_s is None else min(first_byte_at, request.deadline_s))
        attempt.upload = Upload(request.body, attempt.stream, attempt, home.spawn)
        attempt.upload.start()

    def fail(self, error: Exception, code: ErrorCode = ErrorCode.CANCELLED) -> None:
        """The exchange ends with ``error``; what runs is reset with ``code``. Only before the head is out."""
        if self.state is State.WAITING:
            self._home.withdraw(self)
        elif self._attempt is not None:
            self._attempt.give_up(code)
        self._finish()
        self._say(error)

    def cancel(self) -> None:
        """Nobody awaits the answer any more."""
        if self.state is State.ANSWERING:
            assert self._attempt is not None
            assert self._attempt.response is not None
            self._attempt.response.abort()
        elif self.state is not State.DONE:
            self._settled = True
            self.fail(RequestError("nobody awaits the answer"))

    def break_off(self, code: ErrorCode, reason: str) -> None:
        """The response has begun and cannot go on, for a reason of our own."""
        if self.state is State.ANSWERING and self._attempt is not None and self._attempt.response is not None:
            self._home.metrics.broken(self.request.model, code.name.lower())
            self._attempt.response.break_off(code, reason)
            self._attempt.give_up(code, reason)

    # --- From the attempt ---

    def answered(self, attempt: Attempt, head: ResponseHead) -> None:
        """The response's head is there."""
        now = self._home.timers.time()
        self.state = State.ANSWERING
        attempt.deployment.failures = 0
        attempt.response = response = EngineResponse(
            head,
            attempt.stream,
            agent=attempt.deployment.agent,
            deployment=attempt.deployment.key,
            queue_s=self._queue_s,
            attempts=len(self.request.attempts),
            on_done=self._reader_done,
        )
        self._home.metrics.first_byte(self.request.model, now - self.request.arrived_s)
        self.request.body.prefix = (
            b""  # nothing will replay it; what is still going up has its own hold on it
        )
        self._due(min(now + self._home.settings.idle_s, self._ends_s(attempt)))
        self._say(response)

    def complete(self, trailers: Trailers | None) -> None:
        """The response is complete."""
        if self.state is not State.ANSWERING:
            self.lost(ErrorCode.ENGINE_FAILED, "the stream ended without a response")
            return
        assert self._attempt is not None
        assert self._attempt.response is not None
        if trailers is not None and trailers.usage is not None:
            self._home.metrics.used(self.request.model, trailers.usage)
        self._attempt.response.end(trailers)
        self._disarm()

    def lost(self, code: ErrorCode, reason: str) -> None:
        """The stream was reset from the other side."""
        assert self._attempt is not None
        if code in TROUBLED:
            self._home.troubled(self._attempt.deployment)
        if self.state is State.ANSWERING:
            assert self._attempt.response is not None
            self._home.metrics.broken(self.request.model, code.name.lower())
            self._attempt.response.break_off(code, break_reason(code, reason))
            self._disarm()
        elif may_go_elsewhere(self.request, code, self._home.settings.max_attempts):
            self._home.metrics.retried(self.request.model, code.name.lower())
            self._attempt = None
            self.state = State.WAITING
            self._home.wait_again(self)
            self._due(self.ticket.expires_s)
        else:
            self.fail(request_error(code, reason))

    def body_failed(self, error: Exception) -> None:
        """The client's side could not deliver the rest of the body."""
        if self.state is State.ANSWERING:
            self.break_off(ErrorCode.CANCELLED, "The rest of the request's body could not be read.")
        elif self.state is State.OPENING:
            self.fail(error)

    def closed(self, attempt: Attempt) -> None:
        """A stream of this exchange is closed at both ends."""
        self.open_attempts -= 1
        self._home.released(attempt)
        if self.state is State.DONE:
            self._home.finished(self)

    # --- Steps ---

    def _head(self, deployment: Deployment, now: float) -> RequestHead:
        request = self.request
        left_s = None
        if request.deadline_s is not None and not request.streaming:
            left_s = max(0.0, request.deadline_s - now)
        return RequestHead(
            deployment=deployment.id,
            method=request.method,
            path=request.path,
            headers=request.headers,
            model=request.model,
            request_id=request.id,
            streaming=request.streaming,
            usage=request.usage,
            tier=request.tier.value,
            deadline_s=left_s,
            trace=request.trace,
        )

    def _reader_done(self, ending: Ending) -> None:
        assert self._attempt is not None
        if ending is Ending.ABORTED:
            self._attempt.give_up(ErrorCode.CANCELLED)
        if self._attempt.deployment.session.full:  # bytes held until now may have kept it full
            self._attempt.deployment.session.set_full(False)
        self._finish()

    def _finish(self) -> None:
        self.state = State.DONE
        self._disarm()
        self._home.finished(self)

    def _say(self, outcome: EngineResponse | Exception) -> None:
        if not self._settled:
            self._settled = True
            self._settle(outcome)

    # --- Time: one timer, set anew only when it would come too late ---

    def _due(self, when_s: float) -> None:
        self._due_s = when_s
        if self._timer is None or self._timer_s > when_s:
            self._disarm()
            self._timer_s = when_s
            self._timer = self._home.timers.call_at(when_s, self._on_time)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        now = self._home.timers.time()
        if now < self._due_s:
            self._due(self._due_s)
        elif self.state is State.WAITING:
            self.fail(self._home.waited_too_long(self))
        elif self.state is State.OPENING:
            message = "The engine did not begin to answer in the time there was."
            self.fail(DeadlineExceeded(message), ErrorCode.DEADLINE)
        elif self.state is State.ANSWERING:
            self._check_answer(now)

    def _check_answer(self, now: float) -> None:
        attempt, settings = self._attempt, self._home.settings
        assert attempt is not None
        assert attempt.response is not None
        ends_s = self._ends_s(attempt)
        if now >= ends_s:
            self.break_off(ErrorCode.DEADLINE, "The answer took longer than it may.")
        elif attempt.heard or attempt.response.behind:
            attempt.heard = False
            self._due(min(now + settings.idle_s, ends_s))
        else:
            self.break_off(ErrorCode.ENGINE_TIMEOUT, f"The engine was silent for {settings.idle_s:g} s.")

    def _ends_s(self, attempt: Attempt) -> float:
        """When the answer must be complete. A streaming request's deadline ends with its first byte."""
        ends_s = attempt.opened_s + self._home.settings.total_s
        if self.request.streaming or self.request.deadline_s is None:
            return ends_s
        return min(ends_s, self.request.deadline_s)
