"""What is learnt from weeks of a load."""

import math

from gateway.scheduling.scaling.forecast import STEP_S, LoadSeries
from gateway.scheduling.scaling.pattern import DAY_STEPS, PatternLearner, without
from tests.gateway.scheduling.scaling.loads import office, weeks


def at(series: LoadSeries, day: int, hour: float) -> float:
    return series.start_s + day * 86_400 + hour * 3600


def expected(series: LoadSeries, hour: float, until: int | None = None) -> float:
    """Of the day after the series."""
    until = len(series.values) if until is None else until
    forecast = PatternLearner(series, 0.9).forecast(until)
    found = forecast.outlook(series.start_s + until * STEP_S + hour * 3600, None)
    assert found is not None
    return found.expected


def test_a_day_of_the_week_is_foreseen_from_that_day_in_other_weeks() -> None:
    series = weeks(office, 26)
    assert 5.5 < expected(series, 12.0, 25 * DAY_STEPS) < 9.0, "a Friday"
    assert expected(series, 12.0) < 2.0, "a Saturday"
    assert expected(series, 3.0) < 2.0


def test_a_trend_is_followed() -> None:
    series = weeks(lambda hour, day: 4.0 + 0.2 * day, 28)
    assert 9.0 < expected(series, 12.0) < 10.3


def test_one_bad_day_makes_no_pattern() -> None:
    series = weeks(lambda hour, day: 40.0 if day == 20 else 4.0)
    assert expected(series, 12.0) < 4.5


def test_days_that_were_not_learnt_from_are_told_with_a_stated_error() -> None:
    series = weeks(lambda hour, day: 5.0 + 4.0 * math.sin(hour / 24 * 2 * math.pi), 21, noise=0.1)
    error, forecasts = PatternLearner(series, 0.9).held_out(7, 180.0)
    assert len(forecasts) == 7
    assert 0.06 < error.error < 0.10, "that of the noise"
    assert error.error < error.error_as_now
    assert 0.85 < error.covered < 0.95


def test_where_there_is_no_pattern_the_error_is_that_of_what_stays_as_it_is() -> None:
    walk = [1.0]
    for number in range(21 * DAY_STEPS - 1):
        walk.append(walk[-1] * math.exp(0.05 * math.sin(number * number)))
    error, _ = PatternLearner(LoadSeries(0.0, walk), 0.9).held_out(7, 180.0)
    assert error.error > 0.8 * error.error_as_now


def test_steps_that_are_not_known_are_left_out_and_too_few_are_not_enough() -> None:
    series = weeks(office, 21)
    holes = without(series, lambda at_s: at_s % 3600 < 1200)
    assert holes.known < series.known
    assert abs(expected(holes, 12.0) - expected(series, 12.0)) < 1.0
    learner = PatternLearner(without(series, lambda at_s: at_s < at(series, 15, 0)), 0.9)
    assert not learner.can_learn(len(series.values))
    assert PatternLearner(series, 0.9).can_learn(7 * DAY_STEPS)
