"""A forecast is judged by what it would have saved."""

from dataclasses import replace

from gateway.scheduling.scaling.backtest import backtest, judged
from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.pattern import PatternLearner
from gateway.scheduling.scaling.replay import ReplayedDays
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


def test_a_verdict_is_a_sentence_with_the_figures_of_both() -> None:
    as_now, ahead = ReplayedDays(0.0733, 787.4), ReplayedDays(0.0381, 794.0)
    said = "3.81% would have been late with it and 7.33% without in the last 14 days"
    found = judged(14, as_now, ahead, 0.15, acts=False)
    assert (
        found.why
        == f"it saves 48.0% of what is late for +0.8% replica-hours: {said}, at 794 and 787 replica-hours"
    )
    little = judged(14, as_now, replace(ahead, late=0.07), 0.15, acts=False)
    assert little.why.startswith(
        "it saves too little of what is late, 4.5% of it where 10% are asked for: 7.00%"
    )
    dear = judged(14, as_now, replace(ahead, replica_hours=1000.0), 0.15, acts=False)
    assert dear.why.startswith("it costs too much more, +27.0% replica-hours where +15% are allowed: 3.81%")
    worse = judged(14, as_now, replace(ahead, late=0.08), 0.15, acts=True)
    assert worse.why.startswith("more is late with it than without: 8.00%")


def test_bursts_that_are_not_known_are_said() -> None:
    series = weeks(office, 16)
    _, forecasts = PatternLearner(series, 0.9).held_out(1, FACTS.lead_s)
    found = backtest(series, forecasts, FACTS, RULE, 0.25, acts=False)
    assert found.bursts_known == 0.0
    assert found.why.endswith("(bursts are known of 0% of that load, the rest is taken for even)")
    known = judged(7, ReplayedDays(0.02, 100.0), ReplayedDays(0.01, 100.0), 0.2, acts=False)
    assert known.why.endswith("at 100 and 100 replica-hours")
