"""The state of an answer whose head is out, how it ends, and what it cost then."""

from enum import Enum, auto

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.stall_detection import COMMENT_S, AnswerWatch
from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.domain.timers import LazyTimer
from gateway.scheduling.base import estimated_work
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers, Usage


class ExchangeState(Enum):
    """Where a request is; while it is ``ANSWERING`` its :class:`AnswerPhase` says more."""

    WAITING = auto()
    OPENING = auto()
    """One stream is open, or two of a hedged request; nothing has been said to the client."""
    ANSWERING = auto()
    """The head is out."""
    DONE = auto()


class AnswerPhase(Enum):
    STREAMING = auto()
    READING = auto()
    """Its engine is lost, and how far the answer came is being read."""
    WAITING = auto()
    """For another deployment to go on with it; the attempt there was may still come back."""
    ASKING = auto()
    """Another deployment was asked to go on."""
    OVER = auto()


class AnswerState:
    """The state of one answer. ``attempt`` is the attempt that produces it; None while there is none."""

    def __init__(
        self,
        context: DispatchContext,
        ticket: Ticket,
        attempt: Attempt | None,
        response: EngineResponse,
        recovery: StreamRecovery,
        timer: LazyTimer,
    ) -> None:
        self.phase = AnswerPhase.STREAMING
        self.response = response
        self.attempt: Attempt | None = attempt
        self._context = context
        self._ticket = ticket
        self._request = ticket.request
        self._recovery = recovery
        began_s = context.timers.time() if attempt is None else attempt.opened_s
        self._watch = AnswerWatch(context, ticket.request, began_s, timer)
        self._comment_s = 0.0
        """When the client got the latest comment."""

    def read_too_slowly(self, reason: str) -> None:
        """The engine waits for its client, and others wait for the engine."""
        if self.phase is AnswerPhase.OVER:
            return
        self._context.metrics.broken(self._request.model, "read_too_slowly")
        self.response.break_off(ErrorCode.CANCELLED, reason, read_slowly=True)
        self.stop(ErrorCode.CANCELLED, "its client reads too slowly")

    def break_off(self, code: ErrorCode, reason: str, *, not_continued: bool = False) -> None:
        """It cannot go on."""
        if self.phase is AnswerPhase.OVER:
            return
        self._context.metrics.broken(self._request.model, code.name.lower())
        self.response.break_off(code, reason, not_continued=not_continued)
        self.stop(code, reason)

    def stop(self, code: ErrorCode, reason: str = "") -> None:
        """End the answer: the client has left, or the answer cannot continue. Idempotent."""
        if self.phase is AnswerPhase.WAITING:
            self._context.withdraw(self._ticket)
        if self.phase is not AnswerPhase.OVER:
            self._end()
            _note_stopped(self._context, self._ticket, self.attempt)
        if self.attempt is not None:
            self.attempt.give_up(code, reason)

    def _comment(self, now: float) -> None:
        """Send a comment, so that no proxy between gives up while the answer pauses."""
        if now - self._comment_s >= COMMENT_S and self._recovery.commentable:
            self._comment_s = now
            self.response.comment()

    def _finish(self, attempt: Attempt | None, trailers: Trailers | None) -> None:
        """The answer is whole; its end came from ``attempt``, unless None."""
        now, request = self._context.timers.time(), self._request
        own = whole = None if trailers is None else trailers.usage
        continued = self._recovery.continued
        if continued and trailers is not None:
            trailers = self._recovery.add_up(trailers)
            whole = trailers.usage
        count_answer(self._context, self._ticket, attempt, self.response.status, own, whole, now)
        if continued:
            self._context.metrics.continued(request.model, "done")
        self._end()
        self.response.end(trailers)

    def _end(self) -> None:
        self.phase = AnswerPhase.OVER
        self._watch.stop()
        self._recovery.release()


def count_answer(
    context: DispatchContext,
    ticket: Ticket,
    attempt: Attempt | None,
    status: int,
    own: Usage | None,
    whole: Usage | None,
    now: float,
) -> None:
    """An answer came whole, its end from ``attempt``, unless None: what it used and took is counted. ``own``
    is what the engine of ``attempt`` counted, ``whole`` what all engines did; None where nobody did."""
    if whole is None:
        _note_stopped(context, ticket, attempt)
    else:
        context.metrics.used(ticket.request.model, whole)
        uncached_tokens = whole.prompt_tokens - whole.cached_tokens  # what was cached cost nothing
        work = estimated_work(uncached_tokens if uncached_tokens > 0 else 0, whole.completion_tokens)
        context.room.settle(ticket, work, now)
    if attempt is not None and status < 500 and not attempt.refused:
        first_byte_s = (attempt.first_byte_s or now) - attempt.opened_s
        total_s = now - attempt.opened_s - attempt.away_s
        context.succeeded(attempt, first_byte_s, total_s, now, own)


def _note_stopped(context: DispatchContext, ticket: Ticket, attempt: Attempt | None) -> None:
    """Estimate the usage of an answer that was not finished or not counted; a streamed piece counts as a
    token."""
    request = ticket.request
    if attempt is not None and request.streaming:
        work = estimated_work(request.input_tokens, min(request.output_tokens, attempt.pieces))
        context.room.settle(ticket, work, context.timers.time())
