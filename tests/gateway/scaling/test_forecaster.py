"""History is written once, forecasts are made in time and read by every process."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.scaling import forecaster
from gateway.scaling.calendar_file import CalendarFile
from gateway.scaling.forecaster import Forecaster, ForecasterSettings
from gateway.scaling.foresight import Foresight
from gateway.scaling.history import MOST_SERIES
from gateway.scaling.learning_task import LearningTask
from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.forecast import STEP_S
from gateway.storage import Store
from gateway.storage.errors import StateError
from gateway.storage.scaling_history import NotedLoad
from tests.gateway.scheduling.scaling.facts import L4
from tests.gateway.scheduling.scaling.loads import MONDAY_S, office, weeks

FACTS = replace(L4, lead_s=600.0)
SETTINGS = ForecasterSettings(backtest_days=7, extra=0.25)


class Process:
    """One of a gateway; ``now`` is on the wall."""

    def __init__(self, store: Store, now: float, *, owns: bool = True, calendar: Path | None = None) -> None:
        self.now, self.owns = now, owns
        self.foresight = Foresight(lambda: self.now)
        self.foresight.note("m", FACTS, ScalingRule(), 1.0)
        file = None if calendar is None else CalendarFile(calendar)
        about = (self.foresight, store.scaling_history, lambda: self.owns, file)
        self.forecaster = Forecaster(SETTINGS, *about)

    def pass_step(self, load: float) -> None:
        for _ in range(10):
            self.foresight.note("m", FACTS, ScalingRule(), load)
            self.now += STEP_S / 10


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "state")


def remember(store: Store, days: int) -> float:
    """Fill the store with regular days; the time at their end."""
    series = weeks(office, days)
    middles = [series.start_s + (number + 0.5) * STEP_S for number in range(len(series.values))]
    store.scaling_history.note(
        [NotedLoad("m", "l4", at_s, load) for at_s, load in zip(middles, series.values, strict=True)]
    )
    return series.end_s


async def test_a_forecast_is_made_in_a_process_of_its_own_and_every_process_reads_it(store: Store) -> None:
    end_s = remember(store, 21)
    owner, other = Process(store, end_s + 1), Process(store, end_s + 1, owns=False)
    with structlog.testing.capture_logs() as logs:
        await owner.forecaster.look()
    assert [each["state"] for each in logs if each["event"] == "scaling_forecast_changed"] == ["acting"]
    await other.forecaster.look()
    for each in (owner, other):
        found = each.foresight.foresee("m", FACTS)
        assert found.verdict.state == "acting", found.verdict.why
        assert found.per_s > 0
        assert found.verdict.made_s == end_s + 1


async def test_only_the_process_that_acts_for_all_writes_the_history(store: Store) -> None:
    owner, other = Process(store, MONDAY_S), Process(store, MONDAY_S, owns=False)
    for each in (owner, other):
        each.pass_step(2.0)
        each.now += 1
        await each.forecaster.look()
        await each.forecaster.look()
    _, values = store.scaling_history.read([("m", "l4")], MONDAY_S)["m", "l4"]
    assert [each for each in values if not math.isnan(each)] == [pytest.approx(2.0, abs=0.2)]
    assert owner.foresight.foresee("m", FACTS).verdict.why.startswith("0.0 days are known")


async def test_forecasts_are_made_anew_when_it_is_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(store, 1)
    made: list[int] = []

    async def learnt(lines: Sequence[bytes]) -> list[dict[str, Any]]:
        made.append(len(lines))
        return [{"state": "learning", "why": "it does"} for _ in lines]

    monkeypatch.setattr(forecaster, "_learnt", learnt)
    owner = Process(store, MONDAY_S + 86_400)
    known = dict(owner.foresight.known)
    owner.foresight.known.clear()
    await owner.forecaster.look()
    assert made == [], "nothing was decided yet"
    owner.foresight.known.update(known)
    for passed_s in (0, 60, SETTINGS.every_s, 60):
        owner.now += passed_s
        await owner.forecaster.look()
    assert made == [1, 1]
    owner.now -= 7200  # the clock was set back
    await owner.forecaster.look()
    assert made == [1, 1, 1]


async def test_more_series_than_are_kept_may_come_while_forecasts_are_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    owner = Process(store, remember(store, 1) + 1)
    history = store.scaling_history
    read = history.read

    def read_late(*which: Any) -> Any:
        for number in range(MOST_SERIES):
            owner.foresight.note(f"n{number}", FACTS, ScalingRule(), 1.0)
        return read(*which)

    async def learnt(lines: Sequence[bytes]) -> list[dict[str, Any]]:
        made.append(len(lines))
        return [{"state": "learning", "why": "it does"} for _ in lines]

    monkeypatch.setattr(history, "read", read_late)
    monkeypatch.setattr(forecaster, "_learnt", learnt)
    await owner.forecaster.look()
    assert ("m", "l4") not in owner.foresight.known
    assert made == [1]


async def test_what_events_changed_is_not_learnt(store: Store, tmp_path: Path) -> None:
    calendar = tmp_path / "calendar.toml"
    calendar.write_text(
        '[[event]]\nname = "x"\nfactor = 2.0\nstarts = 2023-11-20T00:00:00Z\nends = 2023-11-20T06:00:00Z\n'
    )
    end_s = remember(store, 1)
    owner = Process(store, end_s + 1, calendar=calendar)
    await owner.forecaster.look()
    start_s, values = store.scaling_history.read([("m", "l4")], MONDAY_S)["m", "l4"]
    task: LearningTask = owner.forecaster._task(
        ("m", "l4"), (FACTS, ScalingRule()), start_s, values, owner.now
    )
    assert sum(each is None for each in task.values) == 6 * 3600 / STEP_S
    assert len(owner.foresight.events) == 1


async def test_bursts_of_the_days_of_the_back_test_are_learnt_from(store: Store) -> None:
    end_s, history = remember(store, 1), store.scaling_history
    known = bytes([1, 2, 3]) * 10
    history.note(
        [NotedLoad("m", "l4", end_s + 10, 1.0, known), NotedLoad("m", "l4", end_s + 310, 1.0, known)]
    )
    owner = Process(store, end_s + 2 * STEP_S + 1)
    start_s, values = history.read([("m", "l4")], MONDAY_S)["m", "l4"]
    about = ("m", "l4"), (FACTS, ScalingRule()), start_s, values, owner.now
    bursts = history.read_bursts([("m", "l4")], MONDAY_S)["m", "l4"]
    task: LearningTask = owner.forecaster._task(*about, bursts)
    assert len(task.bursts) == SETTINGS.backtest_days * 288 * 30
    assert task.bursts.strip(bytes(1)) == known * 2
    assert task.bursts.endswith(known * 2)
    assert owner.forecaster._task(*about).bursts == b"", "a history of before has none"


class Failing:
    """A store that cannot write now."""

    def __init__(self) -> None:
        self.failing = True
        self.noted: list[NotedLoad] = []

    def note(self, loads: Sequence[NotedLoad]) -> None:
        if self.failing:
            raise StateError("the disk is full")
        self.noted += loads

    def __getattr__(self, name: str) -> Any:
        return lambda *about: []


async def test_what_cannot_be_written_is_kept_and_told_once(store: Store) -> None:
    failing, process = Failing(), Process(store, MONDAY_S)
    process.forecaster._store = failing
    process.pass_step(2.0)
    process.now += 1
    with structlog.testing.capture_logs() as logs:
        await process.forecaster.look()
        await process.forecaster.look()
        failing.failing = False
        await process.forecaster.look()
    assert [each["event"] for each in logs] == ["scaling_forecast_failed"]
    assert len(failing.noted) == 1


async def test_a_process_that_fails_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecaster, "CHILD", ("sh", "-c", "exit 3"))
    owner = Process(store, remember(store, 1) + 1)
    with structlog.testing.capture_logs() as logs:
        await owner.forecaster.look()
    assert logs[0]["error"] == "the process that makes them ended with 3"
    monkeypatch.setattr(forecaster, "CHILD", ("sh", "-c", 'printf \'{"state":"lea\'; kill -9 $$'))
    with pytest.raises(forecaster.LearningFailed, match="ended with -9"):
        await forecaster._learnt([b"{}"])
    monkeypatch.setattr(forecaster, "CHILD", ("/no/such/program",))
    with pytest.raises(forecaster.LearningFailed, match="can be started"):
        await forecaster._learnt([])
