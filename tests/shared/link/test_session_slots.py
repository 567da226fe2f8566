"""The slots of all engines, divided among sessions: in time, and told when they change."""

from collections.abc import Callable

from shared.link.session_slots import SessionSlots
from shared.protocol.demand import Demand
from tests.support.clock import ManualClock


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Here:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes = 0
        self.timers: list[Timer] = []
        self.slots = SessionSlots(self.clock, self._changed, self._call_later)

    def _changed(self) -> None:
        self.changes += 1

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.clock() + delay_s, call))
        return self.timers[-1]

    def pass_time(self, passed_s: float) -> None:
        self.clock.advance(passed_s)
        due = [each for each in self.timers if each.at_s <= self.clock() and not each.cancelled]
        self.timers = [each for each in self.timers if each not in due]
        for each in due:
            each.call()

    def spare(self, engine: str = "e") -> list[int]:
        return [self.slots.spare(session, engine) for session in ("a", "b")]


def two_sessions(*models: str) -> Here:
    here = Here()
    here.slots.offer("e", models or ("m",), 4)
    here.slots.add("a", "a")
    here.slots.add("b", "b")
    here.pass_time(1.0)
    return here


def test_a_timer_moves_what_was_taken_back() -> None:
    here = two_sessions()
    assert here.spare() == [2, 2]
    here.slots.set_demands("a", {"m": Demand(4)}, 0.04)
    assert here.spare() == [2, 0]
    before = here.changes
    here.pass_time(0.05)
    assert here.spare() == [4, 0]
    assert here.changes > before


def test_demand_for_models_of_other_engines_moves_nothing() -> None:
    here = two_sessions()
    here.slots.offer("f", ["n"], 2)
    here.slots.set_demands("a", {"n": Demand(2)}, None)
    here.pass_time(0.1)
    assert here.spare("e") == [2, 2]
    assert here.spare("f") == [2, 0]


def test_an_engine_that_comes_later_hears_of_what_waits() -> None:
    here = two_sessions()
    here.slots.set_demands("a", {"n": Demand(4)}, None)
    here.slots.offer("f", ["n"], 4)
    here.pass_time(0.1)
    assert here.spare("f") == [4, 0]


def test_the_requests_of_one_session_concern_no_other_while_nothing_waits() -> None:
    here = two_sessions()
    before = here.changes
    assert here.slots.enter("a", "e")
    here.slots.leave("a", "e")
    assert (here.changes, here.spare()) == (before, [2, 2])


def test_an_engine_with_several_deployments_may_exceed_what_it_lent_for_a_moment() -> None:
    here = two_sessions("m", "n")
    assert all(here.slots.enter("a", "e") for _ in range(2))
    assert not here.slots.enter("a", "e")
    assert here.slots.enter("a", "e", beyond=True)
    assert here.spare() == [0, 1]


def test_a_session_without_a_tunnel_and_one_that_is_over_lend_theirs_to_the_other() -> None:
    here = two_sessions()
    here.slots.set_linked("b", False)
    assert here.spare() == [4, 0]
    here.slots.set_linked("b", True, 0.02)
    here.pass_time(0.1)
    assert here.spare() == [2, 2]
    here.slots.remove("b")
    assert here.slots.spare("a", "e") == 4
    assert "b" not in here.slots
    here.slots.remove("b")
    here.slots.set_linked("b", True)
    here.slots.set_demands("b", {}, None)


def test_an_engine_that_comes_later_lends_nothing_to_a_session_without_a_tunnel() -> None:
    here = two_sessions()
    here.slots.set_linked("a", False)
    here.slots.offer("later", ["m"], 4)
    assert here.spare("later") == here.spare() == [0, 4]
    here.slots.set_linked("a", True)
    here.pass_time(1.0)
    assert here.spare("later") == [2, 2]
