"""Every request of a week ends once, and replicas are what was wanted, in time."""

import math

import pytest

from gateway.scheduling.scaling.data import ClassFacts, ScalingRule
from gateway.scheduling.scaling.forecast import STEP_S, LoadSeries
from gateway.tools.simulate.week import BEGIN_S, POLICIES, WeekFigures, WeekRun, WeekSettings
from gateway.tools.simulate.week_load import DAY_S, MONDAY_S, WEEK_S, WEEKS_BEFORE, WeekTraffic

WORK_S = 20.0
FACTS = ClassFacts("t4", 4, WORK_S, 1.0, lead_s=900.0)
RULE = ScalingRule(first_token_s=20.0, most_wait_s=600.0)
SETTINGS = WeekSettings(FACTS, RULE, backtest_days=7, interval_s=60.0)


def load(at_s: float) -> float:
    """Devices that are busy: one at night, five from nine to ten and from fifteen to sixteen."""
    return 5.0 if at_s % DAY_S // 3600 in (9, 15) else 1.0


def regular() -> WeekTraffic:
    steps = int(WEEKS_BEFORE * WEEK_S / STEP_S)
    before = [load((number + 0.5) * STEP_S) for number in range(steps)]
    at_s, now = [], BEGIN_S
    while now < BEGIN_S + WEEK_S:
        at_s.append(now)
        now += WORK_S / load(now)
    return WeekTraffic(LoadSeries(MONDAY_S, before), at_s, [WORK_S] * len(at_s), [1.0] * len(at_s))


@pytest.fixture(scope="module")
def found() -> dict[str, WeekFigures]:
    return {name: WeekRun(regular(), SETTINGS, name, 1).run() for name in POLICIES[:3]}


def test_every_request_is_answered_or_refused(found: dict[str, WeekFigures]) -> None:
    for each in found.values():
        assert each.requests == len(regular().at_s)
        assert each.kept + each.refused <= each.requests
        assert each.busy_hours == pytest.approx(each.requests * WORK_S / 3600)
        assert each.busy_hours < each.replica_hours


def test_a_fixed_fleet_of_the_busiest_hour_is_in_time_and_dear(found: dict[str, WeekFigures]) -> None:
    fixed = found["fixed"]
    assert fixed.kept == fixed.requests
    assert fixed.replica_hours == pytest.approx(fixed.most * 168, rel=0.01)
    assert fixed.replica_hours > 2 * found["reactive"].replica_hours


def test_of_regular_days_a_forecast_makes_ready_what_the_reactive_signal_begins_too_late(
    found: dict[str, WeekFigures],
) -> None:
    reactive, predictive = found["reactive"], found["predictive"]
    assert predictive.requests - predictive.kept < 0.5 * (reactive.requests - reactive.kept)
    assert predictive.replica_hours < 1.2 * reactive.replica_hours
    assert predictive.acted_days == 7
    assert predictive.error is not None
    assert predictive.error < 0.1


def state_of(traffic: WeekTraffic) -> str:
    """Of the gate at the week's beginning."""
    run = WeekRun(traffic, SETTINGS, "gated", 1)
    run._learn()
    ((_, learnt),) = run._foresight.learnt.items()
    return learnt.state


def test_the_gate_lets_a_forecast_act_only_where_it_gains() -> None:
    assert state_of(regular()) == "acting"
    flat = WeekTraffic(LoadSeries(MONDAY_S, [1.0] * int(WEEKS_BEFORE * WEEK_S / STEP_S)), *([math.nan],) * 3)
    assert state_of(flat) == "shadow"
