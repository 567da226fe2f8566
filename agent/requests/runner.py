"""Runs the requests of streams at engines, each in its place of the registry."""

import asyncio
import time
from collections.abc import Callable, Hashable

import structlog

from agent.capacity.engine_registry import EngineRegistry
from agent.engines.backend import BackendRefused
from agent.requests.run import RequestRun
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Refusal

log = structlog.get_logger("agent.request")


class RequestRunner:
    """Runs each stream's request; how many there are is bounded by the registry's slots."""

    def __init__(self, registry: EngineRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._runs: set[RequestRun] = set()
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

    def open(self, session: Hashable, stream: Stream) -> None:
        """A request has come in ``session``. Refused at once when there is no place for it."""
        try:
            seat = self._registry.enter(session, stream.head.deployment)
        except BackendRefused as refusal:
            log.info("request refused", request=stream.head.request_id, reason=refusal.reason)
            stream.reset(ErrorCode.REFUSED, refusal.reason)
            return
        run = stream.handler = RequestRun(stream, seat, self._clock, self._leave, self._forget)
        self._runs.add(run)
        asyncio.get_running_loop().call_soon(run.begin)  # what came of its body with it is there then

    def _leave(self, run: RequestRun) -> None:
        """The engine has let go: first the place is free, then the gateway hears of the end."""
        registry, seat, ended = self._registry, run.seat, run.code is ErrorCode.NO_ERROR
        if not ended:
            self._log_failure(run)
        elif self._unreachable and self._unreachable.pop(seat.engine, None) is not None:
            log.info("requests reach the engine again", engine=seat.engine)
        if run.lacks:
            registry.note_lack(seat, run.lacks)
        registry.leave(seat, failed=run.engine_failed, out_of_memory=run.out_of_memory)
        if run.refusal is Refusal.BUSY:
            registry.answered(seat, refused=True)
        elif ended and 200 <= run.status < 300:
            registry.answered(seat, refused=False)

    def _log_failure(self, run: RequestRun) -> None:
        engine, reason = run.seat.engine, run.reason
        if run.code is ErrorCode.ENGINE_UNREACHABLE:
            if self._unreachable.get(engine) != reason:
                self._unreachable[engine] = reason
                log.warning("requests do not reach the engine", engine=engine, reason=reason)
        elif run.engine_failed or run.code is ErrorCode.PROTOCOL_ERROR:
            request = run.stream.head.request_id
            log.warning("request failed", request=request, engine=engine, reason=reason)

    def _forget(self, run: RequestRun) -> None:
        self._runs.discard(run)
        if self._empty is not None and not self._runs:
            self._empty.set()
            self._empty = None
