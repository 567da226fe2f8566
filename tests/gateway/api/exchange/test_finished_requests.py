"""Requests that end in one turn of the event loop are recorded together, behind it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import structlog

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.finished_requests import FinishedRequests
from gateway.domain.errors import QueueFull, RequestError


def exchange(name: str) -> HttpExchange:
    return cast(HttpExchange, SimpleNamespace(id=name))


class House:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, RequestError | None]] = []
        self.steps: list[Callable[[], None]] = []
        self.failing: set[str] = set()
        self.finished = FinishedRequests(self.observe, self.steps.append)

    def observe(self, exchange: HttpExchange, status: int, failure: RequestError | None) -> None:
        if exchange.id in self.failing:
            raise ZeroDivisionError(exchange.id)
        self.seen.append((exchange.id, status, failure))

    def end_turn(self) -> None:
        steps = self.steps[:]
        self.steps.clear()
        for step in steps:
            step()


def test_they_are_told_in_their_order_once_the_turn_is_over() -> None:
    house, failure = House(), QueueFull("as many wait as may")
    house.finished(exchange("a"), 200, None)
    house.finished(exchange("b"), 429, failure)
    assert (house.seen, len(house.steps)) == ([], 1)
    house.end_turn()
    assert house.seen == [("a", 200, None), ("b", 429, failure)]


def test_each_is_told_once_and_the_next_turn_begins_anew() -> None:
    house = House()
    house.finished(exchange("a"), 200, None)
    house.end_turn()
    house.finished(exchange("b"), 200, None)
    house.end_turn()
    assert [name for name, _, _ in house.seen] == ["a", "b"]
    assert house.steps == []


def test_one_that_cannot_be_recorded_is_named_and_the_others_are_recorded() -> None:
    house = House()
    house.failing = {"b"}
    for name in "abc":
        house.finished(exchange(name), 200, None)
    with structlog.testing.capture_logs() as lines:
        house.end_turn()
    assert [name for name, _, _ in house.seen] == ["a", "c"]
    said: list[dict[str, Any]] = [dict(line) for line in lines]
    assert [(each["event"], each["id"], type(each["exc_info"])) for each in said] == [
        ("request_not_recorded", "b", ZeroDivisionError)
    ]
