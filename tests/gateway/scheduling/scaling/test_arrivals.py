import pytest

from gateway.domain.request import Tier
from gateway.scheduling.scaling.arrivals import LATEST, ArrivalCounts, ModelArrivals
from gateway.scheduling.scaling.bursts import PIECE_S
from tests.gateway.scheduling.queue.waiting import request


def test_a_rate_is_that_of_the_last_minute() -> None:
    counts = ArrivalCounts()
    for second in range(300):
        counts.note(request(), float(second))
    assert counts.of("m", 300.0).per_s == pytest.approx(1.0, abs=0.05)
    assert counts.of("m", 300.0).before_per_s == pytest.approx(1.0, abs=0.05)
    assert counts.of("m", 400.0).per_s == 0.0
    assert counts.of("m", 10_000.0).before_per_s == 0.0


def test_a_rise_is_told_only_when_both_spans_were_counted() -> None:
    counts = ArrivalCounts()
    for second in range(60):
        counts.note(request(), float(second))
    assert counts.of("m", 60.0).rising_per_s2 == 0.0
    for tenth in range(1200):
        counts.note(request(), 120.0 + tenth / 10)
    assert counts.of("m", 185.0).rising_per_s2 > 0.0
    assert counts.of("m", 240.0).rising_per_s2 == pytest.approx(0.0, abs=0.01)


def test_the_latest_piece_that_is_over_is_told_apart() -> None:
    counts = ArrivalCounts()
    for tenth in range(50):
        counts.note(request(), 100.0 + 4 * PIECE_S + tenth / 10)
    assert counts.of("m", 100.0 + 4 * PIECE_S + 6).piece_per_s == 0.0, "it is not over"
    assert counts.of("m", 100.0 + 5 * PIECE_S + 1).piece_per_s == 5.0
    assert counts.of("m", 100.0 + 6 * PIECE_S + 1).piece_per_s == 0.0


def test_batch_requests_tell_of_lengths_and_not_of_rates() -> None:
    counts = ArrivalCounts()
    counts.note(request(tier=Tier.BATCH, input_tokens=100, work_tokens=20, output_tokens=10), 5.0)
    found = counts.of("m", 6.0)
    assert found.per_s == 0.0
    assert (found.latest_s, found.known) == (5.0, 1)
    assert (found.input_tokens, found.output_tokens) == (120.0, 10.0)


def test_lengths_are_those_of_the_latest_and_high_ones_are_told_apart() -> None:
    counts = ArrivalCounts()
    for number in range(3 * LATEST):
        counts.note(request(input_tokens=4000 if number % 64 == 0 else 100, output_tokens=50), number / 10)
    found = counts.of("m", 3 * LATEST / 10)
    assert found.known == LATEST
    assert 100 < found.input_tokens < 200
    assert found.high_input_tokens == 4000


def test_nothing_is_known_of_a_model_that_nobody_asked_for() -> None:
    counts = ArrivalCounts()
    assert counts.of("m", 0.0) == ModelArrivals()
    counts.note(request("other"), 0.0)
    assert counts.models() == ["other"]
