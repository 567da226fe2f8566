"""What an engine is as a whole, and what of it is told in the log."""

from typing import Any

import pytest
import structlog

from agent.engines.http.states import EngineReports, engine_state, reason_nothing_is_served
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus

LOADED, LOADING = DeploymentStatus.LOADED, DeploymentStatus.LOADING
LOADABLE, FAILED = DeploymentStatus.LOADABLE, DeploymentStatus.FAILED


def served(*statuses: DeploymentStatus) -> list[DeploymentState]:
    return [
        DeploymentState(
            f"e/{number}", f"m{number}", status=status, reason="" if status is LOADED else str(status)
        )
        for number, status in enumerate(statuses)
    ]


@pytest.mark.parametrize(
    ("statuses", "status", "reason"),
    [
        ((FAILED, LOADED), LOADED, ""),
        ((FAILED, LOADING, LOADABLE), LOADING, "loading"),
        ((FAILED, LOADABLE), LOADABLE, "loadable"),
        ((FAILED, FAILED), FAILED, "failed"),
        ((), FAILED, "it lists none"),
    ],
)
def test_an_engine_is_what_the_best_of_its_deployments_is(
    statuses: tuple[DeploymentStatus, ...], status: DeploymentStatus, reason: str
) -> None:
    state = engine_state("e", served(*statuses), kind="vllm", without="it lists none")
    assert state == EngineState("e", status, reason, "vllm")


def test_the_reason_why_nothing_is_served_names_every_engine() -> None:
    failed, loading = EngineState("a", FAILED, "refused"), EngineState("b", LOADING)
    assert reason_nothing_is_served([failed, loading]) == "a is failed: refused; b is loading"
    assert reason_nothing_is_served([], "none is found") == "none is found"
    for status in (LOADED, LOADABLE):
        assert reason_nothing_is_served([failed, EngineState("c", status)]) == ""
    assert len(reason_nothing_is_served([EngineState("a" * 200, FAILED, "r" * 500)])) == 512


class Told:
    """Reports, and what they said."""

    def __init__(self) -> None:
        self.reports = EngineReports()
        self.lines: list[tuple[str, str]] = []

    def note(self, now_s: float, state: EngineState, *, started_here: bool = False) -> list[tuple[Any, ...]]:
        with structlog.testing.capture_logs() as logs:
            self.reports.note(state, now_s, started_here=started_here)
        return [(line["event"], line["log_level"], line.get("reason")) for line in logs]


def test_why_an_engine_cannot_be_served_is_said_once_for_each_reason() -> None:
    told = Told()
    refused, broken = EngineState("e", FAILED, "refused"), EngineState("e", FAILED, "answers 500")
    assert told.note(0.0, refused) == [("engine cannot be served", "warning", "refused")]
    assert [told.note(float(second), refused) for second in range(1, 60)] == [[]] * 59
    assert told.note(60.0, broken) == [("engine cannot be served", "warning", "answers 500")]
    assert told.note(61.0, EngineState("e", LOADED)) == []
    assert told.note(62.0, refused) == []  # whoever watches it says that it is lost
    assert told.note(63.0, broken) == [("engine cannot be served", "warning", "answers 500")]


def test_of_an_engine_that_the_agent_starts_its_supervisor_says_how_it_ended() -> None:
    told = Told()
    assert told.note(0.0, EngineState("e", FAILED, "ended"), started_here=True) == []
    assert told.note(1.0, EngineState("e", FAILED, "ended again"), started_here=True) == []


def test_how_far_loading_is_is_said_every_few_seconds_and_then_more_seldom() -> None:
    told, said = Told(), []
    for second in range(121):
        state = EngineState("e", LOADING, "reading", "", second / 200, float(second), 200.0)
        if told.note(float(second), state, started_here=True):
            said.append(second)
    assert said == [0, 5, 10, 15, 20, 25, 30, 60, 90, 120]


def test_a_line_about_loading_says_what_is_done_and_how_long_it_takes() -> None:
    told = Told()
    with structlog.testing.capture_logs() as logs:
        told.reports.note(EngineState("e", LOADING, "reading", "", None, 0.0, 24.5), 0.0, started_here=True)
        told.reports.note(EngineState("e", LOADING, "reading", "", 0.4, 6.0, 24.5), 6.0, started_here=True)
        told.reports.note(EngineState("f", LOADING, "loading its model"), 0.0, started_here=False)
        told.reports.note(EngineState("f", LOADING, "loading its model"), 7.0, started_here=False)
    assert [(line["event"], line.get("load_s"), line.get("so_far")) for line in logs] == [
        ("engine is loading", 24.5, None),
        ("engine is still loading", None, "40 %, 6 s of about 24 s"),
        ("engine is loading", None, None),
        ("engine is still loading", None, "7 s"),
    ]
