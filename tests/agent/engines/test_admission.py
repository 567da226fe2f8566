"""Places for requests in an engine that computes here."""

import pytest

from agent.engines.admission import EngineAdmission
from shared.process.request_errors import QueueFull
from tests.support.clock import ManualClock


def test_places_are_slots_and_queue_and_no_more(clock: ManualClock) -> None:
    admission = EngineAdmission(2, 1, clock)
    places = [admission.enter() for _ in range(3)]
    with pytest.raises(QueueFull) as caught:
        admission.enter()
    assert caught.value.status == 429
    assert caught.value.retry_after_s is not None
    places[0].close()
    admission.enter()


def test_a_place_is_given_back_once(clock: ManualClock) -> None:
    admission = EngineAdmission(1, 0, clock)
    with admission.enter() as place:
        place.close()
    assert admission.taken == 0


def test_the_time_to_come_back_follows_how_long_requests_take(clock: ManualClock) -> None:
    admission = EngineAdmission(4, 0, clock)
    for _ in range(50):
        with admission.enter():
            clock.advance(8.0)
    assert admission.drain_s() == pytest.approx(2.0, rel=0.01)


def test_nobody_is_told_to_stay_away_for_longer_than_sdks_wait(clock: ManualClock) -> None:
    admission = EngineAdmission(1, 0, clock)
    for _ in range(50):
        with admission.enter():
            clock.advance(10_000.0)
    assert admission.drain_s() == 120.0
