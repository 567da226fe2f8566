"""Decisions under a manual clock, by what is seen."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from gateway.scaling.autoscaler import FORGET_S, Autoscaler
from gateway.scaling.foresight import Foresight
from gateway.scaling.observation import SeenModel, SeenReplica
from gateway.scaling.settings import ClassSettings, ScalingSettings
from gateway.scaling.verdict import ModelVerdict
from gateway.scheduling.learning.performance import Performance
from gateway.scheduling.scaling.data import ScalingRule
from tests.gateway.scaling.test_foresight import LEARNT, NOW_S, event

RULE = ScalingRule()


class Site:
    def __init__(self, rule: ScalingRule = RULE, **classes: ClassSettings) -> None:
        self.now = 1000.0
        self.seen: dict[str, SeenModel] = {}
        self.changes: list[tuple[str, str, int, int]] = []
        settings = ScalingSettings(rule, classes, interval_s=0.001)
        self.scaler = Autoscaler(settings, self.see, Performance(), lambda: self.now)
        self.scaler.on_change.append(self.changed)

    async def see(self) -> dict[str, SeenModel]:
        return self.seen

    def changed(self, verdict: ModelVerdict, device: str, before: int, after: int) -> None:
        self.changes.append((verdict.model, device, before, after))

    def has(self, count: int, **more: object) -> None:
        replicas = {f"a{n}": SeenReplica(f"a{n}", "l4", 4, True) for n in range(count)}
        self.seen = {"m": SeenModel(hold_s=4.0, replicas=replicas, **more)}  # type: ignore[arg-type]

    async def wanted(self, after_s: float = 5.0) -> int:
        self.now += after_s
        await self.scaler.decide()
        return self.scaler.verdicts["m"].wanted


async def test_as_many_are_wanted_as_what_comes_needs_and_fewer_only_after_the_window() -> None:
    site = Site()
    site.has(1, per_s=3.0, idle_s=0.0)
    most = await site.wanted()
    assert most > 3
    site.has(most, per_s=0.1, idle_s=0.0)
    assert await site.wanted(200.0) == most
    assert await site.wanted(200.0) == 1
    assert site.changes == [("m", "l4", 1, most), ("m", "l4", most, 1)]
    assert len(site.scaler.verdicts["m"].classes["l4"].ends) == most - 1


async def test_what_is_there_when_it_begins_is_kept_for_the_window() -> None:
    site = Site()
    site.has(4, idle_s=0.0, per_s=0.1)
    assert await site.wanted() == 4
    assert await site.wanted(301.0) == 1


async def test_the_time_until_a_replica_is_ready_is_measured() -> None:
    site = Site()
    site.has(1, per_s=3.0)
    most = await site.wanted()
    assert site.scaler.verdicts["m"].classes["l4"].lead_s == 180.0
    site.has(most, per_s=3.0)
    await site.wanted(42.0)
    await site.wanted()
    assert site.scaler.verdicts["m"].classes["l4"].lead_s == 42.0


async def test_a_class_that_is_not_there_yet_is_wanted_where_it_is_cheaper() -> None:
    site = Site(l4=ClassSettings(price_hour=1.0), h100=ClassSettings(price_hour=0.5, slots=64))
    site.has(2, per_s=1.5)
    await site.wanted()
    found = site.scaler.verdicts["m"].classes
    assert (found["h100"].wanted, found["h100"].ready) == (1, 0)
    assert found["l4"].wanted == 2, "until the other is ready"


async def test_metrics_say_it_by_model_and_class_and_odd_devices_share_a_label() -> None:
    site = Site()
    odd = {name: SeenReplica(name, f"card {name}", 4, True) for name in "xy"}
    site.has(1)
    site.seen["m"].replicas.update(odd)
    await site.wanted()
    families = {each.name: each.values for each in site.scaler.figures()}
    assert families["scaling_ready_replicas"] == {("m", "l4"): 1.0, ("m", "other"): 2.0}
    assert set(families) == {
        "scaling_wanted_replicas",
        "scaling_ready_replicas",
        "scaling_queued_gpu_seconds",
    }


async def test_who_listens_is_told_at_once_and_after_every_decision() -> None:
    site = Site()
    site.has(1)
    heard = site.scaler.decisions()
    assert await anext(heard) == {}
    following = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0)
    await site.scaler.decide()
    assert "m" in await following


async def test_a_fault_is_logged_and_the_next_decision_is_made() -> None:
    site = Site()
    seen, failing = asyncio.Event(), [True]

    async def see() -> dict[str, SeenModel]:
        if failing:
            failing.clear()
            raise RuntimeError("no")
        seen.set()
        return {}

    site.scaler._see = see
    with structlog.testing.capture_logs() as logs:
        running = asyncio.ensure_future(site.scaler.run())
        await seen.wait()
        running.cancel()
    assert [each["event"] for each in logs] == ["scaling_failed"]


async def test_what_was_not_seen_for_a_day_is_forgotten() -> None:
    site = Site()
    site.has(4)
    await site.wanted()
    site.seen = {}
    site.now += FORGET_S + 1
    await site.scaler.decide()
    assert site.scaler.verdicts == {}
    assert site.scaler._wanted == {}


async def test_nothing_is_wanted_of_what_nobody_asks_for_where_the_rule_allows_none() -> None:
    site = Site(replace(RULE, min_replicas=0, idle_s=60.0))
    site.has(1, idle_s=0.0, per_s=0.2)
    await site.wanted()
    site.has(1, idle_s=100.0)
    assert await site.wanted(100.0) == 1
    site.has(1, idle_s=500.0)
    assert await site.wanted(400.0) == 0
    assert not site.scaler.verdicts["m"].active
    site.has(0, waiting=1)
    assert await site.wanted() == 1
    assert list(site.scaler.verdicts["m"].classes) == ["l4"], "on which it was served last"


async def test_what_is_foreseen_is_made_ready_for_and_metrics_say_whether_it_acts() -> None:
    site = Site()
    ahead = Foresight(lambda: NOW_S)
    ahead.learnt["m", "l4"] = LEARNT
    site.scaler._foresight = ahead
    site.has(1, per_s=0.1)
    most = await site.wanted()
    assert most > 5
    verdict = site.scaler.verdicts["m"]
    assert "are foreseen" in verdict.why
    assert verdict.as_json()["classes"]["l4"]["forecast"]["state"] == "acting"
    families = {each.name: each.values for each in site.scaler.figures()}
    assert families["scaling_forecast_state"] == {("m", "l4"): 3.0}
    assert families["scaling_forecast_gpu_seconds"] == {("m", "l4"): 9.0}
    assert families["scaling_forecast_error"] == {("m", "l4"): 0.1}
    assert ahead.known["m", "l4"][1] == RULE


async def test_events_have_replicas_ready_as_far_as_the_rule_allows() -> None:
    site = Site(replace(RULE, max_replicas=4), h100=ClassSettings())
    ahead = Foresight(lambda: NOW_S)
    ahead.events = [event(0.05, replicas=3)]
    site.scaler._foresight = ahead
    site.has(1)
    assert await site.wanted() == 3
    ahead.events = [event(0.05, replicas=9, classes=["h100"])]
    await site.wanted()
    assert site.scaler.verdicts["m"].classes["h100"].wanted == 4


async def test_what_came_in_the_latest_seconds_is_noted_beside_the_minute() -> None:
    site = Site()
    noted: list[tuple[float, float | None]] = []
    foresight = Foresight(lambda: NOW_S)

    def note(model: str, device: str, load: float, at_s: float, piece: float | None = None) -> None:
        noted.append((load, piece))

    foresight.history.note = note  # type: ignore[method-assign]
    site.scaler._foresight = foresight
    site.has(1, per_s=3.0, piece_per_s=9.0)
    await site.wanted()
    site.has(1, per_s=3.0)
    await site.wanted()
    (minute, piece), (_, not_told) = noted
    assert piece == pytest.approx(3 * minute)
    assert not_told is None
