"""How fast a queue drains: what is measured, and what is believed before."""

import pytest

from gateway.scheduling.queue.drain import DrainRate


def test_before_anything_was_measured_the_guess_is_believed() -> None:
    assert DrainRate(0.0).per_s(100.0, 3.0) == 3.0


def test_a_steady_drain_is_measured() -> None:
    rate, now = DrainRate(0.0), 0.0
    rate.set_backlogged(True, now)
    for _ in range(600):
        now += 0.25
        rate.departed(now)
    assert rate.per_s(now, 4.0) == pytest.approx(4.0, rel=0.02)
    assert rate.per_s(now, 40.0) == pytest.approx(4.0, rel=0.7), "the guess fades"


def test_a_drain_that_stops_is_noticed() -> None:
    rate, now = DrainRate(0.0), 0.0
    rate.set_backlogged(True, now)
    for _ in range(100):
        now += 0.1
        rate.departed(now)
    assert rate.per_s(now + 120, 0.0) < 0.5


def test_time_in_which_nobody_waits_does_not_count() -> None:
    rate = DrainRate(0.0)
    rate.set_backlogged(True, 0.0)
    for second in range(1, 11):
        rate.departed(float(second))
    rate.set_backlogged(False, 10.0)
    before = rate.per_s(10.0, 1.0)
    assert rate.per_s(15.0, 1.0) == pytest.approx(before, rel=0.05)


def test_departures_that_did_not_wait_do_not_count() -> None:
    rate = DrainRate(0.0)
    for second in range(1, 11):
        rate.departed(float(second))
    assert rate.per_s(10.0, 0.5) == 0.5
