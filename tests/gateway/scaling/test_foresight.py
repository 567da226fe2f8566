"""What is foreseen counts only while it may."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.scaling.foresight import Foresight, LearntForecast
from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.events import KnownEvent
from gateway.scheduling.scaling.forecast import STEP_S, Forecast
from tests.gateway.scheduling.scaling.facts import L4

NOW_S = 6000 * STEP_S
FACTS = replace(L4, request_s=2.0, lead_s=300.0)
FORECAST = Forecast(NOW_S - 10 * STEP_S, [2.0] * 300, [1.0, 0.0], [0.0, 1.0])
LEARNT = LearntForecast("acting", "it beats", NOW_S, FORECAST, 0.1, 0.2, 0.9, {"days": 7})


def foresight(learnt: LearntForecast | None = LEARNT) -> Foresight:
    found = Foresight(lambda: NOW_S)
    if learnt is not None:
        found.learnt["m", "l4"] = learnt
    return found


def event(hours: float, **more: object) -> KnownEvent:
    starts = datetime.fromtimestamp(NOW_S, UTC) + timedelta(hours=hours)
    return KnownEvent("launch", starts, starts + timedelta(hours=1), **more)  # type: ignore[arg-type]


def test_what_acts_is_the_upper_end_in_requests_of_today() -> None:
    found = foresight().foresee("m", FACTS)
    assert found.per_s == 9.0 / 2.0
    assert (found.verdict.state, found.verdict.expected_gpu_s, found.verdict.upper_gpu_s) == (
        "acting",
        4.0,
        9.0,
    )
    assert (found.verdict.error, found.verdict.backtest) == (0.1, {"days": 7})


@pytest.mark.parametrize(
    ("learnt", "state", "why"),
    [
        (None, "learning", "no forecast was made yet"),
        (LearntForecast("learning", "3 days", NOW_S), "learning", "3 days"),
        (replace(LEARNT, state="shadow", why="it saves too little"), "shadow", "it saves too little"),
        (replace(LEARNT, forecast=replace(FORECAST, start_s=0.0)), "shadow", "of a time that is over"),
    ],
)
def test_else_nothing_is_foreseen_and_says_why(learnt: LearntForecast | None, state: str, why: str) -> None:
    found = foresight(learnt).foresee("m", FACTS)
    assert (found.per_s, found.verdict.state) == (0.0, state)
    assert why in found.verdict.why


def test_operators_may_have_it_only_told_or_not_made() -> None:
    told = foresight()
    told.may_act = False
    found = told.foresee("m", FACTS)
    assert (found.per_s, found.verdict.state, found.verdict.upper_gpu_s) == (0.0, "shadow", 9.0)
    told.off = "no numpy"
    assert told.foresee("m", FACTS).verdict.why == "no numpy"


def test_an_event_multiplies_what_is_usual_from_when_a_replica_has_to_be_begun() -> None:
    ahead = foresight()
    ahead.events = [event(0.05, factor=3.0), event(0.2, factor=100.0)]
    found = ahead.foresee("m", FACTS)
    assert found.per_s == 9.0 * 3.0 / 2.0
    assert found.verdict.events == ("launch",)


def test_without_a_forecast_it_multiplies_what_came_before_it() -> None:
    now = [NOW_S]
    ahead = Foresight(lambda: now[0])
    ahead.events = [event(0.05, factor=3.0)]

    def pass_step(load: float) -> None:
        for _ in range(10):
            ahead.note("m", FACTS, ScalingRule(), load)
            now[0] += STEP_S / 10

    now[0] -= STEP_S
    pass_step(2.0)
    ahead.note("m", FACTS, ScalingRule(), 2.0)
    assert ahead.foresee("m", FACTS).per_s == 3.0 * 2.0 / 2.0
    for _ in range(3):
        pass_step(6.0)
    assert ahead.foresee("m", FACTS).per_s == 3.0, "the event itself is not multiplied"


def test_replicas_of_events_are_of_the_classes_that_are_named_or_of_all_together() -> None:
    ahead = foresight(None)
    ahead.events = [event(-0.5, replicas=5), event(-0.5, replicas=3, classes=["l4"])]
    found = ahead.foresee("m", FACTS)
    assert (found.of_class, found.together, found.per_s) == (3, 5, 0.0)


def test_a_forecast_of_no_known_state_is_refused() -> None:
    with pytest.raises(ValueError, match="perhaps"):
        LearntForecast.from_json({"state": "perhaps", "why": ""}, 0.0)
