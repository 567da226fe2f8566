"""The past days once more: what was late, and what it cost."""

import math
from dataclasses import replace

import pytest

from gateway.scheduling.scaling import replay
from gateway.scheduling.scaling.bursts import PIECES, UNKNOWN, packed
from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.forecast import LoadSeries
from gateway.scheduling.scaling.pattern import PatternLearner
from gateway.scheduling.scaling.replay import known_bursts, replayed
from tests.gateway.scheduling.scaling.facts import L4
from tests.gateway.scheduling.scaling.loads import office, weeks

FACTS, RULE = replace(L4, lead_s=600.0), ScalingRule()
DAY_STEPS = 288
GUST = packed([10.0] * 2 + [0.1] * (PIECES - 2))
"""Nearly all within twenty seconds of five minutes."""


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
    assert found.late > 0.98, "but for what the slots take up at first"
    assert found.replica_hours == pytest.approx(240.0)


def test_of_equal_loads_bursts_take_more_replicas() -> None:
    even = weeks(lambda hour, day: 2.0, 9)
    _, forecasts = PatternLearner(even, 0.9).held_out(1, FACTS.lead_s)
    bursty = replace(even, bursts=GUST * DAY_STEPS)
    flat = replace(even, bursts=packed([1.0] * PIECES) * DAY_STEPS)
    plain, like_plain, more = (
        replayed(each, forecasts, FACTS, RULE, foresees=False) for each in (even, flat, bursty)
    )
    assert plain == like_plain
    assert more.replica_hours > 2 * plain.replica_hours


def test_bursts_are_those_of_the_last_steps_and_where_none_are_known_a_load_is_even() -> None:
    series = weeks(lambda hour, day: 1.0, 2)
    assert known_bursts(series, 1) == 0.0
    half = replace(series, bursts=UNKNOWN * (DAY_STEPS // 2) + GUST * (DAY_STEPS // 2))
    assert known_bursts(half, 1) == pytest.approx(0.5)
    assert known_bursts(half, 2) == pytest.approx(0.25)
    pieces = list(replay._pieces(half, half.end_s - 86_400.0))
    assert len(pieces) == DAY_STEPS * PIECES
    assert {load for _, load in pieces[: DAY_STEPS // 2 * PIECES]} == {1.0}
    assert [load > 5 for _, load in pieces[-PIECES:]] == [True] * 2 + [False] * (PIECES - 2)
    assert sum(load for _, load in pieces[-PIECES:]) == pytest.approx(PIECES)


def test_decisions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    series = weeks(office, 9)
    _, forecasts = PatternLearner(series, 0.9).held_out(1, FACTS.lead_s)
    usual = replayed(series, forecasts, FACTS, RULE, foresees=True)
    monkeypatch.setattr(replay, "MOST_REMEMBERED", 1)
    assert replayed(series, forecasts, FACTS, RULE, foresees=True) == usual
