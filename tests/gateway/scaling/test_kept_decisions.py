"""Decisions on idle models are made once, and anew as soon as anything but the time is another."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.scaling import autoscaler
from gateway.scaling.foresight import Foresight
from gateway.scaling.kept_decisions import RENEWED_S
from gateway.scaling.observation import SeenModel
from gateway.scheduling.scaling.data import ScalingPlan
from gateway.scheduling.scaling.forecast import STEP_S
from gateway.scheduling.scaling.plan import plan
from tests.gateway.scaling.test_autoscaler import RULE, Site
from tests.gateway.scaling.test_foresight import LEARNT, NOW_S, event

NONE_KEPT = replace(RULE, min_replicas=0, idle_s=60.0)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[ScalingPlan]:
    """Those that were made."""
    made: list[ScalingPlan] = []

    def noted(*arguments: Any) -> ScalingPlan:
        made.append(plan(*arguments))
        return made[-1]

    monkeypatch.setattr(autoscaler, "plan", noted)
    return made


async def test_a_model_that_nobody_asks_for_is_decided_on_once_a_minute(plans: list[ScalingPlan]) -> None:
    site = Site()
    site.has(1)
    first = await site.wanted()
    verdict = site.scaler.verdicts["m"]
    for _ in range(int(RENEWED_S / 5.0) - 1):
        assert await site.wanted() == first
        assert site.scaler.verdicts["m"] is verdict
    assert len(plans) == 1
    await site.wanted()
    assert len(plans) == 2


def asked(seen: SeenModel) -> None:
    seen.per_s = 0.1


def waited_for(seen: SeenModel) -> None:
    seen.batch_waiting = 1


def running(seen: SeenModel) -> None:
    seen.replicas["a0"].in_flight = 1


def slower(seen: SeenModel) -> None:
    seen.replicas["a0"].pace = 2.0


def not_ready(seen: SeenModel) -> None:
    seen.replicas["a0"].ready = False


def gone(seen: SeenModel) -> None:
    del seen.replicas["a0"]


@pytest.mark.parametrize("change", [asked, waited_for, running, slower, not_ready, gone])
async def test_it_is_decided_on_at_once_when_something_changes(
    change: Callable[[SeenModel], None], plans: list[ScalingPlan]
) -> None:
    site = Site()
    site.has(1)
    await site.wanted()
    await site.wanted()
    change(site.seen["m"])
    await site.wanted()
    assert len(plans) == 2


async def test_a_longer_round_trip_waits_for_the_next_minute(plans: list[ScalingPlan]) -> None:
    site = Site()
    site.has(1)
    await site.wanted()
    site.seen["m"].replicas["a0"].rtt_s = 0.5
    await site.wanted()
    assert len(plans) == 1


async def test_more_than_is_needed_is_looked_at_until_it_is_taken_away(plans: list[ScalingPlan]) -> None:
    site = Site()
    site.has(4)
    await site.wanted()
    assert await site.wanted() == 4
    assert len(plans) == 2


async def test_the_window_of_what_was_needed_goes_on_meanwhile() -> None:
    site = Site(replace(RULE, min_replicas=2, stabilisation_s=300.0))
    site.has(2)
    await site.wanted()
    for _ in range(10):
        await site.wanted()
    site.scaler.settings = replace(site.scaler.settings, rule=RULE)
    site.seen["m"].hold_s = 5.0
    assert await site.wanted() == 2
    assert await site.wanted(294.0) == 2, "two were needed less than 300 s ago"
    assert await site.wanted(12.0) == 1


async def test_where_none_is_kept_without_requests_the_time_since_the_last_one_counts(
    plans: list[ScalingPlan],
) -> None:
    site = Site(NONE_KEPT)
    site.has(1, idle_s=10.0)
    assert await site.wanted() == 1
    site.seen["m"].idle_s = 400.0
    assert await site.wanted(390.0) == 0
    assert len(plans) == 2


async def test_a_request_that_is_over_already_counts_where_none_was_kept(plans: list[ScalingPlan]) -> None:
    site = Site(NONE_KEPT)
    site.has(0, idle_s=math.inf)
    assert await site.wanted() == 0
    site.has(1, idle_s=math.inf)
    await site.wanted(400.0)
    await site.wanted(400.0)
    made = len(plans)
    assert await site.wanted() == 0
    assert len(plans) == made
    site.seen["m"].idle_s = 3.0
    assert await site.wanted() == 1
    assert len(plans) == made + 1


def foresighted(site: Site) -> Foresight:
    site.scaler._foresight = ahead = Foresight(lambda: NOW_S)
    return ahead


async def test_events_and_forecasts_count_at_once(plans: list[ScalingPlan]) -> None:
    site = Site()
    ahead = foresighted(site)
    site.has(1)
    assert await site.wanted() == 1
    assert await site.wanted() == 1
    assert len(plans) == 1
    ahead.events = [event(0.05, replicas=3)]
    assert await site.wanted() == 3
    ahead.events = []
    site.has(3)
    ahead.learnt["m", "l4"] = LEARNT
    assert await site.wanted() > 3
    await site.wanted()
    assert len(plans) == 4


async def test_that_nothing_was_asked_for_is_noted_all_the_same() -> None:
    site = Site()
    ahead = foresighted(site)
    ahead.wall = lambda: 6000 * STEP_S + site.now - 1000.0
    site.has(1, piece_per_s=0.0)
    while site.now < 1000.0 + STEP_S:
        await site.wanted()
    (noted,) = ahead.history.take(6001 * STEP_S, writes=True)
    assert (noted.model, noted.load) == ("m", 0.0)


async def test_a_model_that_is_no_longer_seen_is_not_kept() -> None:
    site = Site()
    site.has(1)
    await site.wanted()
    site.seen = {}
    await site.scaler.decide()
    assert site.scaler.verdicts == {}
    assert not site.scaler._kept._kept
