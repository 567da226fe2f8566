"""What is predicted while agents still divide their slots among several gateways."""

import pytest

from gateway.domain.errors import QueueFull
from gateway.domain.request import Tier
from gateway.scheduling.queue.tickets import Capacity
from gateway.scheduling.queue.waiting_room import SHARED_SETTLING_S, WaitingRoom
from tests.gateway.scheduling.queue.waiting import request, room

ONE = Capacity(slots=1, free=0, hold_s=2.0)


def test_time_without_slots_does_not_count_as_slow() -> None:
    waiting, slots = room(), Capacity(slots=4, free=0, hold_s=1.0)
    for _ in range(8):
        waiting.enter(request(), slots, 0.0)
    waiting.still_waiting("m", 0.0, slots=False)
    assert waiting.departures_per_s("m", slots, 100.0) == pytest.approx(4.0)
    waiting.still_waiting("m", 100.0)
    assert waiting.departures_per_s("m", slots, 120.0) < 1.0


def test_nobody_is_sent_away_before_slots_that_have_just_come_are_divided() -> None:
    waiting, first_slot = room(max_wait_s=10), Capacity(slots=1, free=0, hold_s=2.0)
    for _ in range(8):
        waiting.enter(request(), Capacity(slots=0, free=0, hold_s=2.0), 0.0)
    waiting.still_waiting("m", 4.0, slots=False)
    assert waiting.predicted_wait_s("m", Tier.STANDARD, "t", first_slot, 4.5) is None
    waiting.enter(request(), first_slot, 4.5)
    assert waiting.predicted_wait_s("m", Tier.STANDARD, "t", first_slot, 6.0) == pytest.approx(20.0)
    with pytest.raises(QueueFull):
        waiting.enter(request(), first_slot, 6.0)


def crowd(*, shared_slots: bool) -> WaitingRoom:
    """Eight requests that wait from 1.0 s on for the one slot there is."""
    waiting = room(max_wait_s=10, shared_slots=shared_slots)
    for _ in range(4):
        waiting.enter(request(), ONE, 1.0)
    waiting.still_waiting("m", 1.0)
    for _ in range(4):
        waiting.enter(request(), Capacity(slots=8, free=0, hold_s=2.0), 1.0)
    return waiting


def test_nobody_is_sent_away_before_agents_could_lend_slots_of_other_gateways() -> None:
    waiting, over_s = crowd(shared_slots=True), 1.0 + SHARED_SETTLING_S
    assert waiting.predicted_wait_s("m", Tier.STANDARD, "t", ONE, over_s - 0.1) is None
    waiting.enter(request(), ONE, over_s - 0.1)
    waiting.still_waiting("m", over_s - 0.1)
    with pytest.raises(QueueFull, match="is expected in"):
        waiting.enter(request(), ONE, over_s)


def test_a_gateway_that_is_alone_predicts_at_once() -> None:
    with pytest.raises(QueueFull, match="is expected in"):
        crowd(shared_slots=False).enter(request(), ONE, 1.5)


def test_what_was_measured_is_believed_at_once() -> None:
    waiting = crowd(shared_slots=True)
    (first,) = waiting.next_tickets("m", dict.fromkeys(waiting.lanes("m"), 1), 2.0)
    waiting.leave(first, 2.0, departed=True)
    predicted_s = waiting.predicted_wait_s("m", Tier.STANDARD, "t", ONE, 2.5)
    assert predicted_s is not None
    assert predicted_s > 5
