"""An answer whose front part its reader has already, from an engine that is lost together with its gateway.

The rest of it comes from another attempt, joined as after the loss of an engine alone (PROTOCOL §7.4).
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.dispatch.answer_state import AnswerPhase
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.exchange import ExchangeState, MakeExchange, RequestExchange
from gateway.dispatch.recovery import AnswerRecord, NotContinuable
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.response_buffers import UnreadBudget
from gateway.dispatch.response_stream import NOBODY, Ending, NoStream, ResponseOwner
from gateway.dispatch.running_answer import RunningAnswer
from gateway.dispatch.stall_detection import COMMENT_S
from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.domain.request import BegunAnswer, Principal, Request
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.messages import ResponseHead

RunRequest = Callable[[Request, MakeExchange], Awaitable[EngineResponse]]


async def run_begun(
    context: DispatchContext, request: Request, begun: BegunAnswer, run: RunRequest
) -> EngineResponse:
    """The rest of a begun answer, by ``run``. Raises what that raises, and
    :class:`~gateway.dispatch.recovery.NotContinuable` where it cannot go on: the request can only be asked
    anew then."""
    recovery = await _read(context, request, begun)
    if recovery.closing is not None:
        return _closed(recovery, begun)
    try:
        return await run(request, partial(ResumedExchange, recovery=recovery))
    except BaseException:
        recovery.release()
        raise


async def _read(context: DispatchContext, request: Request, begun: BegunAnswer) -> StreamRecovery:
    """Find out how the answer to ``request`` can go on. Raises NotContinuable; nothing is held then."""
    if request.model != begun.model:
        raise NotContinuable(f"the model is {request.model!r} now, and was {begun.model!r}")
    if not StreamRecovery.recordable(request, _head(begun)):
        raise NotContinuable("only streamed text can")
    record = AnswerRecord(request.route, context.records, context.settings.record_bytes)
    record.feed(begun.data)
    recovery = StreamRecovery(context, request, begun.version, record)
    try:
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not recovery.is_read(lambda: read.set_result(None)):
            await read
        recovery.read()
        recovery.require_continuation()
        if recovery.closing is None and not context.someone_else(request, patiently=True):
            raise NotContinuable("no engine is there that can")
    except BaseException:  # stops the reading, too
        recovery.release()
        raise
    return recovery


def _closed(recovery: StreamRecovery, begun: BegunAnswer) -> EngineResponse:
    """The rest of an answer that lacks nothing but how its stream ends."""
    assert recovery.closing is not None
    response = _response(begun, recovery, _ClosedAnswer(recovery))
    if recovery.closing:
        response.add(recovery.closing)
    response.end(None)
    return response


class _ClosedAnswer:
    """Owns the response to which nothing comes any more."""

    def __init__(self, recovery: StreamRecovery) -> None:
        self._recovery = recovery

    def reader_done(self, ending: Ending) -> None:
        self._recovery.release()

    much_came = NOBODY.much_came
    held_up = NOBODY.held_up


class ResumedExchange(RequestExchange):
    """Waits for a deployment that goes on with a begun answer. Its response is settled at once."""

    def __init__(
        self,
        ticket: Ticket,
        context: DispatchContext,
        settle: Callable[[EngineResponse | Exception], None],
        recovery: StreamRecovery,
    ) -> None:
        super().__init__(ticket, context, settle)
        begun = self.request.begun
        assert begun is not None
        response = _response(begun, recovery, self, context.unread, self.request.principal)
        self.state = ExchangeState.ANSWERING
        # What there is of it is worth waiting for.
        ticket.expires_s = self.request.deadline_s or context.timers.time() + context.settings.total_s
        self._answer = ResumedAnswer(context, ticket, self._open, None, response, recovery, self._timer)
        self._answer.wait_first()
        self._say(response)


class ResumedAnswer(RunningAnswer):
    """It begins by waiting."""

    def wait_first(self) -> None:
        """Its ticket has come to the waiting room."""
        self.phase = AnswerPhase.WAITING
        self._context.metrics.continued(self._request.model, "wanted")
        self._expires_s = min(self._ticket.expires_s, self._watch.ends_s)
        self._comment_s = now = self._context.timers.time()
        self._watch.again_at(min(self._expires_s, now + COMMENT_S))


def _response(
    begun: BegunAnswer,
    recovery: StreamRecovery,
    owner: ResponseOwner,
    unread: UnreadBudget | None = None,
    reader: Principal | None = None,
) -> EngineResponse:
    return EngineResponse(
        _head(begun),
        NoStream(),
        agent="",
        deployment="",
        version=begun.version,
        queue_s=0.0,
        attempts=0,
        owner=owner,
        record=recovery.record,
        unread=unread,
        reader=reader,
    )


def _head(begun: BegunAnswer) -> ResponseHead:
    return ResponseHead(200, begun.headers)
