"""Forecasts are made and judged."""

import io
import sys
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.scaling import learning
from gateway.scaling.foresight import LearntForecast
from gateway.scaling.learning import learn
from gateway.scaling.learning_task import LearningTask, task_line
from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.forecast import LoadSeries
from tests.gateway.scheduling.scaling.facts import L4
from tests.gateway.scheduling.scaling.loads import office, weeks

FACTS = replace(L4, lead_s=600.0)


def task(series: LoadSeries, *, acts: bool = False) -> LearningTask:
    return LearningTask(series.start_s, list(series.values), FACTS, ScalingRule(), 0.9, 0.2, 7, acts)


def test_a_forecast_of_regular_weeks_acts_and_says_how_far_it_was_off() -> None:
    series = weeks(office, 21)
    found = LearntForecast.from_json(learn(task(series)), 5.0)
    assert found.state == "acting", found.why
    assert found.error is not None
    assert found.error_as_now is not None
    assert found.error < found.error_as_now
    assert found.backtest is not None
    assert found.backtest["days"] == 7
    assert found.forecast is not None
    assert found.forecast.outlook(series.end_s + 3600, None) is not None


def test_one_that_gains_nothing_is_only_told() -> None:
    found = learn(task(weeks(lambda hour, day: 4.0, 15)))
    assert found["state"] == "shadow"
    assert "too little is late" in found["why"]


def test_with_less_than_two_weeks_it_learns() -> None:
    found = learn(task(weeks(office, 13)))
    assert found == {
        "state": "learning",
        "why": "13.0 days are known; it takes 14, the last 7 to judge it by",
    }


def test_the_process_answers_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = task_line(task(weeks(office, 2))) * 2
    written = io.BytesIO()

    def standard(data: io.BytesIO) -> Any:
        return type("Standard", (), {"buffer": data})

    monkeypatch.setattr(learning, "_limit", lambda: None)
    monkeypatch.setattr(sys, "stdin", standard(io.BytesIO(lines)))
    monkeypatch.setattr(sys, "stdout", standard(written))
    learning.main()
    assert [orjson.loads(each)["state"] for each in written.getvalue().splitlines()] == ["learning"] * 2
