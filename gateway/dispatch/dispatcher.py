"""Carries out what the scheduler decided: requests wait, are bound late, go out as streams and come back.

Who waits is bound by :mod:`gateway.dispatch.assignment`. Everything belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Mapping

from gateway.dispatch.exchange import ExchangeState, RequestExchange
from gateway.dispatch.exchange_callbacks import ExchangeCallbacks
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.settings import DispatchSettings
from gateway.domain.engine_paths import EnginePaths
from gateway.domain.errors import RequestError, ShuttingDown
from gateway.domain.request import Request
from gateway.scheduling.queue.waiting_room import QueueSettings
from shared.protocol.errors import ErrorCode

__all__ = ["DispatchSettings", "Dispatcher", "EngineResponse", "QueueSettings"]

_SHUTTING_DOWN = "This gateway is shutting down; send the request again."


class Dispatcher(ExchangeCallbacks):
    """Takes classified requests, gives engine responses."""

    _accepting = True

    # --- For the request path ---

    async def run(self, request: Request) -> EngineResponse:
        """Wait for a slot, open a stream, upload the body beside; return when the response's head is there.

        Raises ModelNotFound, NoDeployment, BadRequest (the model's deployments do not do this route),
        QueueFull, QueueTimeout, DeadlineExceeded, EngineError, ShuttingDown and the like (all
        :mod:`gateway.domain.errors`), and whatever ``request.body.rest`` raises. Cancelling the awaiting task
        releases everything: the place in the queue, the stream, the upload.
        """
        answer: asyncio.Future[EngineResponse] = asyncio.get_running_loop().create_future()

        def settle(outcome: EngineResponse | Exception) -> None:
            if answer.done():
                return
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        exchange = self.submit(request, settle)
        try:
            return await answer
        except asyncio.CancelledError:
            exchange.cancel()
            if answer.done() and not answer.cancelled():
                answer.exception()  # nobody is left to see it
            raise

    def submit(
        self, request: Request, settle: Callable[[EngineResponse | Exception], None]
    ) -> RequestExchange:
        """:meth:`run` without awaiting: ``settle`` is called once, later, with the response or the error.

        Raises what admission raises, and ShuttingDown.
        """
        try:
            if not self._accepting:
                raise ShuttingDown(_SHUTTING_DOWN)
            self._decisions.estimate(request)
            self._sessions.bind(request, self.timers.time())
            if self._placer is not None:
                self._placer.arrived(request, self.timers.time())
            ticket = self._admission.admit(request, self.timers.time())
        except RequestError as error:
            self.metrics.refused(request.model, error.code)
            raise
        self._retries.deposit(request.principal.tenant, self.timers.time())
        self._hedges.deposit(request.principal.tenant)
        exchange = RequestExchange(request, ticket, self, settle)
        self._exchanges.add(exchange)
        self._waiting[ticket.number] = exchange
        self._assigner.mark(request.model)
        return exchange

    def bounds(self, request: Request) -> tuple[int, int]:
        """Tokens of its prompt and, at most, of its answer
        (:meth:`gateway.dispatch.decisions.Decisions.bounds`).
        """
        return self._decisions.bounds(request)

    # --- For whoever starts and stops the gateway ---

    @property
    def open_exchanges(self) -> int:
        """Requests waiting, running or not yet confirmed as let go by their agent. Zero when all is quiet."""
        return len(self._exchanges)

    def stop_accepting(self) -> None:
        """From now on :meth:`run` raises ShuttingDown; what waits or runs goes on."""
        self._accepting = False

    def set_engine_paths(self, paths: EnginePaths) -> None:
        """Who may manage engines by their own paths from now on."""
        self._admission.engine_paths = paths

    def retune(self, policy: str, policies: Mapping[str, str], weights: Mapping[str, float]) -> None:
        """Policies and tenants' weights from now on, for what waits too. Raises ValueError for a policy there
        is none of; nothing has changed then."""
        self._decisions.choose_policies(policy, policies)
        self.share_out(weights)

    def share_out(self, weights: Mapping[str, float], shares: Mapping[str, float] | None = None) -> None:
        """Tenants' weights from now on, for what waits too, and, unless None, the shares of places in which
        requests wait that tenants may take at most."""
        self.room.reweigh(weights)
        if shares is not None:
            self.room.shares.set(shares)
        for model in self.room.depths():
            self._assigner.mark(model)

    async def wait_idle(self) -> None:
        """Returns once no exchange is open. Put a timeout around it."""
        while self._exchanges:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def close(self) -> None:
        """Fail what waits (ShuttingDown), reset what runs (StreamBroken for its reader), end every upload."""
        self._accepting = False
        for exchange in list(self._exchanges):
            if exchange.state is ExchangeState.ANSWERING:
                exchange.break_off(ErrorCode.DRAINING, "This gateway is shutting down.")
            elif exchange.state is not ExchangeState.DONE:
                exchange.fail(ShuttingDown(_SHUTTING_DOWN), ErrorCode.DRAINING)
        self._health.close()
        if self._placer is not None:
            self._placer.close()
        self._assigner.close()
        self.readings.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.unread.close()
