"""Slow start, rests, ejections, and the book that keeps health over reconnects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.base import NO_CAP
from gateway.scheduling.health.circuit import CircuitState, Fault
from gateway.scheduling.health.record import (
    FORGET_S,
    MOST_GONE,
    DeploymentHealth,
    HealthRegistry,
    HealthSettings,
    SlowStart,
)

SETTINGS = HealthSettings()


def test_slots_ramp_from_a_quarter_to_all() -> None:
    slow_start = SlowStart(30.0)
    assert slow_start.cap(8, 0.0) == NO_CAP
    slow_start.begin(100.0)
    assert [slow_start.cap(8, 100.0 + after_s) for after_s in (0, 4.9, 5, 15, 29.9)] == [2, 2, 3, 5, 7]
    assert slow_start.cap(8, 130.0) == NO_CAP
    assert slow_start.cap(1, 100.0) == 1, "at least one"


@given(st.integers(0, 1000), st.floats(0, 31))
def test_a_ramp_only_grows_and_is_looked_at_when_it_has_grown_and_not_too_often(
    slots: int, after_s: float
) -> None:
    slow_start = SlowStart(30.0)
    slow_start.begin(1000.0)
    now = 1000.0 + after_s
    looks = 0
    while (next_s := slow_start.next_step_s(slots, now)) is not None:
        assert next_s > now
        assert min(slots, slow_start.cap(slots, next_s)) >= min(slots, slow_start.cap(slots, now))
        now = next_s
        looks += 1
    assert looks <= 31
    assert slow_start.cap(slots, now) == NO_CAP


def test_no_slow_start_when_it_is_set_to_nothing() -> None:
    slow_start = SlowStart(0.0)
    slow_start.begin(5.0)
    assert slow_start.cap(8, 5.0) == NO_CAP
    assert slow_start.next_step_s(8, 5.0) is None


def test_refusals_rest_it_longer_and_longer_until_it_takes_one() -> None:
    health = DeploymentHealth(SETTINGS, 0.0)
    rests = []
    for now in range(10):
        health.rest(float(now))
        rests.append(health.resting_until_s - now)
    assert rests[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert rests[-1] == 5.0
    assert health.cap(4, 0, 9.0) == 0
    assert not health.blocked(), "in a moment it may take something"
    health.accepted()
    health.rest(20.0)
    assert health.next_change_s(4, 20.0) == pytest.approx(20.1)
    health.advance(20.2)
    assert health.cap(4, 0, 20.2) == NO_CAP


def test_a_half_open_deployment_takes_one_more_than_it_runs() -> None:
    health = DeploymentHealth(SETTINGS, 0.0)
    health.circuit.failed("r", Fault.GONE, 1.0, 0.0)
    assert (health.cap(4, 0, 1.0), health.blocked(), health.state_label) == (0, True, "open")
    now = health.next_change_s(4, 1.0)
    assert now == 1.5
    health.advance(now)
    assert (health.cap(4, 2, now), health.blocked(), health.state_label) == (3, False, "half_open")
    health.circuit.started("p", now)
    assert (health.cap(4, 3, now), health.blocked(), health.state_label) == (0, True, "half_open")
    assert health.next_change_s(4, now) == now + 5.0


def test_ejections_grow_and_end_with_a_slow_start() -> None:
    health = DeploymentHealth(SETTINGS, 0.0)
    health.eject(0.0)
    assert health.blocked()
    assert health.state_label == "ejected"
    assert health.next_change_s(8, 0.0) == 30.0
    health.advance(30.0)
    assert health.cap(8, 0, 30.0) == 2
    health.eject(40.0)
    assert health.ejected_until_s == 100.0
    health.advance(100.0)
    for number in range(20):
        health.eject(200.0 + number)
    assert health.ejected_until_s == 219.0 + 300.0
    health.advance(600.0)
    health.eject(5000.0)
    assert health.ejected_until_s == 5030.0


def test_established_is_who_has_served_for_a_while_and_is_well() -> None:
    health = DeploymentHealth(SETTINGS, 0.0)
    assert not health.established(29.0)
    assert health.established(30.0)
    health.circuit.failed("r", Fault.GONE, 30.0, 0.0)
    assert not health.established(30.0)


def test_health_is_kept_over_a_reconnect_and_forgotten_after_some_minutes() -> None:
    book = HealthRegistry(SETTINGS)
    health, new = book.arrived("a/d", 0.0)
    assert new
    health.circuit.failed("r", Fault.GONE, 0.0, 0.0)
    book.departed("a/d", 1.0)
    book.departed("a/d", 1.0)
    again, new = book.arrived("a/d", 2.0)
    assert again is health
    assert not new
    assert again.circuit.state is CircuitState.OPEN
    book.departed("a/d", 3.0)
    fresh, new = book.arrived("a/d", 3.0 + FORGET_S)
    assert new
    assert fresh.circuit.state is CircuitState.CLOSED


def test_the_book_is_bounded() -> None:
    book = HealthRegistry(SETTINGS)
    for number in range(MOST_GONE + 100):
        book.arrived(f"{number}", 0.0)
        book.departed(f"{number}", 0.0)
    assert len(book) == MOST_GONE
    assert book.arrived("0", 0.0)[1], "the oldest went first"
    assert not book.arrived(f"{MOST_GONE + 99}", 0.0)[1]
