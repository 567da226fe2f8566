"""Running out of file descriptors: refused in time, told once, over when they are back."""

import os
from typing import Any

import pytest
import structlog

from gateway.observability.metrics import Metrics
from gateway.runtime.descriptors import (
    ACCEPT_FAILED,
    LOOK_S,
    ConnectionVerdict,
    DescriptorBudget,
    _lowest_free,
)
from tests.gateway.fleet.manual_timers import Loop

LIMIT = 800
LAST = LIMIT - 64


class House:
    def __init__(self) -> None:
        self.loop = Loop()
        self.metrics = Metrics()
        self.limit: int | None = LIMIT
        self.free: int | None = 10
        self.descriptors = DescriptorBudget(self.loop, self.metrics, lambda: self.limit, lambda: self.free)

    @property
    def trouble(self) -> float | None:
        return self.metrics.registry.get_sample_value("trunkline_machine_trouble", {"trouble": "descriptors"})


@pytest.fixture
def house() -> House:
    return House()


def events(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs]


def test_the_last_descriptors_are_no_connections(house: House) -> None:
    assert house.descriptors.room_for(LAST - 1) is ConnectionVerdict.ENOUGH
    assert not house.descriptors.exhausted
    assert house.descriptors.room_for(LAST) is ConnectionVerdict.SCARCE
    assert house.descriptors.room_for(LIMIT - 32) is ConnectionVerdict.NONE


def test_of_a_small_limit_an_eighth_is_kept_back(house: House) -> None:
    house.limit = 80
    assert house.descriptors.room_for(69) is ConnectionVerdict.ENOUGH
    assert house.descriptors.room_for(70) is ConnectionVerdict.SCARCE
    assert house.descriptors.room_for(75) is ConnectionVerdict.NONE


def test_without_a_limit_there_is_always_room(house: House) -> None:
    house.limit = None
    assert house.descriptors.room_for(1 << 30) is ConnectionVerdict.ENOUGH


def test_it_is_told_once_when_it_begins_and_once_when_it_is_over(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(1000):
            house.descriptors.room_for(LAST)
        house.free = LAST
        house.loop.advance(100 * LOOK_S)
        assert (house.descriptors.exhausted, house.trouble) == (True, 1)
        house.free = 10
        house.loop.advance(2 * LOOK_S)
        assert (house.descriptors.exhausted, house.trouble) == (False, 0)
        house.loop.advance(100 * LOOK_S)
    assert events(logs) == ["descriptors_exhausted", "descriptors_back"]
    assert (logs[0]["limit"], logs[1]["refused"]) == (LIMIT, 1000)


def test_a_few_that_come_free_do_not_end_it(house: House) -> None:
    house.descriptors.room_for(LAST)
    house.free = LAST - 10
    house.loop.advance(10 * LOOK_S)
    assert house.descriptors.exhausted
    house.free = None
    house.loop.advance(10 * LOOK_S)
    assert house.descriptors.exhausted


def test_not_even_one_is_told_too(house: House) -> None:
    assert not house.descriptors.none_left
    house.free = None
    with structlog.testing.capture_logs() as logs:
        assert house.descriptors.none_left
        assert house.descriptors.none_left
        house.free = 10
        assert not house.descriptors.none_left
        house.loop.advance(2 * LOOK_S)
    assert events(logs) == ["descriptors_exhausted", "descriptors_back"]
    assert logs[1]["refused"] == 0


def test_it_can_happen_again(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            house.descriptors.room_for(LAST)
            house.loop.advance(2 * LOOK_S)
    assert events(logs) == ["descriptors_exhausted", "descriptors_back"] * 2
    assert logs[3]["refused"] == 1


def test_an_event_loop_that_cannot_accept_says_so_once(house: House) -> None:
    passed_on: list[dict[str, Any]] = []

    class Failing:
        def default_exception_handler(self, context: dict[str, Any]) -> None:
            passed_on.append(context)

    with structlog.testing.capture_logs() as logs:
        for _ in range(2048):
            house.descriptors.loop_failed(
                Failing(), {"message": ACCEPT_FAILED, "exception": OSError(24, "x")}
            )
        house.descriptors.loop_failed(Failing(), {"message": "something else"})
    assert events(logs) == ["descriptors_exhausted"]
    assert passed_on == [{"message": "something else"}]


def test_the_next_descriptor_is_known_before_it_is_given() -> None:
    foreseen = _lowest_free()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    assert descriptor == foreseen
