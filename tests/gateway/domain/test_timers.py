"""Many timers on one timer of the event loop."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.timers import NEAR_S, STEPS_A_SECOND, LazyTimer, TimerWheel
from tests.gateway.fleet.manual_timers import Loop


@dataclass
class Told:
    """Calls a function once its time has come."""

    on_time: Callable[[float], None]


class Wheel:
    """A wheel, and when its timers called."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.wheel = TimerWheel(self.loop)
        self.calls: list[tuple[str, float]] = []

    @property
    def now(self) -> float:
        return self.loop.now_s

    def timer(self, in_s: float, name: str = "") -> LazyTimer:
        return LazyTimer(
            self.wheel, Told(lambda now: self.calls.append((name, now))), self.now + in_s, self.now
        )


def test_a_time_that_is_near_is_met_exactly_and_one_far_away_at_the_end_of_its_step() -> None:
    all_of, began_s = Wheel(), 1000.0
    all_of.timer(0.51, "near")
    all_of.timer(5.01, "far")
    all_of.loop.advance(10.0)
    assert all_of.calls == [("near", began_s + 0.51), ("far", began_s + 5.0625)]
    assert all_of.loop.pending == 0


def test_timers_of_the_same_time_share_one_of_the_loop() -> None:
    all_of = Wheel()
    timers = [all_of.timer(60.0 - each / 1000) for each in range(20)]
    assert all_of.loop.pending == 1
    for timer in timers:
        timer.close()
    all_of.timer(61.0)
    assert all_of.loop.pending == 1, "the one there is serves the next"
    all_of.loop.advance(60.5)
    assert all_of.calls == []
    all_of.loop.advance(60.0)
    assert (len(all_of.calls), all_of.loop.pending) == (1, 0)


def test_one_that_is_set_later_wakes_early_and_waits_again() -> None:
    all_of = Wheel()
    timer = all_of.timer(2.0)
    timer.set(all_of.now + 2.5)
    all_of.loop.advance(2.25)
    assert (all_of.calls, all_of.loop.pending) == ([], 1)
    all_of.loop.advance(1.0)
    assert all_of.calls == [("", 1002.5)]
    timer.set(all_of.now + 3.0)
    all_of.loop.advance(3.0)
    assert len(all_of.calls) == 2, "it may be set again"


def test_one_that_waits_again_does_not_hold_up_those_before_it() -> None:
    all_of = Wheel()
    all_of.timer(2.0).set(all_of.now + 60.0)
    all_of.timer(5.0, "before")
    all_of.loop.advance(5.0)
    assert all_of.calls == [("before", 1005.0)]


def test_one_that_is_set_earlier_is_not_late() -> None:
    all_of = Wheel()
    timer = all_of.timer(60.0)
    all_of.timer(30.0, "other")
    timer.set(all_of.now + 0.3)
    all_of.loop.advance(0.3)
    assert all_of.calls == [("", 1000.3)]


def test_one_may_cancel_others_that_are_due_with_it() -> None:
    all_of = Wheel()
    others: list[LazyTimer] = []

    def cancel_them(now: float) -> None:
        for each in others:
            each.cancel()

    LazyTimer(all_of.wheel, Told(cancel_them), all_of.now + 2.0, all_of.now)
    others += [all_of.timer(2.0), all_of.timer(1.97)]
    all_of.loop.advance(5.0)
    assert (all_of.calls, all_of.loop.pending) == ([], 0)


def test_those_behind_one_that_raises_are_called_nevertheless() -> None:
    all_of = Wheel()

    def fail(now: float) -> None:
        raise ValueError("no")

    LazyTimer(all_of.wheel, Told(fail), all_of.now + 2.0, all_of.now)
    all_of.timer(2.0, "same step")
    all_of.timer(3.0, "later")
    with pytest.raises(ValueError, match="no"):
        all_of.loop.advance(2.0)
    all_of.loop.advance(2.0)
    assert [name for name, _ in all_of.calls] == ["same step", "later"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["make", "set", "cancel", "close", "pass"]), st.floats(0.0, 8.0)),
        max_size=40,
    )
)
def test_each_is_called_once_when_it_is_due_and_never_early(steps: list[tuple[str, float]]) -> None:
    all_of = Wheel()
    timers: dict[str, LazyTimer] = {}
    due: dict[str, float] = {}
    for number, (what, value) in enumerate(steps):
        name = str(int(value * 97) % len(timers)) if timers else ""
        if what == "make":
            timers[str(len(timers))], due[str(len(due))] = (
                all_of.timer(value, str(len(timers))),
                all_of.now + value,
            )
        elif what == "pass":
            all_of.loop.advance(value / 4)
            for called, at_s in all_of.calls:
                assert due[called] <= at_s <= due[called] + 1 / STEPS_A_SECOND, number
                due[called] = float("inf")
            all_of.calls.clear()
            late = [at_s for at_s in due.values() if at_s + 1 / STEPS_A_SECOND < all_of.now]
            assert not late, "none was forgotten"
        elif name and what == "set":
            timers[name].set(all_of.now + value)
            due[name] = all_of.now + value
        elif name:
            timers[name].cancel()
            due[name] = float("inf")
    assert all_of.loop.pending <= 1 + sum(at_s < all_of.now + NEAR_S + 8.0 for at_s in due.values())
    for timer in timers.values():
        timer.close()
    all_of.loop.advance(20.0)
    assert (all_of.calls, all_of.loop.pending) == ([], 0)
