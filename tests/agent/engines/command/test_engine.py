"""When an engine with a command of its own is ready, and when there is no hope."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.engines.command import engine as command_engine
from agent.engines.command.engine import MISNAMED_S, CommandBackend, CommandSettings
from agent.engines.managed import LoadAttempt
from agent.engines.process import EngineEnd
from agent.engines.settings import EngineSettings
from shared.protocol.messages import DeploymentState, DeploymentStatus
from tests.agent.support.canned import until
from tests.support.clock import ManualClock
from tests.support.scripted_engine import ScriptedEngine


class Played:
    """An engine's process, in this one."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.launched: list[tuple[str, tuple[str, ...], Mapping[str, str], float]] = []
        self.stopped = 0
        self.on_progress: Any = None
        self.fate: asyncio.Future[EngineEnd] | None = None

    async def launch(
        self, engine: str, command: tuple[str, ...], environment: Mapping[str, str], grace_s: float
    ) -> "Played":
        self.launched.append((engine, command, environment, grace_s))
        self.fate = asyncio.get_running_loop().create_future()
        return self

    async def ended(self) -> EngineEnd:
        assert self.fate is not None
        return await asyncio.shield(self.fate)

    async def stop(self) -> None:
        self.stopped += 1


class House:
    """A backend whose engine is a scripted one, which listens already."""

    def __init__(self, engine: ScriptedEngine, *models: str, **settings: Any) -> None:
        self.process = Played(engine)
        self.clock = ManualClock()
        self.seen: list[DeploymentState] = []
        self.rest = asyncio.Event()
        self.backend = CommandBackend(
            EngineSettings(url="http://127.0.0.1", name="e", models=models, version="7", refresh_s=30.0),
            CommandSettings(command=("serve", "--port={port}"), port=engine.port, stop_s=3.0, **settings),
            loading=LoadAttempt(at_start=False, managed=True),
            launch=self.process.launch,
            clock=self.clock,
            sleep=lambda delay_s: self.rest.wait(),  # type: ignore[arg-type, return-value]
        )
        self.backend.subscribe(lambda: self.seen.extend(self.backend.deployments()))

    @property
    def state(self) -> DeploymentState:
        return self.backend.deployments()[0]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_engine, "LOOK_S", (0.001, 0.005))


@asynccontextmanager
async def loading(*models: str, serves: tuple[str, ...] = ("m",), **settings: Any) -> AsyncIterator[House]:
    async with ScriptedEngine(models=serves) as engine:
        engine.healthy = False
        house = House(engine, *models, **settings)
        await house.backend.start()
        house.backend.load()
        await until(lambda: house.process.launched and "GET /v1/models" in engine.stats.requests)
        try:
            yield house
        finally:
            await house.backend.close()


async def test_it_is_ready_when_it_serves_its_models() -> None:
    async with loading("m") as house:
        assert (house.state.id, house.state.status, house.state.version) == (
            "e/m",
            DeploymentStatus.LOADING,
            "7",
        )
        house.process.on_progress(0.5)
        assert house.state.load_progress == 0.5
        house.process.engine.healthy = True
        await until(lambda: house.state.status is DeploymentStatus.LOADED)
        loaded = house.state
        assert (loaded.version, loaded.load_progress, loaded.slots) == ("7", None, 8)
        engine, command, environment, grace_s = house.process.launched[0]
        assert (engine, command, grace_s) == ("e", ("serve", f"--port={house.process.engine.port}"), 3.0)
        assert "PATH" in environment
        house.backend.unload()
        await until(lambda: house.state.status is DeploymentStatus.LOADABLE)
        assert house.process.stopped == 1


async def test_only_the_models_that_were_named_are_offered() -> None:
    async with loading("b", serves=("a", "b", "c")) as house:
        house.process.engine.healthy = True
        await until(lambda: house.state.status is DeploymentStatus.LOADED)
        assert [d.id for d in house.backend.deployments()] == ["e/b"]


async def test_an_engine_that_ends_before_it_is_ready_is_a_crash() -> None:
    async with loading("m") as house:
        assert house.process.fate is not None
        house.process.fate.set_result(EngineEnd("the engine ended with status 1: no GPU"))
        await until(lambda: "again in" in house.state.reason)
        assert house.state.status is DeploymentStatus.FAILED
        assert house.state.reason == "the engine ended with status 1: no GPU (again in 1 s)"
        assert house.process.stopped == 1


async def test_patience_with_an_engine_has_an_end() -> None:
    async with loading("m", ready_s=60.0) as house:
        house.clock.advance(61.0)
        await until(lambda: "again in" in house.state.reason)
        assert house.state.status is DeploymentStatus.FAILED
        assert house.state.reason.startswith("the engine is not ready after 60 s: ")
        assert house.process.stopped == 1


async def test_an_engine_that_serves_something_else_is_given_up() -> None:
    async with loading("wanted", serves=("other",)) as house:
        house.process.engine.healthy = True
        asked = house.process.engine.stats.requests
        before = asked.count("GET /v1/models")
        await until(lambda: asked.count("GET /v1/models") > before + 2)  # the one before was looked at
        house.clock.advance(MISNAMED_S)
        await until(lambda: "given up" in house.state.reason)
        assert house.state.reason == "the engine serves other, not wanted (given up)"
        assert not house.backend.wanted
