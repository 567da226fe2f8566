"""The torch backend over a played engine process: its life, its death, and what is said of both."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.engines.backend import BackendFailed, BackendUnreachable
from agent.engines.managed import LoadAttempt
from agent.engines.process import RestartPolicy
from agent.engines.torch.backend import (
    EngineProcess,
    TorchBackend,
    engine_command,
    engine_environment,
    estimate_memory_bytes,
)
from agent.engines.torch.startup import EngineOptions
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus, RequestHead, UsageMode
from tests.agent.engines.torch import played_engine
from tests.agent.support.canned import Body, added, asked, until
from tests.support.clock import ManualClock

HEAD = RequestHead(
    deployment="t/played",
    method="POST",
    path="/v1/completions",
    headers=(("content-type", "application/json"), ("content-length", "0")),
    model="played",
    request_id="r",
    streaming=True,
    usage=UsageMode.NONE,
)


class House:
    """A backend whose engines play what the test wrote, the last of it again and again."""

    def __init__(
        self,
        clock: ManualClock,
        *plays: str,
        most: int = 2,
        unix_sockets: bool = True,
        loading: LoadAttempt | None = None,
    ) -> None:
        self.plays = list(plays)
        self.processes: list[EngineProcess] = []
        self.delays: list[float] = []
        self.go = asyncio.Event()
        self.go.set()
        self.seen: list[DeploymentState] = []
        self.launched = asyncio.Event()
        self._news = asyncio.Event()
        self.backend = TorchBackend(
            "/models/played",
            name="t",
            loading=loading,
            restarts=RestartPolicy(most=most),
            launch=self.launch,
            unix_sockets=unix_sockets,
            clock=clock,
            sleep=self.sleep,
        )
        self.backend.subscribe(self.on_change)

    async def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> EngineProcess:
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        if play == "missing":
            command = ["/no/such/program"]
        else:
            socket = command[command.index("--socket") + 1] if "--socket" in command else ""
            command = [sys.executable, str(Path(played_engine.__file__)), play, socket]
        process = await EngineProcess.start(command, environment)
        self.processes.append(process)
        self.launched.set()
        return process

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await self.go.wait()

    def on_change(self) -> None:
        self.seen.extend(self.backend.deployments())
        self._news.set()

    async def until(self, status: DeploymentStatus, reason: str = "") -> DeploymentState:
        """Wait for a state that the backend tells of."""
        async with asyncio.timeout(60):
            while True:
                self._news.clear()
                state = self.backend.deployments()[0]
                if state.status is status and reason in state.reason:
                    return state
                await self._news.wait()

    def kill(self) -> None:
        os.kill(self.processes[-1].pid, 9)


@pytest.fixture
async def houses(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[House]]:
    """Each house's backend is closed after the test, at whatever point of its life that finds it."""
    made: list[House] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # a socket's path has to be short
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield made
        for house in made:
            await house.backend.close()
        assert os.listdir(directory) == []
    assert all(process._process.returncode is not None for house in made for process in house.processes)


async def make(houses: list[House], clock: ManualClock, *plays: str, **how: Any) -> House:
    house = House(clock, *plays, **how)
    houses.append(house)
    await house.backend.start()
    return house


async def test_a_model_is_loading_until_its_engine_is_ready(houses: list[House], clock: ManualClock) -> None:
    house = await make(houses, clock, "serve")
    loading = house.backend.deployments()[0]
    assert (loading.id, loading.model, loading.status) == ("t/played", "played", DeploymentStatus.LOADING)
    with pytest.raises(BackendUnreachable, match="loading"):
        async with asked(house.backend, HEAD, Body()):
            pass
    assert house.backend.engine().status is DeploymentStatus.LOADING
    loaded = await house.until(DeploymentStatus.LOADED)
    assert {state.load_progress for state in house.seen} == {None, 0.5}
    assert house.backend.engine() == EngineState("t", DeploymentStatus.LOADED, kind="trunkline")
    assert loaded.id == "t/played"
    assert loaded.slots == 3
    assert loaded.routes == ("completions",)


async def test_without_unix_sockets_the_engine_listens_on_loopback_and_wants_a_key(
    houses: list[House], clock: ManualClock
) -> None:
    house = await make(houses, clock, "serve", unix_sockets=False)
    await house.until(DeploymentStatus.LOADED)
    async with asked(house.backend, HEAD, Body()) as response:
        assert response.status == 200


async def test_where_temporary_files_lie_too_deep_for_a_socket_it_is_as_without(
    houses: list[House], clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    house = await make(houses, clock, "serve")
    await house.until(DeploymentStatus.LOADED)
    async with asked(house.backend, HEAD, Body()) as response:
        assert response.status == 200
    await house.backend.close()
    assert list(deep.iterdir()) == []


async def test_a_crash_fails_what_runs_and_the_engine_is_started_again(
    houses: list[House], clock: ManualClock
) -> None:
    house = await make(houses, clock, "serve")
    await house.until(DeploymentStatus.LOADED)
    house.go.clear()
    async with asked(house.backend, HEAD, Body()) as response:
        body = bytearray()
        pouring = asyncio.ensure_future(response.stream_to(lambda piece: added(body, piece)))
        await until(lambda: body == b"begun")
        house.kill()
        with pytest.raises(BackendFailed):
            await pouring
    failed = await house.until(DeploymentStatus.FAILED, "again in 1 s")
    assert "SIGKILL" in failed.reason
    with pytest.raises(BackendUnreachable):
        async with asked(house.backend, HEAD, Body()):
            pass
    house.go.set()
    await house.until(DeploymentStatus.LOADED)
    statuses = [state.status for state in house.seen]
    assert DeploymentStatus.LOADING in statuses[statuses.index(DeploymentStatus.FAILED) :]


async def test_an_engine_that_keeps_crashing_is_tried_rarely(houses: list[House], clock: ManualClock) -> None:
    house = await make(houses, clock, *["crash"] * 4, "serve", most=3)
    await house.until(DeploymentStatus.LOADED)
    assert any(state.reason.endswith("ValueError: broken (again in 300 s)") for state in house.seen)
    assert house.delays == [1.0, 2.0, 4.0, 300.0]
    assert len(house.processes) == 5


async def test_an_engine_that_came_to_serve_is_soon_back(houses: list[House], clock: ManualClock) -> None:
    house = await make(houses, clock, "serve", most=1)
    for _ in range(4):
        await house.until(DeploymentStatus.LOADED)
        house.go.clear()
        house.kill()
        await house.until(DeploymentStatus.FAILED)
        house.go.set()
    await house.until(DeploymentStatus.LOADED)
    assert house.delays == [1.0, 2.0, 4.0, 8.0]


async def test_an_engine_that_was_healthy_for_long_begins_a_new_row(
    houses: list[House], clock: ManualClock
) -> None:
    house = await make(houses, clock, "serve", most=1)
    for _ in range(3):
        await house.until(DeploymentStatus.LOADED)
        clock.advance(100.0)
        house.kill()
        await house.until(DeploymentStatus.FAILED)
    assert set(house.delays) <= {1.0}


async def test_a_model_that_cannot_be_served_is_not_tried_again(
    houses: list[House], clock: ManualClock
) -> None:
    house = await make(houses, clock, "unusable")
    state = await house.until(DeploymentStatus.FAILED, "given up")
    assert "no such model" in state.reason
    assert house.delays == []


async def test_a_program_that_cannot_be_run_is_a_failure_like_others(
    houses: list[House], clock: ManualClock
) -> None:
    house = await make(houses, clock, "missing", "serve")
    await house.until(DeploymentStatus.LOADED)
    assert house.delays == [1.0]
    assert any("cannot be started" in state.reason for state in house.seen)


async def test_closing_ends_the_engine_and_leaves_nothing(houses: list[House], clock: ManualClock) -> None:
    house = await make(houses, clock, "serve")
    await house.until(DeploymentStatus.LOADED)
    await house.backend.close()
    assert "SIGTERM" in (await house.processes[0].ended()).reason
    assert house.backend.deployments()[0].status is DeploymentStatus.FAILED


async def test_closing_while_the_model_loads_ends_the_engine(houses: list[House], clock: ManualClock) -> None:
    house = await make(houses, clock, "serve")
    await house.launched.wait()
    await house.backend.close()
    assert house.processes[0]._process.returncode is not None


async def test_one_on_demand_is_started_when_it_is_told_and_nothing_is_left_when_it_is_unloaded(
    houses: list[House], clock: ManualClock
) -> None:
    house = await make(houses, clock, "serve", loading=LoadAttempt(at_start=False, managed=True))
    assert (house.processes, house.backend.deployments()[0].slots) == ([], 0)
    house.backend.load()
    await house.until(DeploymentStatus.LOADED)
    house.backend.unload()
    state = await house.until(DeploymentStatus.LOADABLE)
    assert (state.slots, state.managed, len(house.processes)) == (3, True, 1)
    assert house.processes[0]._process.returncode is not None


def test_its_memory_is_judged_by_its_weights(tmp_path: Path) -> None:
    assert estimate_memory_bytes(tmp_path) is None
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(500))
    assert estimate_memory_bytes(tmp_path) == 600
    for part in (1, 2):
        (tmp_path / f"model-{part}.safetensors").write_bytes(bytes(1000))
    assert estimate_memory_bytes(tmp_path) == 2400
    assert TorchBackend(tmp_path).loading.memory_bytes == 2400
    assert TorchBackend(tmp_path)._options.memory_bytes is None
    given = TorchBackend(tmp_path, loading=LoadAttempt(memory_bytes=7000))
    assert (given.loading.memory_bytes, given._options.memory_bytes) == (7000, 7000)


def test_options_that_can_never_work_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="slots"):
        TorchBackend("demo", slots=0)
    with pytest.raises(ValueError, match="device"):
        TorchBackend("demo", device="tpu")


def test_the_agents_side_does_not_import_torch() -> None:
    code = "import sys, agent.engines.torch.backend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Started:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.processes: list[EngineProcess] = []

    async def __call__(self, play: str) -> EngineProcess:
        command = [sys.executable, str(Path(played_engine.__file__)), play, str(self._directory / "s")]
        process = await EngineProcess.start(command, os.environ)
        self.processes.append(process)
        return process


@pytest.fixture
async def start(no_leaks: None, tmp_path: Path) -> AsyncIterator[Started]:
    started = Started(tmp_path)
    yield started
    for process in started.processes:
        await process.stop(grace_s=0.0)


async def test_the_engine_says_when_it_is_ready(start: Started) -> None:
    facts = await (await start("serve")).ready()
    assert facts is not None
    assert (facts.model, facts.slots, facts.context_tokens, facts.port) == ("played", 3, 64, None)
    assert facts.routes == ("completions",)


async def test_what_the_engine_says_of_loading_is_told_until_it_is_ready(start: Started) -> None:
    process = await start("serve")
    told: list[tuple[float | None, str]] = []
    process.on_progress = lambda share, step: told.append((share, step))
    assert await process.ready() is not None
    assert told == [(None, "importing"), (0.5, "reading")]


async def test_an_engine_that_ends_early_is_never_ready_and_says_why(start: Started) -> None:
    process = await start("crash")
    assert await process.ready() is None
    end = await process.ended()
    assert end.reason == "the engine process ended with status 1: ValueError: broken"
    assert not end.unrecoverable


async def test_an_unusable_model_is_hopeless(start: Started) -> None:
    process = await start("unusable")
    assert await process.ready() is None
    end = await process.ended()
    assert end.unrecoverable
    assert end.reason.endswith("no such model")


async def test_anything_but_a_ready_line_is_an_error(start: Started) -> None:
    with pytest.raises(ValueError, match="hello there"):
        await (await start("babble")).ready()


async def test_a_killed_engine_says_by_what(start: Started) -> None:
    process = await start("serve")
    await process.ready()
    os.kill(process.pid, 9)
    assert "SIGKILL" in (await process.ended()).reason


async def test_one_that_will_not_end_is_ended(start: Started) -> None:
    process = await start("stubborn")
    await process.ready()
    await process.stop(grace_s=0.05)
    assert "SIGKILL" in (await process.ended()).reason


async def test_its_log_comes_through_at_its_levels(start: Started) -> None:
    with capture_logs() as logs:
        process = await start("unusable")
        await process.ended()
    lines = [(entry["log_level"], entry["line"]) for entry in logs]
    assert lines == [("info", "loading"), ("warning", "some library talks"), ("error", "no such model")]


def test_the_engine_inherits_no_secrets_of_the_agent() -> None:
    environment = engine_environment("k", {"PATH": "/bin", "TRUNKLINE_JOIN": "secret", "PYTHONPATH": "/mine"})
    assert "TRUNKLINE_JOIN" not in environment
    assert environment["PATH"] == "/bin"
    assert environment["TRUNKLINE_ENGINE_KEY"] == "k"
    assert environment["PYTHONPATH"].endswith(":/mine")
    assert "TRUNKLINE_ENGINE_KEY" not in engine_environment(None, {})


def test_the_key_is_not_on_the_command_line() -> None:
    command = engine_command(EngineOptions(model=Path("/m"), name="m", exit_with_parent=True))
    assert command[:4] == [sys.executable, "-P", "-m", "agent.engines.torch"]
    assert "--exit-with-parent" in command
    assert not any("key" in word.lower() for word in command)
