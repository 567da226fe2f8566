"""Engines with a command of their own: when one is ready or hopeless, and that it leaves nothing behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.engines.command import engine as command_engine
from agent.engines.command.engine import (
    MISNAMED_S,
    CannotStart,
    CommandBackend,
    CommandProcess,
    CommandSettings,
    command_environment,
    filled_in,
)
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

    def hurry(self) -> None: ...


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


class Started:
    def __init__(self) -> None:
        self.processes: list[CommandProcess] = []

    async def __call__(self, command: Sequence[str], grace_s: float = 5.0) -> CommandProcess:
        process = await CommandProcess.start("e", command, os.environ, grace_s)
        self.processes.append(process)
        return process

    async def shell(self, script: str, grace_s: float = 5.0) -> CommandProcess:
        return await self(["sh", "-c", script], grace_s)


@pytest.fixture
async def start(no_leaks: None) -> AsyncIterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        await process.stop()


def alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while alive(pid):  # noqa: ASYNC110  other processes do not tell
            await asyncio.sleep(0.005)


def number_in(path: Path) -> int:
    """What a shell has written there; 0 as long as it has not."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


async def child_in(path: Path) -> int:
    """The process id that a shell writes there."""
    async with asyncio.timeout(60):
        while not (pid := number_in(path)):  # noqa: ASYNC110  other processes do not tell
            await asyncio.sleep(0.005)
    return pid


async def test_the_end_of_an_engine_is_told_with_its_last_words(start: Started) -> None:
    with capture_logs() as logs:
        process = await start.shell("echo one; echo; echo two >&2; exit 3")
        end = await process.ended()
    assert end.reason == "the engine ended with status 3: two"
    assert not end.unrecoverable
    said = [entry["line"] for entry in logs if entry["event"] == "engine says"]
    assert said == ["one", "two"]
    assert [e["lines"] for e in logs if e["event"] == "engine's last words"] == [["one", "two"]]


async def test_the_signal_that_ended_it_is_told(start: Started) -> None:
    process = await start.shell("kill -SEGV $$")
    assert (await process.ended()).reason == "the engine was ended by SIGSEGV"


async def test_a_program_that_is_not_there_cannot_be_started(start: Started) -> None:
    with pytest.raises(CannotStart, match="/no/such/engine: No such file"):
        await start(["/no/such/engine"])


async def test_with_the_engine_ends_what_it_has_started(start: Started, tmp_path: Path) -> None:
    process = await start.shell(f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & sleep 60")
    child = await child_in(tmp_path / "pid")
    await process.stop()
    assert not alive(child)


async def test_an_engine_that_ends_leaves_nothing_running(start: Started, tmp_path: Path) -> None:
    process = await start.shell(f"sleep 60 & echo $! > {tmp_path}/pid; exit 0")
    await process.ended()
    assert not alive(number_in(tmp_path / "pid"))


async def test_it_may_end_in_order_within_its_grace(start: Started) -> None:
    process = await start.shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    async with asyncio.timeout(60):
        while not process._last:  # noqa: ASYNC110  the shell has set its trap
            await asyncio.sleep(0.005)
    await process.stop()
    assert process._last[-1] == (None, "bye")


async def test_one_that_will_not_end_is_killed(start: Started) -> None:
    process = await start.shell("trap '' TERM; while :; do sleep 0.01; done", grace_s=0.05)
    await process.stop()
    assert process.engine_pid is not None
    assert not alive(process.engine_pid)


async def test_one_that_is_hurried_does_not_have_all_of_its_grace(start: Started) -> None:
    process = await start.shell("trap '' TERM; while :; do sleep 0.01; done", grace_s=3600.0)
    stopping = asyncio.ensure_future(process.stop())
    process.hurry()
    async with asyncio.timeout(120):
        await stopping
    assert process.engine_pid is not None
    assert not alive(process.engine_pid)


async def test_when_its_keeper_is_killed_the_engine_is_too(start: Started, tmp_path: Path) -> None:
    process = await start.shell(f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    child = await child_in(tmp_path / "pid")
    os.kill(process.pid, signal.SIGKILL)
    await process.ended()
    assert process.engine_pid is not None
    await gone(process.engine_pid)
    await gone(child)


async def test_the_engine_ends_when_the_agents_end_of_its_pipe_does(start: Started) -> None:
    process = await start.shell("exec sleep 60")
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert "SIGTERM" in (await process.ended()).reason


async def test_progress_is_read_from_what_engines_say(start: Started, tmp_path: Path) -> None:
    line = "Loading safetensors checkpoint shards: %3d%% Completed | 1/4 [00:01<00:03]"
    (tmp_path / "output").write_text(f"{line % 25}\r{line % 100}\n42% Completed\n")
    process = await start.shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.005; done; cat {tmp_path}/output")
    seen: list[float] = []
    process.on_progress = seen.append
    (tmp_path / "go").touch()
    await process.ended()
    assert seen == [0.25, 1.0]


def test_the_port_is_filled_in_and_the_agents_settings_are_left_out() -> None:
    base = {"PATH": "/bin", "TRUNKLINE_AGENT_JOIN": "secret", "A": "old"}
    environment = command_environment({"A": "0.0.0.0:{port}", "B": "{other}"}, 81, base)
    assert environment == {"PATH": "/bin", "A": "0.0.0.0:81", "B": "{other}"}
    assert filled_in('{"port": {port}}', 8000) == '{"port": 8000}'
