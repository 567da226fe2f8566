"""What a request on its way needs of the dispatcher, whatever its state."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.readings import Readings
from gateway.dispatch.recovery import RecordBudget
from gateway.dispatch.settings import DispatchSettings
from gateway.dispatch.slow_readers import SlowReaders
from gateway.dispatch.unread import UnreadBudget
from gateway.domain.errors import RequestError
from gateway.domain.request import Request, RequestBody
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment
from gateway.observability.metrics import Metrics
from gateway.scheduling.health.failover import Refusals, Trouble
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.messages import Usage

Exchange = TypeVar("Exchange", contravariant=True)


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
        """The attempt failed before or during its response. ``rest_s``: its engine asks to be left alone for
        so long."""

    def lacks_path(self, attempt: Attempt) -> None:
        """The attempt's engine has nothing at the request's path: such requests go there no more."""

    def nobody_has(self, request: Request) -> RequestError:
        """What to say to a request whose path the engine that was asked lacks, when nobody else gets it."""
        ...

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

    def hedge(self, request: Request, ticket: Ticket, now: float) -> Deployment | None:
        """Where a second copy of a request goes; None: there is no slot or no budget. Takes from the
        budget."""
        ...

    def withdraw(self, ticket: Ticket) -> None:
        """Takes a request out of the waiting room that gets no slot."""

    def slot_expected_s(self, request: Request) -> float:
        """When somebody whose request is refused now should come back, in seconds."""
        ...

    def may_wait_until(self, request: Request, ticket: Ticket) -> float | None:
        """Until when a request may wait on that waited as long as it was to, for a model that is being
        loaded; None: no longer."""
        ...

    def waited_too_long(self, request: Request, refusals: Refusals | None) -> RequestError:
        """What to say to a request that waited as long as it may, and that engines refused meanwhile that
        had enough to do; None: none did."""
        ...


class ExchangeContext(DispatchContext, Protocol[Exchange]):
    """What the dispatcher does with whole exchanges (:class:`gateway.dispatch.exchange.RequestExchange`)."""

    def taken(self, exchange: Exchange, attempt: Attempt, /) -> None:
        """An attempt has its stream: the request leaves the waiting room, if it is there; takes a slot."""

    def wait_again(self, exchange: Exchange, /, *, preempted: bool = False) -> None:
        """Back into the waiting room. ``preempted``: it gave way, and may wait until its time is over."""

    def hold(self, exchange: Exchange, /) -> None:
        """Back into the waiting room until the time that it may wait is over: engines have enough to do."""

    def finished(self, exchange: Exchange, /) -> None:
        """Nobody waits for anything of the exchange any more, but its streams may still be closing."""


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
