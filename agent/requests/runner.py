"""Runs the requests of streams at engines, each in its place of the registry."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator

import structlog

from agent.capacity.engine_registry import EngineRegistry
from agent.engines.backend import BackendRefused
from agent.requests.run import RequestRun
from agent.requests.tracing import EngineTracing
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Refusal
from shared.protocol.other_requests import OtherSessions, ToldRequest

_NO_ERROR, _BUSY = ErrorCode.NO_ERROR, Refusal.BUSY
"""Members of enumerations for the path of every request: a global is found faster."""

log = structlog.get_logger("agent.request")


class RequestRunner:
    """Runs each stream's request; how many there are is bounded by the registry's slots. Implements
    :class:`agent.requests.run.RunOwner`."""

    def __init__(
        self,
        registry: EngineRegistry,
        clock: Callable[[], float] = time.monotonic,
        tracing: EngineTracing | None = None,
    ) -> None:
        """``clock`` is that of the ``registry``. ``tracing`` records requests whose traces are; None: nothing
        is recorded."""
        self._tracing = tracing
        self._registry = registry
        self.clock = clock
        self.others = OtherSessions(clock, self._all_told)
        """Tells sessions of each other's requests."""
        self._runs: set[RequestRun] = set()
        self._opened = deque[RequestRun]()
        """Those that begin once this turn of the event loop is over."""
        self._unreachable: dict[str, str] = {}
        """Engine → why requests do not reach it; so that it is said once, not for each of them."""
        self._empty: asyncio.Event | None = None
        """There while it is waited for that no stream is open."""

    async def idle(self) -> None:
        """Waits until no stream is open: all that engines answered is with the gateway."""
        while self._runs:
            self._empty = self._empty or asyncio.Event()
            await self._empty.wait()

    def cut_off(self) -> None:
        """End what runs because the agent ends: the gateway gives it to others, or goes on with it there."""
        for run in tuple(self._runs):
            run.give_up(ErrorCode.DRAINING, "the agent ends")

    def open(self, session: Hashable, stream: Stream, *, agreed: Collection[str] = ()) -> None:
        """A request has come in ``session``. Refused at once when there is no place for it.

        Where GPU-seconds are among what is ``agreed`` on, its END says them; where progress is, PROGRESS
        does."""
        try:
            seat = self._registry.enter(session, stream.head.deployment)
        except BackendRefused as refusal:
            log.info("request refused", request=stream.head.request_id, reason=refusal.reason)
            stream.reset(ErrorCode.REFUSED, refusal.reason)
            return
        run = stream.handler = RequestRun(stream, seat, self, agreed)
        if self._tracing is not None:
            run.trace = self._tracing.begin(stream.head)
        self._runs.add(run)
        if self.others.wanted:
            self.others.began(self._told(run))
        if not self._opened:
            asyncio.get_running_loop().call_soon(self._begin)  # what came of their bodies is there then
        self._opened.append(run)

    def _begin(self) -> None:
        opened = self._opened
        try:
            while opened:
                opened.popleft().begin()
        finally:
            if opened:  # one failed, which is no fault of the others
                asyncio.get_running_loop().call_soon(self._begin)

    def left(self, run: RequestRun) -> float:
        """The engine has let go: first the place is free, then the gateway hears of the end."""
        registry, seat = self._registry, run.seat
        if run.told is not None:
            self.others.ended(run.told)
        ended = run.code is _NO_ERROR
        if not ended:
            self._log_failure(run)
        elif self._unreachable and self._unreachable.pop(seat.engine, None) is not None:
            log.info("requests reach the engine again", engine=seat.engine)
        if run.trace is not None and self._tracing is not None:
            self._tracing.finished(run.trace, run.stream.head, run.outcome())
        if ended and 200 <= run.status < 300:
            return registry.leave(seat, failed=False, refused=False)
        if run.lacks:
            registry.note_lack(seat, run.lacks)
        refused = True if run.refusal is _BUSY else None
        return registry.leave(
            seat, failed=run.engine_failed, out_of_memory=run.out_of_memory, refused=refused
        )

    def _all_told(self) -> Iterator[ToldRequest]:
        """All that runs, as other sessions are told of it."""
        return (self._told(run) for run in self._runs if run.in_engine)

    def _told(self, run: RequestRun) -> ToldRequest:
        if run.told is None:
            head = run.stream.head
            run.told = self.others.told(run.seat.session, head.deployment, head.expected, run.began_s)
            run.told.read = run.has_begun
            if head.streaming:
                run.on_first_token = self._first_token
        return run.told

    def _first_token(self, run: RequestRun) -> None:
        if run.told is not None:
            self.others.first_token(run.told)

    def _log_failure(self, run: RequestRun) -> None:
        engine, reason = run.seat.engine, run.reason
        if run.code is ErrorCode.ENGINE_UNREACHABLE:
            if self._unreachable.get(engine) != reason:
                self._unreachable[engine] = reason
                log.warning("requests do not reach the engine", engine=engine, reason=reason)
        elif run.engine_failed or run.code is ErrorCode.PROTOCOL_ERROR:
            request = run.stream.head.request_id
            trace = {} if run.trace is None else {"trace_id": run.trace.trace_id}
            log.warning("request failed", request=request, engine=engine, reason=reason, **trace)

    def closed(self, run: RequestRun) -> None:
        self._runs.discard(run)
        if self._empty is not None and not self._runs:
            self._empty.set()
            self._empty = None
