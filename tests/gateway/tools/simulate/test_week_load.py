"""Weeks of requests keep a trace's lengths and bursts, and follow the days."""

from collections.abc import Sequence

import pytest

from gateway.tools.simulate.devices import DEFAULT_MODEL, device_named, model_named, pace_of
from gateway.tools.simulate.inputs import BadSpec, Job
from gateway.tools.simulate.week_load import DAY_S, MONDAY_S, WEEK_S, WEEKS_BEFORE, traffic_of, work_of

PACE = pace_of(device_named("t4"), model_named(DEFAULT_MODEL))
BEGIN_S = MONDAY_S + WEEKS_BEFORE * WEEK_S
JOBS = [Job(number * 20.0, 2000 if number % 2 else 6000, 30) for number in range(200)]


def between(at_s: Sequence[float], day: int, first: float, last: float) -> int:
    begin_s = BEGIN_S + day * DAY_S
    return sum(begin_s + first * 3600 <= each < begin_s + last * 3600 for each in at_s)


def test_the_week_follows_its_shape_and_the_weeks_before_are_its_history() -> None:
    traffic = traffic_of(JOBS, "office", PACE, PACE.slots, 0.3, noise=0.0, seed=1)
    assert len(traffic.before.values) == WEEKS_BEFORE * 7 * 288
    assert list(traffic.at_s) == sorted(traffic.at_s)
    assert BEGIN_S <= traffic.at_s[0] < traffic.at_s[-1] < BEGIN_S + WEEK_S
    noon, night, sunday = (between(traffic.at_s, *each) for each in ((1, 9, 17), (1, 0, 6), (6, 9, 17)))
    assert noon > 3 * night
    assert noon > 3 * sunday
    hours = traffic.before.values[10 * 12 : 16 * 12]
    assert sum(hours) / len(hours) == pytest.approx(0.28, rel=0.25), "nearly as many as are kept busy"
    assert {round(each, 6) for each in traffic.work_s} == {
        round(work_of(job, PACE, PACE.slots)[0], 6) for job in JOBS[:2]
    }


def test_equal_seeds_give_equal_weeks() -> None:
    first, again, other = (
        traffic_of(JOBS, "erratic", PACE, PACE.slots, 0.1, noise=0.3, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_what_cannot_be_a_week_is_refused() -> None:
    with pytest.raises(BadSpec, match="no pace"):
        traffic_of(JOBS[:1], "office", PACE, PACE.slots, 1.0, noise=0.0, seed=1)
    with pytest.raises(BadSpec, match="are more than"):
        traffic_of(JOBS, "jobs", PACE, PACE.slots, 1e6, noise=0.0, seed=1)
