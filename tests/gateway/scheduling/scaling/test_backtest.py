"""A forecast is judged by what it would have saved."""

import math
from dataclasses import replace

from gateway.scheduling.scaling.backtest import ReplayedDays, backtest, judged, replayed
from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.forecast import LoadSeries
from gateway.scheduling.scaling.pattern import PatternLearner
from tests.gateway.scheduling.scaling.facts import L4
from tests.gateway.scheduling.scaling.loads import office, weeks

FACTS, RULE = replace(L4, lead_s=600.0), ScalingRule()


def test_a_forecast_of_regular_days_beats_what_is_decided_without_it() -> None:
    series = weeks(office, 24)
    _, forecasts = PatternLearner(series, 0.9).held_out(3, FACTS.lead_s)
    found = backtest(series, forecasts, FACTS, RULE, 0.25, acts=False)
    assert found.beats, found.why
    assert found.forecast.late < 0.7 * found.reactive.late
    assert found.days == 3


def test_where_nothing_is_late_without_it_there_is_nothing_to_gain() -> None:
    series = weeks(lambda hour, day: 4.0, 16)
    _, forecasts = PatternLearner(series, 0.9).held_out(2, FACTS.lead_s)
    found = backtest(series, forecasts, FACTS, RULE, 0.25, acts=False)
    assert not found.beats
    assert found.why.startswith("too little is late")


def test_a_forecast_that_costs_too_much_or_saves_too_little_does_not_act() -> None:
    as_now = ReplayedDays(0.02, 100.0)
    assert not judged(7, as_now, ReplayedDays(0.001, 140.0), 0.2, acts=False).beats
    assert not judged(7, as_now, ReplayedDays(0.019, 101.0), 0.2, acts=False).beats
    assert judged(7, as_now, ReplayedDays(0.01, 110.0), 0.2, acts=False).beats


def test_one_that_acts_goes_on_until_it_is_worse() -> None:
    as_now = ReplayedDays(0.02, 100.0)
    assert judged(7, as_now, ReplayedDays(0.0195, 122.0), 0.2, acts=True).beats
    assert judged(7, ReplayedDays(0.0001, 100.0), ReplayedDays(0.0, 105.0), 0.2, acts=True).beats
    assert not judged(7, as_now, ReplayedDays(0.021, 100.0), 0.2, acts=True).beats


def test_what_nobody_knows_is_left_out() -> None:
    series = weeks(office, 16)
    _, forecasts = PatternLearner(series, 0.9).held_out(1, FACTS.lead_s)
    whole = replayed(series, forecasts, FACTS, RULE, foresees=True)
    values = [*series.values[:-144], *[math.nan] * 144]
    half = replayed(LoadSeries(series.start_s, values), forecasts, FACTS, RULE, foresees=True)
    assert 0 < half.replica_hours < whole.replica_hours


def test_more_than_is_allowed_at_most_is_late_and_refused() -> None:
    series = weeks(lambda hour, day: 20.0, 9)
    _, forecasts = PatternLearner(series, 0.9).held_out(1, FACTS.lead_s)
    found = replayed(series, forecasts, FACTS, replace(RULE, max_replicas=10), foresees=False)
    assert found.late > 0.99
    assert found.replica_hours == 240.0 or abs(found.replica_hours - 240.0) < 1e-6
