"""A minute's window: never more in any 60 s than its limit, debts first, and times told are true."""

from collections import deque
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.quota.window import MINUTE_S, STEP_S, MinuteWindow, WindowSlot

LIMIT = 100


def test_what_was_taken_counts_for_a_minute() -> None:
    window = MinuteWindow(LIMIT)
    window.take(60, 0.0)
    window.take(40, 30.0)
    assert (window.wait_s(1, 30.0), window.remaining(30.0)) == (30.0, 0)
    assert window.wait_s(61, 30.0) == 60.0
    assert window.remaining(59.999) == 0
    assert window.remaining(60.0) == 60
    assert (window.reset_s(60.0), window.reset_s(90.0)) == (30.0, 0.0)


def test_what_was_taken_at_about_one_time_leaves_with_the_last_of_it() -> None:
    window = MinuteWindow(LIMIT)
    window.take(50, 0.0)
    window.take(50, 0.2)
    assert (window.remaining(60.1), window.remaining(60.2)) == (0, 100)


def test_what_never_fits_is_told_so() -> None:
    assert MinuteWindow(LIMIT).wait_s(101, 0.0) is None
    assert MinuteWindow(LIMIT).wait_s(100, 0.0) == 0.0


def test_what_was_given_back_may_be_taken_at_once_unless_its_minute_is_over() -> None:
    window = MinuteWindow(LIMIT)
    first, second = window.take(60, 0.0), window.take(40, 1.0)
    window.settle(second, 40, 10, 2.0)
    assert window.remaining(2.0) == 30
    window.settle(first, 60, 0, 60.0)
    assert window.remaining(60.0) == 90
    assert window.reset_s(60.0) == 1.0


def test_what_was_used_beyond_the_reservation_is_paid_for_in_the_minutes_after() -> None:
    window = MinuteWindow(LIMIT)
    slot = window.take(10, 0.0)
    window.settle(slot, 10, 250, 0.0)
    assert (window.remaining(0.0), window.used, window.debt) == (0, 100, 150)
    assert (window.wait_s(50, 0.0), window.wait_s(51, 0.0)) == (120.0, 180.0)
    assert window.reset_s(0.0) == 180.0
    assert (window.remaining(119.9), window.remaining(120.0)) == (0, 50)
    assert (window.remaining(180.0), window.empty) == (100, True)


def test_a_limit_that_is_lowered_or_raised_counts_at_once() -> None:
    window = MinuteWindow(LIMIT)
    window.take(80, 0.0)
    window.limit = 50
    assert (window.remaining(1.0), window.wait_s(1, 1.0)) == (0, 59.0)
    window.limit = 90
    assert window.remaining(1.0) == 10


@pytest.mark.parametrize("limit", [10, 7, 1])
def test_times_are_true_where_a_limit_was_lowered_while_something_was_owed(limit: int) -> None:
    window = MinuteWindow(LIMIT)
    first, _ = window.take(60, 0.0), window.take(40, 10.0)
    window.settle(first, 60, 65, 10.0)
    window.limit = limit
    wait_s, reset_s = window.wait_s(1, 10.0), window.reset_s(10.0)
    assert wait_s is not None
    other = deepcopy(window)
    assert [window.fits(1, 10.0 + wait_s + after_s) for after_s in (-STEP_S, 0.0)] == [False, True]
    assert other.remaining(10.0 + reset_s - STEP_S) < limit
    assert other.remaining(10.0 + reset_s) == limit


def test_a_window_stays_small_however_much_goes_through_it() -> None:
    window = MinuteWindow(1_000_000)
    for step in range(20_000):
        assert window.wait_s(1, step * 0.005) == 0.0
        window.take(1, step * 0.005)
    assert len(window._slots) <= MINUTE_S / STEP_S + 2


class Sliding(RuleBasedStateMachine):
    """Against every entry remembered for ever, and against a twin that is looked at as seldom as can be."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.twin = MinuteWindow(LIMIT), MinuteWindow(LIMIT)
        self.now = 0.0
        self.entries: list[list[Any]] = []
        """When let in, and what it counts for."""
        self.open: deque[tuple[WindowSlot, WindowSlot, list[Any]]] = deque()
        self.owed = False

    @rule(eighths=st.integers(0, 8 * 90))
    def wait(self, eighths: int) -> None:
        self.now += eighths / 8

    @rule(amount=st.integers(0, LIMIT))
    def take(self, amount: int) -> None:
        wait_s = self.window.wait_s(amount, self.now)
        assert wait_s is not None
        if wait_s:
            return
        assert self.twin.wait_s(amount, self.now) == 0.0
        entry = [self.now, amount]
        self.entries.append(entry)
        self.open.append((self.window.take(amount, self.now), self.twin.take(amount, self.now), entry))

    @precondition(lambda self: self.open)
    @rule(share=st.floats(0, 1), newest=st.booleans())
    def settle_for_less(self, share: float, newest: bool) -> None:
        slot, other, entry = self.open.pop() if newest else self.open.popleft()
        taken, entry[1] = entry[1], int(entry[1] * share)
        self.window.settle(slot, taken, entry[1], self.now)
        self.twin.settle(other, taken, entry[1], self.now)

    @precondition(lambda self: self.open)
    @rule(more=st.integers(1, 3 * LIMIT))
    def settle_for_more(self, more: int) -> None:
        slot, other, entry = self.open.popleft()
        self.owed = True
        self.window.settle(slot, entry[1], entry[1] + more, self.now)
        self.twin.settle(other, entry[1], entry[1] + more, self.now)

    @rule(amount=st.integers(1, LIMIT))
    def come_back_when_told(self, amount: int) -> None:
        wait_s = self.window.wait_s(amount, self.now)
        assert wait_s is not None
        if wait_s > STEP_S:
            assert self.window.wait_s(amount, self.now + wait_s - STEP_S) != 0.0
        self.now += wait_s
        assert self.window.wait_s(amount, self.now) == 0.0

    @rule()
    def wait_for_the_reset(self) -> None:
        reset_s = self.window.reset_s(self.now)
        self.now += reset_s
        assert self.window.remaining(self.now) == LIMIT
        assert self.window.empty

    @invariant()
    def never_more_than_the_limit_in_any_minute(self) -> None:
        lately = sum(amount for at_s, amount in self.entries if at_s > self.now - MINUTE_S)
        assert lately <= LIMIT, f"{lately} of {LIMIT} in a minute"
        assert 0 <= self.window.used <= LIMIT
        assert self.window.debt >= 0
        assert self.owed or self.window.remaining(self.now) <= LIMIT - lately

    @invariant()
    def looking_changes_nothing(self) -> None:
        self.window.advance(self.now)
        assert sum(slot.amount for slot in self.window._slots) == self.window.used

    def teardown(self) -> None:
        assert self.window.remaining(self.now) == self.twin.remaining(self.now)
        assert self.window.reset_s(self.now) == pytest.approx(self.twin.reset_s(self.now))


Sliding.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSliding = Sliding.TestCase
