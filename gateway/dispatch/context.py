"""What a request on its way needs of the dispatcher, whatever its state."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.readings import Readings
from gateway.dispatch.recovery import RecordBudget
from gateway.dispatch.settings import DispatchSettings
from gateway.dispatch.slow_readers import SlowReaders
from gateway.dispatch.unread import UnreadBudget
from gateway.domain.request import Request, RequestBody
from gateway.domain.timers import Timers
from gateway.fleet.deployments import Deployment
from gateway.observability.metrics import Metrics
from gateway.scheduling.health.failover import Trouble
from gateway.scheduling.queue.queue import Ticket
from shared.protocol.messages import Usage


class DispatchContext(Protocol):
    """Implemented by :class:`gateway.dispatch.dispatcher.Dispatcher`."""

    timers: Timers
    settings: DispatchSettings
    metrics: Metrics
    records: RecordBudget
    unread: UnreadBudget
    slow_readers: SlowReaders
    readings: Readings

    def spawn(self, work: Coroutine[Any, Any, None], /) -> "asyncio.Task[None]":
        """Starts a task and owns it."""
        ...

    def released(self, attempt: Attempt) -> None:
        """An attempt's stream is closed at both ends: its slot is free."""

    def answered(self, attempt: Attempt, now: float) -> None:
        """The head of a usable answer came."""

    def began(self, attempt: Attempt) -> None:
        """The first of an answer's body came."""

    def succeeded(
        self, attempt: Attempt, first_byte_s: float, total_s: float, now: float, usage: Usage | None
    ) -> None:
        """An answer came whole; times from the opening of its stream. ``usage`` is that of this attempt
        alone, None when there is none to be had."""

    def failed(self, attempt: Attempt, trouble: Trouble, now: float, rest_s: float = 0.0) -> None:
        """An attempt came to nothing, or to no more. ``rest_s``: its engine asks to be left alone for so
        long."""

    def spent(self, ticket: Ticket, work: float) -> None:
        """What a request really cost, in units of work."""

    def may_retry(self, request: Request, trouble: Trouble) -> bool:
        """Whether one more try is within the budget; takes from it."""
        ...

    def someone_else(self, request: Request, *, patiently: bool = False) -> bool:
        """Whether a deployment that the request was not given to yet could take it, now or soon;
        ``patiently``: or once its tunnel is back or its circuit closes."""
        ...

    def hedge_at(self, request: Request, now: float) -> float | None:
        """When a second copy of a unary request is worth it; None: never. A silence of ``stall_s`` is late
        where too few answers have been seen to know how long they take."""
        ...


class ResponseObserver(Protocol):
    """Whose answer it is; :class:`gateway.dispatch.exchange.RequestExchange`."""

    request: Request
    ticket: Ticket

    def wait_again(self, *, preempted: bool = False) -> None:
        """Back into the waiting room. ``preempted``: it gave way, and may wait until its time is over."""

    def withdraw(self) -> None:
        """Out of it, without a slot."""

    def open(self, deployment: Deployment, now: float, body: RequestBody) -> Attempt:
        """Open a stream with ``body``. Raises as :class:`Attempt` does."""
