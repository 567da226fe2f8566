"""An event loop that does not turn is told of while it hangs, with where, and once."""

import asyncio
import threading
from typing import Any

import pytest
import structlog

from gateway.observability.metrics import Metrics
from gateway.runtime.machine import QUIET_S, GatewayLoopReporter
from shared.process.stand_stills import BEAT_S
from shared.process.watchdog import LoopWatchdog, watched_loop

BLOCKED_S = 1.0


class House:
    """Time in which the thread looks every ``BEAT_S``, and the loop turns or not."""

    def __init__(self) -> None:
        self.now = self.turned_s = 1000.0
        self.metrics = Metrics()
        self.watchdog = LoopWatchdog(
            GatewayLoopReporter(self.metrics), BLOCKED_S, lambda: ["slow.py:1 handler"], self.now
        )

    def passes(self, for_s: float, *, turning: bool) -> None:
        for _ in range(round(for_s / BEAT_S)):
            self.now += BEAT_S
            if turning:
                self.turned_s = self.now
            self.watchdog.look(self.now, self.turned_s)

    def stands_still(self, for_s: float) -> None:
        """The whole process is stopped: nobody looks."""
        self.now += for_s
        self.watchdog.look(self.now, self.turned_s)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def house() -> House:
    return House()


def events(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs]


def test_a_loop_that_turns_is_none_of_its_business(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        house.passes(100.0, turning=True)
        house.passes(BLOCKED_S - BEAT_S, turning=False)
        house.passes(100.0, turning=True)
    assert logs == []


def test_a_blocked_loop_is_told_while_it_hangs_and_once(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        house.passes(3.0, turning=False)
        assert events(logs) == ["loop_blocked"]
        assert logs[0]["stack"] == ["slow.py:1 handler"]
        assert house.value("trunkline_machine_trouble", trouble="loop") == 1
        house.passes(9.0, turning=False)
        house.passes(10.0, turning=True)
    assert events(logs) == ["loop_blocked", "loop_turns"]
    assert logs[1]["blocked_s"] == 12.0
    assert house.value("trunkline_machine_trouble", trouble="loop") == 0
    assert house.value("trunkline_loop_blocked_seconds_total") == 12.0


def test_episodes_soon_after_one_are_counted_and_not_told(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            house.passes(2.0, turning=False)
            house.passes(2.0, turning=True)
        house.passes(QUIET_S, turning=True)
        house.passes(2.0, turning=False)
    assert events(logs) == ["loop_blocked", "loop_turns", "loop_blocked"]
    assert logs[2]["untold"] == 3
    assert house.value("trunkline_loop_blocked_seconds_total") == 8.0


def test_a_process_that_was_stopped_does_not_accuse_its_loop(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        house.stands_still(12.0)
        house.passes(10.0, turning=True)
    assert events(logs) == ["process_stood_still"]
    assert logs[0]["for_s"] == 11.8
    assert house.value("trunkline_loop_blocked_seconds_total") == 11.75


def test_a_loop_that_does_not_come_back_after_a_stop_is_told(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        house.stands_still(12.0)
        house.passes(2.0, turning=False)
    assert events(logs) == ["process_stood_still", "loop_blocked"]


def block_the_loop(until: threading.Event) -> None:
    until.wait(10.0)


async def test_a_real_loop_is_caught_in_the_act() -> None:
    told, over, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def keep(logger: Any, name: str, event: Any) -> Any:
        if event["event"] == "loop_blocked":
            told.set()
        if event["event"] == "loop_turns":
            loop.call_soon_threadsafe(over.set)
        return event

    with structlog.testing.capture_logs() as lines:
        structlog.get_config()["processors"].insert(0, keep)
        with watched_loop(GatewayLoopReporter(Metrics()), 0.1):
            block_the_loop(told)
            async with asyncio.timeout(60):
                await over.wait()
    blocked, turns = (line for line in lines if line["event"] != "process_stood_still")  # a busy machine does
    assert any("block_the_loop" in entry for entry in blocked["stack"])
    assert turns["blocked_s"] >= 0.1
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]
