"""Every request of a week ends once, and replicas are what was wanted, in time."""

import bisect
import math
import random
from dataclasses import replace

import numpy
import pytest

from gateway.scaling.learning import LEAST_BACKTEST_DAYS
from gateway.scheduling.scaling.backtest import BacktestVerdict, backtest
from gateway.scheduling.scaling.bursts import PIECES
from gateway.scheduling.scaling.data import ClassFacts, ScalingRule
from gateway.scheduling.scaling.forecast import STEP_S, LoadSeries
from gateway.scheduling.scaling.pattern import DAY_STEPS, PatternLearner
from gateway.tools.simulate.devices import DEFAULT_MODEL, device_named, model_named, pace_of
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.week import BEGIN_S, POLICIES, WeekFigures, WeekRun, WeekSettings
from gateway.tools.simulate.week_load import (
    DAY_S,
    MONDAY_S,
    WEEK_S,
    WEEKS_BEFORE,
    WeekTraffic,
    bursts_of,
    traffic_of,
    work_of,
)

WORK_S = 20.0
FACTS = ClassFacts("t4", 4, WORK_S, 1.0, lead_s=900.0)
RULE = ScalingRule(first_token_s=20.0, most_wait_s=600.0)
SETTINGS = WeekSettings(FACTS, RULE, backtest_days=2, interval_s=60.0)


def load(at_s: float) -> float:
    """Devices that are busy: one at night, five from nine to ten and from fifteen to sixteen."""
    return 5.0 if at_s % DAY_S // 3600 in (9, 15) else 1.0


DAYS = 3
"""Of the week: each is as the others."""


def regular() -> WeekTraffic:
    steps = int(WEEKS_BEFORE * WEEK_S / STEP_S)
    before = [load((number + 0.5) * STEP_S) for number in range(steps)]
    at_s, now = [], BEGIN_S
    while now < BEGIN_S + DAYS * DAY_S:
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
    assert fixed.replica_hours == pytest.approx(fixed.most * DAYS * 24, rel=0.01)
    assert fixed.replica_hours > 2 * found["reactive"].replica_hours


def test_of_regular_days_a_forecast_makes_ready_what_the_reactive_signal_begins_too_late(
    found: dict[str, WeekFigures],
) -> None:
    reactive, predictive = found["reactive"], found["predictive"]
    assert predictive.requests - predictive.kept < 0.5 * (reactive.requests - reactive.kept)
    assert predictive.replica_hours < 1.2 * reactive.replica_hours
    assert predictive.acted_days == DAYS
    assert predictive.error is not None
    assert predictive.error < 0.1


def state_of(traffic: WeekTraffic) -> str:
    """Of the gate at the week's beginning."""
    run = WeekRun(traffic, replace(SETTINGS, backtest_days=LEAST_BACKTEST_DAYS), "gated", 1)
    run._learn()
    ((_, learnt),) = run._foresight.learnt.items()
    return learnt.state


def test_the_gate_lets_a_forecast_act_only_where_it_gains() -> None:
    assert state_of(regular()) == "acting"
    flat = WeekTraffic(LoadSeries(MONDAY_S, [1.0] * int(WEEKS_BEFORE * WEEK_S / STEP_S)), *([math.nan],) * 3)
    assert state_of(flat) == "shadow"


# --- The back-test beside the simulated week ---

T4 = pace_of(device_named("t4"), model_named(DEFAULT_MODEL))
LATE_OFF, HOURS_OFF = 0.01, 0.05
"""How far what the back-test says may be from the simulated days: points of the share that is late, and the
share of the replica-hours."""


def bursty_jobs() -> list[Job]:
    """An hour of gusts: some twenty requests within seconds, several times a minute or not for minutes."""
    chance, found, now = random.Random(3), list[Job](), 0.0
    while now < 3600.0:
        now += chance.expovariate(1 / 25)
        for _ in range(round(chance.expovariate(1 / 20)) + 1):
            now += chance.expovariate(3.0)
            found.append(Job(now, chance.choice((500, 1000, 2000, 4000)), chance.randint(10, 40)))
    return found


def judged(shape: str, days: int) -> tuple[WeekFigures, WeekFigures, BacktestVerdict]:
    """So many days simulated with and without a forecast, and what the back-test says of the same days."""
    jobs = bursty_jobs()
    works = [work_of(job, T4, T4.slots) for job in jobs]
    means = [sum(each) / len(works) for each in zip(*works, strict=True)]
    high_s = sorted(read_s for _, read_s in works)[int(0.99 * len(works))]
    facts = ClassFacts("t4", T4.slots, means[0], high_s, lead_s=600.0, usual_first_s=means[1])
    rule = ScalingRule(first_token_s=5.0)
    whole = traffic_of(jobs, shape, T4, T4.slots, 2.0, noise=0.15, seed=4)
    count = bisect.bisect(whole.at_s, BEGIN_S + days * DAY_S)
    at_s, work_s, read_s = whole.at_s[:count], whole.work_s[:count], whole.read_s[:count]
    traffic = WeekTraffic(whole.before, at_s, work_s, read_s)
    settings = WeekSettings(facts, rule, backtest_days=1)
    reactive, ahead = (WeekRun(traffic, settings, name, 1).run() for name in ("reactive", "predictive"))
    since_s = numpy.asarray(at_s) - BEGIN_S
    steps = days * DAY_STEPS
    loads = numpy.bincount((since_s // STEP_S).astype(int), numpy.asarray(work_s), steps) / STEP_S
    bursts = bursts_of(since_s)[: steps * PIECES]
    series = LoadSeries(MONDAY_S, [*whole.before.values, *loads.tolist()], bursts)
    _, forecasts = PatternLearner(series, settings.quantile).held_out(days, facts.lead_s)
    return reactive, ahead, backtest(series, forecasts, facts, rule, 0.15, acts=False)


@pytest.mark.parametrize(
    ("shape", "days", "gains"), [("office", 1, False), ("jobs", 2, True), ("erratic", 1, False)]
)
def test_the_back_test_says_nearly_what_the_simulated_days_give(shape: str, days: int, gains: bool) -> None:
    reactive, ahead, verdict = judged(shape, days)
    for simulated, said in ((reactive, verdict.reactive), (ahead, verdict.forecast)):
        late = 1.0 - simulated.kept / simulated.requests
        assert said.late == pytest.approx(late, abs=LATE_OFF)
        assert said.replica_hours == pytest.approx(simulated.replica_hours, rel=HOURS_OFF)
    assert verdict.beats is gains, verdict.why
    assert (ahead.kept - reactive.kept > 0.1 * (reactive.requests - reactive.kept)) is gains
