"""What happened in one turn of the event loop is followed up in that turn, without another look for input."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from gateway.domain.turn_end import ROUNDS, TurnEnd


class CountingSelector(selectors.SelectSelector):
    """Counts how often the loop looks for input."""

    looks = 0

    def select(self, timeout: float | None = None) -> Any:
        self.looks += 1
        return super().select(timeout)


class House:
    """An event loop, the end of its turns, and what happened at which look for input."""

    def __init__(self) -> None:
        self._selector = CountingSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self.turn_end = TurnEnd(self.loop)
        self.happened: list[tuple[str, int]] = []
        self.failures: list[str] = []
        self.loop.set_exception_handler(lambda loop, context: self.failures.append(str(context["exception"])))

    def note(self, what: str) -> None:
        self.happened.append((what, self._selector.looks))

    async def task(self, name: str) -> None:
        """What a request's task does."""
        self.note(name)
        self.turn_end.call(lambda: self.note(f"end of {name}"))

    def read(self, work: Coroutine[Any, Any, None], *, told: bool) -> None:
        """What a connection does when input has come."""
        self.tasks.append(self.loop.create_task(work))
        if told:
            self.turn_end.input_read()

    def run(self, *first: Callable[[], object]) -> None:
        """Have these called in one turn, and go on for some turns."""
        self.tasks: list[asyncio.Task[None]] = []

        async def turns() -> None:
            for each in first:
                self.loop.call_soon(each)
            for _ in range(10):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def looks_of(self, what: str) -> list[int]:
        return [looks for each, looks in self.happened if each == what]


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.loop.close()


def test_steps_follow_all_tasks_of_a_turn_without_another_look_for_input(house: House) -> None:
    house.run(
        lambda: house.read(house.task("a"), told=True),
        lambda: house.read(house.task("b"), told=True),
    )
    assert [what for what, _ in house.happened] == ["a", "b", "end of a", "end of b"]
    assert len({looks for _, looks in house.happened}) == 1


def test_without_input_that_was_read_steps_come_in_the_next_turn(house: House) -> None:
    house.run(
        lambda: house.read(house.task("a"), told=False),
        lambda: house.read(house.task("b"), told=False),
    )
    assert [what for what, _ in house.happened] == ["a", "b", "end of a", "end of b"]
    assert house.looks_of("end of a") == [house.looks_of("a")[0] + 1] == house.looks_of("end of b")


def test_input_that_leaves_no_step_leads_to_nothing(house: House) -> None:
    house.run(house.turn_end.input_read)
    assert (house.happened, house.failures) == ([], [])


def test_a_step_that_a_step_has_called_is_of_the_same_turn(house: House) -> None:
    house.run(lambda: house.turn_end.call(lambda: house.turn_end.call(lambda: house.note("second"))))
    house.run(lambda: house.turn_end.call(lambda: house.note("first")))
    assert [what for what, _ in house.happened] == ["second", "first"]


def test_steps_that_go_on_for_ever_leave_the_loop_its_turns(house: House) -> None:
    def again() -> None:
        house.note("again")
        house.turn_end.call(again)

    house.run(lambda: house.turn_end.call(again), lambda: house.loop.call_later(0.0, house.note, "a timer"))
    assert house.looks_of("a timer"), "the loop went on"
    looks = house.looks_of("again")
    assert max(map(looks.count, looks)) == ROUNDS


def test_a_step_that_fails_keeps_no_other_from_being_called(house: House) -> None:
    def fail() -> None:
        raise ValueError("a step's")

    house.run(lambda: house.turn_end.call(fail), lambda: house.turn_end.call(lambda: house.note("other")))
    house.run(lambda: house.turn_end.call(lambda: house.note("later")))
    assert house.failures == ["a step's"]
    assert [what for what, _ in house.happened] == ["other", "later"]
