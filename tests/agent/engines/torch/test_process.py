"""An engine process from the side of the agent."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.engines.torch.process import EngineProcess, engine_command, engine_environment
from agent.engines.torch.startup import EngineOptions
from tests.agent.engines.torch import played_engine

PLAYED = str(Path(played_engine.__file__))


class Started:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.processes: list[EngineProcess] = []

    async def __call__(self, play: str) -> EngineProcess:
        command = [sys.executable, PLAYED, play, str(self._directory / "s")]
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
    ready = await (await start("serve")).ready()
    assert ready is not None
    facts = ready.ready
    assert (facts.model, facts.slots, facts.context_tokens, ready.port) == ("played", 3, 64, None)
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
    assert not end.hopeless


async def test_an_unusable_model_is_hopeless(start: Started) -> None:
    process = await start("unusable")
    assert await process.ready() is None
    end = await process.ended()
    assert end.hopeless
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
