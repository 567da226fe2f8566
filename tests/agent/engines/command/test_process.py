"""Engines that know nothing of agents, started by one and ended with all that they started."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.engines.command.process import (
    CannotStart,
    CommandProcess,
    command_environment,
    filled_in,
    free_port,
)


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
    async with asyncio.timeout(10):
        while alive(pid):  # noqa: ASYNC110  other processes do not tell
            await asyncio.sleep(0.005)


def number_in(path: Path) -> int:
    """What a shell has written there; 0 as long as it has not."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


async def child_in(path: Path) -> int:
    """The process id that a shell writes there."""
    async with asyncio.timeout(10):
        while not (pid := number_in(path)):  # noqa: ASYNC110  other processes do not tell
            await asyncio.sleep(0.005)
    return pid


async def test_the_end_of_an_engine_is_told_with_its_last_words(start: Started) -> None:
    with capture_logs() as logs:
        process = await start.shell("echo one; echo; echo two >&2; exit 3")
        end = await process.ended()
    assert end.reason == "the engine ended with status 3: two"
    assert not end.hopeless
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
    async with asyncio.timeout(10):
        while not process._last:  # noqa: ASYNC110  the shell has set its trap
            await asyncio.sleep(0.005)
    await process.stop()
    assert process._last[-1] == (None, "bye")


async def test_one_that_will_not_end_is_killed(start: Started) -> None:
    process = await start.shell("trap '' TERM; while :; do sleep 0.01; done", grace_s=0.05)
    await process.stop()
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
    assert 0 < free_port() < 65_536
