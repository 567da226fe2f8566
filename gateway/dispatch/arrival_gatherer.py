"""Requests that come in one turn of the event loop are admitted together, at its end.

What admission and the queue need is in the processor's caches from the second of them on, where each would
find what its own way there needed: authentication, its body, what it asks for.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gateway.dispatch.exchange import MakeExchange, RequestExchange, Settle
from gateway.dispatch.response import EngineResponse
from gateway.domain.request import Request


class Submit(Protocol):
    """:meth:`gateway.dispatch.dispatcher.Dispatcher.submit`."""

    def __call__(
        self, request: Request, settle: Settle, make: MakeExchange | None = None, /
    ) -> RequestExchange: ...


class Arrival(Struct, eq=False):
    """One request, from when it came until its answer is there."""

    request: Request
    make: MakeExchange | None
    answer: asyncio.Future[EngineResponse]
    exchange: RequestExchange | None = None
    """None until it is submitted."""

    def settle(self, outcome: EngineResponse | Exception) -> None:
        """Hand the outcome on, if somebody awaits it."""
        try:
            if isinstance(outcome, Exception):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)
        except asyncio.InvalidStateError:
            pass  # nobody awaits it any more

    def cancel(self) -> None:
        """Nobody awaits the outcome any more."""
        if self.exchange is not None:
            self.exchange.cancel()
        if self.answer.done() and not self.answer.cancelled():
            self.answer.exception()  # nobody is left to see it


class ArrivalGatherer:
    """Belongs to the event loop's thread."""

    def __init__(
        self, submit: Submit, at_turn_end: Callable[[Callable[[], None]], object] | None = None
    ) -> None:
        """``at_turn_end`` is :meth:`gateway.domain.turn_end.TurnEnd.call`; None: each request is submitted at
        once."""
        self._submit = submit
        self._at_turn_end = at_turn_end
        self._waiting: list[Arrival] = []
        """Came in this turn."""

    def take(self, request: Request, make: MakeExchange | None) -> Arrival:
        """Have ``request`` submitted; the arrival's ``answer`` is what it is settled with, or what
        ``submit`` raises. Without the end of a turn to wait for this raises it itself."""
        arrival = Arrival(request, make, asyncio.get_running_loop().create_future())
        if self._at_turn_end is None:
            arrival.exchange = self._submit(request, arrival.settle, make)
        else:
            if not self._waiting:
                self._at_turn_end(self.submit_all)
            self._waiting.append(arrival)
        return arrival

    def submit_all(self) -> None:
        """Submit those that have come in this turn, now."""
        arrivals, self._waiting = self._waiting, []
        for each in arrivals:
            if each.answer.done():  # its client has left
                continue
            try:
                each.exchange = self._submit(each.request, each.settle, each.make)
            except Exception as error:
                each.settle(error)
