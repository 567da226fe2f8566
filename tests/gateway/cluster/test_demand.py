"""When agents are told what waits, and how much (PROTOCOL §4.7)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster.demand import EVERY_S, SOON_S, DemandSender
from shared.protocol.demand import Demand
from shared.protocol.errors import SessionClosed


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    def __init__(self) -> None:
        self.now = 100.0
        self.set: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at_s: float, call: Callable[[], None]) -> Timer:
        self.set.append(Timer(at_s, call))
        return self.set[-1]

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        return self.call_at(self.now + delay_s, call)

    def call_soon(self, call: Callable[[], None]) -> Timer:
        return self.call_at(self.now, call)

    def pass_time(self, passed_s: float) -> None:
        self.now += passed_s
        due = [each for each in self.set if each.at_s <= self.now and not each.cancelled]
        self.set = [each for each in self.set if each not in due and not each.cancelled]
        for each in due:
            each.call()


@dataclass(eq=False)
class Session:
    models: tuple[str, ...] = ("m",)
    closed: bool = False
    gone: bool = False
    told: list[Mapping[str, Demand]] = field(default_factory=list)

    @property
    def endpoint(self) -> Any:
        return SimpleNamespace(send_demand=self._take)

    @property
    def deployments(self) -> Mapping[str, Any]:
        return {model: SimpleNamespace(model=model) for model in self.models}

    def _take(self, demands: Mapping[str, Demand]) -> None:
        if self.gone:
            raise SessionClosed
        self.told.append(demands)


class Here:
    def __init__(self, *sessions: Session) -> None:
        self.timers = Timers()
        self.waiting: dict[str, Demand] = {}
        self.sender = DemandSender(
            self.timers,
            lambda model: self.waiting.get(model),
            lambda model: [each for each in sessions if model in each.models],
        )
        for each in sessions:
            self.sender.add(each)

    def wait(self, count: int, model: str = "m") -> None:
        self.waiting[model] = Demand(count, 0, 0.5, 2.0)
        if not count:
            del self.waiting[model]
        self.sender.look(model)


def test_it_is_told_at_once_when_something_waits_where_nothing_did() -> None:
    session = Session()
    here = Here(session)
    here.wait(2)
    assert session.told == [{"m": Demand(2, 0, 0.5, 2.0)}]


def told(session: Session) -> list[int]:
    """What waits for the model, as it was told each time."""
    return [each["m"].waiting if each else 0 for each in session.told]


def test_some_more_of_it_is_told_once_a_second() -> None:
    session = Session()
    here = Here(session)
    for count in (4, 5, 6, 7):
        here.wait(count)
    here.timers.pass_time(EVERY_S * 0.9)
    assert told(session) == [4]
    here.timers.pass_time(EVERY_S * 0.2)
    assert told(session) == [4, 7]
    here.timers.pass_time(EVERY_S)
    assert told(session) == [4, 7]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 9), (4, 2), (4, 0)])
def test_twice_or_half_of_it_is_told_soon(before: int, after: int) -> None:
    session = Session()
    here = Here(session)
    here.wait(before)
    here.wait(after)
    assert told(session) == [before]
    here.timers.pass_time(SOON_S)
    assert told(session) == [before, after]
    here.timers.pass_time(EVERY_S)
    assert told(session) == [before, after]


def test_a_change_that_is_told_soon_overtakes_one_that_was_to_wait() -> None:
    session = Session()
    here = Here(session)
    here.wait(4)
    here.wait(5)
    here.wait(8)
    here.timers.pass_time(SOON_S)
    assert told(session) == [4, 8]
    here.timers.pass_time(EVERY_S)
    assert told(session) == [4, 8], "the timer that was set first has nothing to do"


def test_many_agents_are_told_less_often() -> None:
    sessions = [Session() for _ in range(400)]
    here = Here(*sessions)
    here.wait(400)
    here.wait(4000)
    here.timers.pass_time(0.35)
    assert told(sessions[0]) == [1]
    here.timers.pass_time(0.06)
    assert told(sessions[0]) == [1, 10]


def test_that_nothing_waits_any_more_is_told_unless_the_agent_knows() -> None:
    session = Session()
    here = Here(session)
    here.wait(1)
    here.sender.opened(session, "m")
    here.wait(0)
    here.timers.pass_time(EVERY_S)
    assert len(session.told) == 1
    here.wait(1)
    assert len(session.told) == 2, "the agent believed that nothing waits"
    here.wait(0)
    here.timers.pass_time(SOON_S)
    assert session.told[2:] == [{}]


def test_agents_are_asked_for_their_part_each() -> None:
    sessions = [Session() for _ in range(3)]
    Here(*sessions).wait(7)
    assert [each.told[-1]["m"].waiting for each in sessions] == [3, 3, 3]


def test_a_session_hears_of_all_its_models_and_of_no_other() -> None:
    one, both = Session(("m",)), Session(("m", "n"))
    here = Here(one, both)
    here.wait(2, "n")
    here.timers.pass_time(EVERY_S)
    here.wait(4)
    assert set(one.told[-1]) == {"m"}
    assert set(both.told[-1]) == {"m", "n"}


def test_who_does_not_know_demand_or_is_gone_is_told_nothing() -> None:
    old, closed, gone = Session(), Session(closed=True), Session(gone=True)
    here = Here(closed, gone)
    here.sender = DemandSender(here.timers, lambda model: here.waiting.get(model), lambda model: [old])
    here.wait(1)
    here.sender.add(closed)
    here.wait(1)
    assert (old.told, closed.told, gone.told) == ([], [], [])
    assert old not in here.sender


def test_an_agent_whose_session_has_a_tunnel_again_is_told_again() -> None:
    session = Session()
    here = Here(session)
    here.wait(3)
    here.wait(4)
    here.sender.add(session)
    assert told(session) == [3, 4]
    here.timers.pass_time(EVERY_S)
    assert told(session) == [3, 4], "the timer of before is called off"


def test_what_waits_above_is_passed_on_while_nothing_waits_here() -> None:
    session = Session()
    here = Here(session)
    above: dict[str, Demand] = {}
    here.sender.passed_on = above.get

    def waits_above(count: int) -> None:
        above["m"] = Demand(count, 0, 0.5, 0.0)
        here.sender.look("m")

    waits_above(2)
    assert session.told == [{"m": Demand(2, 0, 0.5, 0.0)}]
    here.wait(2)
    here.timers.pass_time(SOON_S)
    assert session.told[1:] == [{"m": Demand(2, 0, 0.5, 2.0)}], "as many, but of this gateway's clients"
    here.wait(0)
    here.timers.pass_time(SOON_S)
    assert session.told[2:] == [{"m": Demand(2, 0, 0.5, 0.0)}]
    del above["m"]
    here.sender.look("m")
    here.timers.pass_time(SOON_S)
    assert session.told[3:] == [{}]


def test_slots_are_borrowed_without_weight_while_nothing_waits_until_the_time_is_over() -> None:
    session = Session()
    here = Here(session)
    here.sender.borrow("m", 4, 3.0)
    assert session.told == [{"m": Demand(4, 0, 0.0, 0.0)}]
    here.wait(1)
    here.timers.pass_time(SOON_S)
    assert session.told[1:] == [{"m": Demand(1, 0, 0.5, 2.0)}], "what waits comes first"
    here.wait(0)
    here.timers.pass_time(SOON_S)
    assert session.told[2:] == [{"m": Demand(4, 0, 0.0, 0.0)}]
    here.timers.pass_time(3.0)
    assert session.told[3:] == [{}]


def test_what_is_borrowed_again_counts_from_then_on_and_nothing_is_asked_for_no_more() -> None:
    session = Session()
    here = Here(session)
    here.sender.borrow("m", 4, 3.0)
    here.timers.pass_time(2.0)
    here.sender.borrow("m", 3, 3.0)
    here.timers.pass_time(2.0)
    assert told(session) == [4, 3], "the first time was called off"
    here.sender.borrow("m", 0, 3.0)
    assert told(session) == [4, 3, 0]
    here.sender.borrow("m", 0, 3.0)
    here.timers.pass_time(10.0)
    assert told(session) == [4, 3, 0]
