"""Deadlines of many tunnels are met together, none before its time and none more than a step late."""

from functools import partial

import pytest

from shared.tunnel.deadline_wheel import STEP_S, TURN_DEADLINES, DeadlineWheel
from tests.support.lines import ManualLoop


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


def test_deadlines_of_one_step_share_one_timer_and_are_met_at_its_end(loop: ManualLoop) -> None:
    wheel, met_s = DeadlineWheel(loop), list[float]()
    began_s = loop.time()
    for number in range(100):
        _, late_s = wheel.call_in(1.0 + number * STEP_S / 200, lambda: met_s.append(loop.time()))
        assert 0 <= late_s <= STEP_S
    assert len(loop.timers) == 1
    loop.advance(2.0)
    assert len(met_s) == 100
    assert len(set(met_s)) <= 2
    assert began_s + 1.0 <= min(met_s)
    assert max(met_s) <= began_s + 1.0 + 1.5 * STEP_S
    assert loop.timers == []
    loop.close()


@pytest.mark.parametrize("left_s", [-1.0, 0.0, STEP_S / 2, STEP_S, 1.0, 1.01, 29.99])
def test_a_deadline_is_met_when_it_says(loop: ManualLoop, left_s: float) -> None:
    wheel, met_s = DeadlineWheel(loop), list[float]()
    began_s = loop.time()
    _, late_s = wheel.call_in(left_s, lambda: met_s.append(loop.time()))
    assert 0 <= late_s <= STEP_S
    loop.advance(31.0)
    assert met_s == [pytest.approx(max(began_s, began_s + left_s + late_s), abs=1e-6)]
    loop.close()


def test_a_nearer_deadline_is_not_kept_waiting_by_one_that_was_set_before(loop: ManualLoop) -> None:
    wheel, met = DeadlineWheel(loop), list[str]()
    wheel.call_in(10.0, lambda: met.append("far"))
    wheel.call_in(1.0, lambda: met.append("near"))
    loop.advance(1.0 + STEP_S)
    assert met == ["near"]
    loop.advance(9.0)
    assert met == ["near", "far"]
    loop.close()


def test_a_cancelled_deadline_is_not_met_and_the_last_one_takes_the_timer_along(loop: ManualLoop) -> None:
    wheel, met = DeadlineWheel(loop), list[str]()
    first, _ = wheel.call_in(1.0, lambda: met.append("first"))
    second, _ = wheel.call_in(5.0, lambda: met.append("second"))
    first.cancel()
    first.cancel()
    assert loop.timers
    second.cancel()
    assert loop.timers == []
    loop.advance(6.0)
    assert met == []
    loop.close()


def test_a_deadline_may_cancel_and_set_others_of_its_step(loop: ManualLoop) -> None:
    wheel, met = DeadlineWheel(loop), list[str]()

    def meet() -> None:
        met.append("first")
        second.cancel()
        wheel.call_in(1.0, lambda: met.append("third"))

    wheel.call_in(1.0, meet)
    second, _ = wheel.call_in(1.0, lambda: met.append("second"))
    loop.advance(1.0 + STEP_S)
    assert met == ["first"]
    loop.advance(1.0 + STEP_S)
    assert met == ["first", "third"]
    assert loop.timers == []
    loop.close()


def test_one_that_fails_is_reported_and_keeps_no_other_from_its_time(loop: ManualLoop) -> None:
    wheel, met = DeadlineWheel(loop), list[str]()

    def fail() -> None:
        raise ValueError("it failed")

    wheel.call_in(1.0, fail)
    wheel.call_in(1.0, lambda: met.append("second"))
    loop.advance(2.0)
    assert met == ["second"]
    assert [str(context["exception"]) for context in loop.failures] == ["it failed"]
    loop.close()


def test_after_the_loop_stood_still_all_that_is_due_is_met_at_once_in_order(loop: ManualLoop) -> None:
    wheel, met = DeadlineWheel(loop), list[float]()
    for left_s in (3.0, 1.0, 2.0, 60.0):
        wheel.call_in(left_s, partial(met.append, left_s))
    loop.stand_still(10.0)
    loop.advance(0.0)
    assert met == [1.0, 2.0, 3.0]
    loop.advance(60.0)
    assert met == [1.0, 2.0, 3.0, 60.0]
    loop.close()


def test_many_deadlines_of_one_step_leave_turns_to_others(loop: ManualLoop) -> None:
    wheel, met = DeadlineWheel(loop), list[int]()
    timers = [wheel.call_in(1.0, partial(met.append, number))[0] for number in range(3 * TURN_DEADLINES)]
    loop.stand_still(1.0 + STEP_S)
    loop._run_once()  # type: ignore[attr-defined]
    assert met == list(range(TURN_DEADLINES))
    timers[TURN_DEADLINES].cancel()
    loop.settle()
    assert met == [number for number in range(3 * TURN_DEADLINES) if number != TURN_DEADLINES]
    loop.close()
