"""What is remembered of late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.recent import WINDOW_S, ArrivalRate, CountWindow, RecentDict


def test_what_was_set_longest_ago_is_forgotten_first() -> None:
    recent = RecentDict[str, int](2)
    recent["a"], recent["b"], recent["a"] = 1, 2, 3
    recent["c"] = 4
    assert list(recent.items()) == [("a", 3), ("c", 4)]


def test_an_entry_that_is_renewed_is_kept_as_it_is_and_counts_as_the_last() -> None:
    recent = RecentDict[str, list[int]](2)
    recent.renewed("a", list).append(1)
    recent["b"] = []
    recent.renewed("a", list).append(2)
    recent["c"] = []
    assert dict(recent) == {"a": [1, 2], "c": []}


@given(st.lists(st.tuples(st.floats(0, 4), st.integers(0, 3)), max_size=60))
def test_a_window_agrees_with_a_list(steps: list[tuple[float, int]]) -> None:
    window, now = CountWindow(), 1000.0
    all_of_them: list[tuple[int, int]] = []
    for passed_s, count in steps:
        now += passed_s
        window.add(count, 1, now)
        all_of_them.append((int(now), count))
        latest = [each for each in all_of_them if each[0] > int(now) - WINDOW_S]
        assert window.sums(now) == (sum(count for _, count in latest), len(latest))


def test_arrivals_are_measured_and_a_burst_is_spread_over_the_window() -> None:
    rate = ArrivalRate(100.0, memory_s=30.0, window_s=10.0)
    for _ in range(20):
        rate.arrived(100.0)
    assert rate.per_s(100.0) == 2.0
    for second in range(101, 400):
        rate.arrived(float(second))
    assert rate.per_s(400.0) == pytest.approx(1.0, rel=0.05)
    assert rate.per_s(1000.0) < 1e-6


def test_arrivals_that_come_close_together_are_counted_as_if_they_had_come_at_once() -> None:
    close, apart = ArrivalRate(0.0), ArrivalRate(0.0)
    for number in range(30_000):
        close.arrived(number / 300)
        if number % 300 == 0:
            for _ in range(300):
                apart.arrived(number / 300)
    assert close.per_s(100.0) == pytest.approx(300.0, rel=0.01)
    assert apart.per_s(100.0) == pytest.approx(300.0, rel=0.05)
