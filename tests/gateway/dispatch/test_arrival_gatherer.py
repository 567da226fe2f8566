"""Requests of one turn of the event loop are submitted together, at its end."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gateway.dispatch.arrival_gatherer import Arrival, ArrivalGatherer
from gateway.dispatch.exchange import MakeExchange, RequestExchange, Settle
from gateway.dispatch.response import EngineResponse
from gateway.domain.errors import QueueFull
from gateway.domain.request import Request

RESPONSE = cast(EngineResponse, object())


class Exchange:
    """What a submitted request is."""

    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class House:
    """Whom requests are submitted to, and the end of a turn."""

    def __init__(self, *, gathers: bool = True) -> None:
        self.submitted: list[Any] = []
        self.settles: list[Settle] = []
        self.exchanges: list[Exchange] = []
        self.refused: set[str] = set()
        self.steps: list[Callable[[], None]] = []
        self.arrivals = ArrivalGatherer(self.submit, self.steps.append if gathers else None)

    def submit(
        self, request: Request, settle: Settle, make: MakeExchange | None = None, /
    ) -> RequestExchange:
        if str(request) in self.refused:
            raise QueueFull("As many wait as may.")
        self.submitted.append(request)
        self.settles.append(settle)
        self.exchanges.append(Exchange())
        return cast(RequestExchange, self.exchanges[-1])

    def take(self, name: str) -> Arrival:
        return self.arrivals.take(cast(Request, name), None)

    def end_turn(self) -> None:
        steps = self.steps[:]
        self.steps.clear()
        for step in steps:
            step()


async def test_all_of_a_turn_are_submitted_at_its_end_in_their_order() -> None:
    house = House()
    taken = [house.take(name) for name in "abc"]
    assert (house.submitted, len(house.steps)) == ([], 1)
    house.end_turn()
    assert house.submitted == ["a", "b", "c"]
    for settle in house.settles:
        settle(RESPONSE)
    assert [await each.answer for each in taken] == [RESPONSE] * 3


async def test_the_next_turn_has_an_end_of_its_own() -> None:
    house = House()
    house.take("a")
    house.end_turn()
    house.take("b")
    assert house.submitted == ["a"]
    house.end_turn()
    assert house.submitted == ["a", "b"]


async def test_a_refusal_is_told_to_its_own_request_and_the_others_go_on() -> None:
    house = House()
    house.refused = {"b"}
    taken = [house.take(name) for name in "abc"]
    house.end_turn()
    with pytest.raises(QueueFull):
        await taken[1].answer
    assert house.submitted == ["a", "c"]
    assert not taken[0].answer.done()


async def test_a_request_whose_client_leaves_before_the_end_of_the_turn_is_not_submitted() -> None:
    house = House()
    gone, other = house.take("gone"), house.take("other")
    gone.answer.cancel()
    gone.cancel()
    house.end_turn()
    assert house.submitted == ["other"]
    assert not other.answer.done()


async def test_a_request_whose_client_leaves_later_is_cancelled_once() -> None:
    house = House()
    arrival = house.take("a")
    house.end_turn()
    arrival.answer.cancel()
    arrival.cancel()
    assert [each.cancelled for each in house.exchanges] == [1]
    house.settles[0](RESPONSE)  # comes too late, and harms nobody
    assert arrival.answer.cancelled()


async def test_an_error_that_nobody_awaits_any_more_is_not_reported_as_forgotten() -> None:
    house, reported = House(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    arrival = house.take("a")
    house.end_turn()
    house.settles[0](QueueFull("too late"))
    arrival.cancel()
    del arrival
    house.settles.clear()
    await asyncio.sleep(0)
    assert reported == []


async def test_without_the_end_of_a_turn_each_is_submitted_at_once() -> None:
    house = House(gathers=False)
    house.take("a")
    assert house.submitted == ["a"]
    house.refused = {"b"}
    with pytest.raises(QueueFull):
        house.take("b")
