"""What an answer cost, as it is told to the dispatcher when the answer is over."""

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.scheduling.base import estimated_work
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.messages import Usage


def note_complete(
    context: DispatchContext,
    ticket: Ticket,
    attempt: Attempt | None,
    *,
    status: int,
    usage: Usage | None,
    own: Usage | None,
    now: float,
) -> None:
    """The answer came whole, its end from ``attempt`` unless None. ``usage`` is that of the whole answer,
    ``own`` that of this attempt alone; None: its engine counted nothing."""
    request = ticket.request
    if usage is not None:
        context.metrics.used(request.model, usage)
        context.room.settle(ticket, _work_done(usage), now)
    else:
        note_stopped(context, ticket, attempt)
    if attempt is not None and status < 500 and not attempt.refused:
        first_byte_s = (attempt.first_byte_s or now) - attempt.opened_s
        context.succeeded(attempt, first_byte_s, now - attempt.opened_s - attempt.away_s, now, own)


def note_stopped(context: DispatchContext, ticket: Ticket, attempt: Attempt | None) -> None:
    """The answer is not finished, or nobody counted: of a streamed one a piece is taken for a token."""
    request = ticket.request
    if attempt is not None and request.streaming:
        work = estimated_work(request.input_tokens, min(request.output_tokens, attempt.pieces))
        context.room.settle(ticket, work, context.timers.time())


def _work_done(usage: Usage) -> float:
    """By what its engine counted. What was cached cost nothing."""
    return estimated_work(max(0, usage.prompt_tokens - usage.cached_tokens), usage.completion_tokens)
