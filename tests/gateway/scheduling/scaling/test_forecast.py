"""What a forecast says of a time, with today's deviation."""

import math

import pytest

from gateway.scheduling.scaling.forecast import STEP_S, Forecast, LoadSeries

FLAT = Forecast(600.0, [2.0] * 10, [1.0, 0.5, 0.0], [0.0, 1.0, 2.0])


def middle(step: int) -> float:
    return 600.0 + (step + 0.5) * STEP_S


def test_a_deviation_is_carried_on_as_far_as_it_lasts_and_the_band_widens() -> None:
    found = [FLAT.outlook(middle(step), (9.0, middle(0))) for step in (0, 1, 2, 3)]
    assert [each and each.expected for each in found] == [9.0, 6.25, 4.0, 4.0]
    assert [each and each.upper for each in found] == [9.0, 12.25, 16.0, 16.0]


def test_without_a_latest_load_it_is_the_pattern_with_the_widest_band() -> None:
    for latest in (None, (math.nan, middle(0)), (9.0, middle(-5))):
        found = FLAT.outlook(middle(3), latest)
        assert found is not None
        assert (found.expected, found.upper) == (4.0, 16.0)


def test_it_says_nothing_of_times_that_it_is_not_of() -> None:
    assert FLAT.outlook(599.0, None) is None
    assert FLAT.outlook(FLAT.end_s + 1, None) is None
    assert FLAT.ahead(FLAT.end_s, 60.0, None) is None


def test_what_is_ahead_is_the_most_of_when_a_replica_is_ready_and_of_the_step_after() -> None:
    rising = Forecast(0.0, [1.0, 1.0, 3.0, 1.0], [0.0], [0.0])
    found = rising.ahead(0.0, 1.5 * STEP_S, None)
    assert found is not None
    assert found.expected == 9.0


def test_below_the_pattern_is_never_below_zero() -> None:
    found = Forecast(600.0, [1.0] * 4, [1.0, 1.0], [0.0, 0.0]).outlook(middle(1), (0.0, middle(0)))
    assert found is not None
    assert found.expected == 0.0


def test_it_is_the_same_after_json_and_nonsense_is_refused() -> None:
    assert Forecast.from_json(FLAT.as_json()) == FLAT
    for said in ({}, FLAT.as_json() | {"roots": []}, FLAT.as_json() | {"carry": [1.0]}):
        with pytest.raises((KeyError, ValueError)):
            Forecast.from_json(said)


def test_a_series_says_what_was_in_the_step_of_a_time() -> None:
    series = LoadSeries(600.0, [1.0, math.nan, 3.0])
    assert (series.at(600.0), series.at(1499.9), series.known, series.end_s) == (1.0, 3.0, 2, 1500.0)
    assert math.isnan(series.at(900.0))
    assert math.isnan(series.at(599.9))
