"""What the gateway is told, and when."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from agent.capacity.engine_registry import EngineRegistry
from shared.link.publisher import DRIFT_S, TICK_S, Publisher
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentStatus, DeploymentState, DeploymentStatus, Drain, GpuState
from tests.agent.support.canned import until
from tests.agent.support.joined import Joined, PlayedBackend
from tests.support.clock import ManualClock
from tests.support.tunnels import Recorder

LOADED = DeploymentState(id="e/m", model="m", slots=4)


class Here:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = PlayedBackend(LOADED)
        self.registry = EngineRegistry(self.clock)
        self.gpus: tuple[GpuState, ...] = ()
        self.publisher = Publisher(self.registry, lambda: self.gpus, self.clock)
        self.registry.add(self.backend)
        self.gateway = Recorder()
        self.joined = Joined(Recorder(), self.gateway)

    def states(self) -> list[DeploymentStatus]:
        return [value.deployments[0].status for name, value in self.gateway.calls if name == "state"]

    def slots(self) -> list[dict[str, int]]:
        return [value for name, value in self.gateway.calls if name == "slots"]

    async def settled(self) -> None:
        """Whatever was to be sent has been."""
        await asyncio.sleep(0)  # the turn in which changes are put together
        marker = self.gateway.names().count("drain")
        self.joined.agent.send_drain(Drain("marker", 0.0))
        await until(lambda: self.gateway.names().count("drain") > marker)


async def test_a_new_session_hears_everything_at_once() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    assert here.states() == [DeploymentStatus.LOADED]
    assert here.slots() == [{"e/m": 4}]
    assert here.gateway.names()[:2] == ["state", "slots"]


async def test_many_changes_in_one_turn_are_told_once() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    for slots in range(5, 50):
        here.backend.offer(DeploymentState(id="e/m", model="m", slots=slots))
    await here.settled()
    assert here.slots() == [{"e/m": 4}, {"e/m": 49}]
    assert len(here.states()) == 2


async def test_an_engine_that_fails_is_told_at_once() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    here.backend.offer(DeploymentState(id="e/m", model="m", slots=4, status=DeploymentStatus.FAILED))
    await here.settled()
    assert here.states() == [DeploymentStatus.LOADED, DeploymentStatus.FAILED]
    assert here.slots()[-1] == {"e/m": 0}


async def test_figures_that_drift_are_told_now_and_then() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    here.backend.offer(DeploymentState(id="e/m", model="m", slots=4, running=3))
    await here.settled()
    assert len(here.states()) == 1
    here.publisher.tick()
    await here.settled()
    assert len(here.states()) == 1
    here.clock.advance(DRIFT_S)
    here.gpus = (GpuState(0, "GPU", 10, 5),)
    here.publisher.tick()
    await here.settled()
    assert len(here.states()) == 2
    here.clock.advance(DRIFT_S)
    here.publisher.tick()
    await here.settled()
    assert len(here.states()) == 2


@pytest.mark.parametrize(("models", "seconds"), [(1, 1), (60, 2)])
async def test_gpus_are_told_every_second_unless_a_state_is_long(models: int, seconds: int) -> None:
    here = Here()
    here.gpus = (GpuState(0, "GPU", 10, 5, utilisation=0.0),)
    here.backend.offer(
        *(DeploymentState(id=f"e/{'m' * 60}{n}", model=f"{'m' * 60}{n}", slots=4) for n in range(models))
    )
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    before = len(here.states())
    for number in range(1, 11):
        here.clock.advance(TICK_S)
        here.gpus = (GpuState(0, "GPU", 10, 5, utilisation=number / 10),)
        here.publisher.tick()
        await here.settled()
    assert len(here.states()) == before + 10 // seconds


async def test_draining_takes_all_slots_back_at_once() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    here.registry.drain()
    await here.settled()
    assert here.slots()[-1] == {"e/m": 0}
    state = [value for name, value in here.gateway.calls if name == "state"][-1]
    assert state.status is AgentStatus.DRAINING


async def test_a_session_that_is_over_is_told_nothing() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    here.joined.cut()
    here.publisher.changed()
    here.publisher.tick()
    here.publisher.detach("another")
    here.publisher.detach("s")
    here.publisher.changed()


async def test_what_the_host_says_of_itself_is_told() -> None:
    here = Here()
    here.publisher = Publisher(here.registry, lambda: here.gpus, here.clock, labels={"region": "eu"})
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    assert [value.labels for name, value in here.gateway.calls if name == "state"] == [{"region": "eu"}]


async def test_whoever_connects_with_nothing_to_serve_is_told_why_in_the_log() -> None:
    here = Here()
    with structlog.testing.capture_logs() as logs:
        here.publisher.attach(here.joined.agent, "s")
        assert logs == []
        here.backend.offer()
        here.publisher.attach(here.joined.agent, "s")
        here.backend.offer(
            DeploymentState(id="e/m", model="m", status=DeploymentStatus.LOADING, reason="slow")
        )
        here.publisher.attach(here.joined.agent, "s")
    said = [line for line in logs if "nothing is served" in line["event"]]
    assert [(line["log_level"], line["reason"]) for line in said] == [
        ("warning", "e is failed: it offers nothing"),
        ("info", "e is loading: slow"),
    ]
    await here.settled()


async def test_how_far_loading_is_is_told_no_more_often_than_what_drifts() -> None:
    here = Here()
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    here.clock.advance(DRIFT_S)
    before = len(here.states())
    engine = EngineState("e", DeploymentStatus.LOADED, "", "", 0.1, 1.0)
    here.backend.engine = lambda: engine  # type: ignore[method-assign]
    here.publisher.changed()
    await here.settled()
    assert len(here.states()) == before
    here.publisher.tick()
    await here.settled()
    assert len(here.states()) == before + 1


async def test_a_long_state_that_changes_often_is_no_flood() -> None:
    """An engine turns out to lack a path, of one model after the other."""
    here = Here()
    many = [DeploymentState(id=f"e/{'m' * 60}{n}", model=f"{'m' * 60}{n}", slots=4) for n in range(120)]
    here.backend.offer(*many)
    here.publisher.attach(here.joined.agent, "s")
    await here.settled()
    for number in range(60):
        many[number] = replace(many[number], lacks=("rerank",))
        here.backend.offer(*many)
        await asyncio.sleep(0)
    told = [value for name, value in here.gateway.calls if name == "state"]
    assert len(told) < 10
    here.clock.advance(DRIFT_S)
    here.publisher.tick()
    await here.settled()
    told = [value for name, value in here.gateway.calls if name == "state"]
    assert sum(bool(each.lacks) for each in told[-1].deployments) == 60
