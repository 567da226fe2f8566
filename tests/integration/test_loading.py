"""An agent that loads and unloads models as a gateway tells it, with engines that are real processes."""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import orjson

from gateway.tools.quickstart.processes import Children
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import (
    AgentState,
    Command,
    CommandResult,
    CommandVerb,
    DeploymentState,
    DeploymentStatus,
    ResponseHead,
    Trailers,
)
from tests.agent.support.joined import Doorman
from tests.support import forks
from tests.support.identities import TOKEN
from tests.support.tunnels import Recorder, accepting, request_head

LOAD, UNLOAD = CommandVerb.LOAD, CommandVerb.UNLOAD
LOADED, LOADABLE = DeploymentStatus.LOADED, DeploymentStatus.LOADABLE
GIB = 1024**3
ONE, TWO = f"first{os.getpid()}", f"second{os.getpid()}"
IDLE_S = 5
"""After so long the second one is unloaded; a machine may stand still before it is asked anything."""
FIRST, SECOND, DEMO = f"{ONE}/{ONE}", f"{TWO}/{TWO}", "torch/trunkline-demo"


class Commander(Recorder):
    """A gateway's side of one session that remembers what was said last and gives commands."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[AgentState] = []
        self._read: dict[str, int] = {}
        self.levels: Mapping[str, int] = {}
        self.results: dict[int, CommandResult] = {}
        self.endpoint: SessionEndpoint | None = None
        self._ids = itertools.count(1)

    @property
    def state(self) -> AgentState | None:
        return self.states[-1] if self.states else None

    def on_state(self, state: AgentState) -> None:
        self.states.append(state)
        self.note("state", state)

    def on_slots(self, levels: Mapping[str, int]) -> None:
        self.levels = dict(levels)
        self.note("slots")

    def on_result(self, result: Mapping[str, Any]) -> None:
        read = CommandResult.read(result)
        self.results[read.id] = read
        self.note("result")

    async def when(self, what: Callable[[], Any]) -> Any:
        """The first true value of ``what``, which is asked after everything that is said."""
        async with asyncio.timeout(60):
            while not (value := what()):
                self.changed.clear()
                await self.changed.wait()
        return value

    def deployment(self, identity: str) -> DeploymentState:
        assert self.state is not None
        return next(d for d in self.state.deployments if d.id == identity)

    async def becomes(self, identity: str, status: DeploymentStatus) -> DeploymentState:
        """The next it is, counted from what was found here last; short-lived states are not missed."""

        def found() -> DeploymentState | None:
            for index in range(self._read.get(identity, 0), len(self.states)):
                for deployment in self.states[index].deployments:
                    if deployment.id == identity and deployment.status is status:
                        self._read[identity] = index
                        return deployment
            return None

        return cast(DeploymentState, await self.when(found))

    async def command(self, verb: CommandVerb, deployment: str) -> CommandResult:
        assert self.endpoint is not None
        command = Command(next(self._ids), verb, deployment)
        self.endpoint.send_command(command.to_dict())
        return cast(CommandResult, await self.when(lambda: self.results.get(command.id)))

    async def ask(self, deployment: str, body: bytes = b'{"messages": []}') -> "Answer":
        assert self.endpoint is not None
        answer = Answer()
        stream = self.endpoint.open(request_head(deployment=deployment), answer)
        stream.send_data(body)
        stream.end()
        async with asyncio.timeout(60):
            await answer.over.wait()
        return answer


class Answer(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()
        self.status = 0
        self.code: ErrorCode | None = None

    def on_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def on_end(self, trailers: Trailers | None) -> None:
        self.over.set()

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        self.code = code
        self.over.set()


@asynccontextmanager
async def agent_with(directory: Path, settings: str) -> AsyncIterator[tuple[Commander, int]]:
    """An agent's process with these settings: who commands it, and its process id."""
    (directory / "agent.toml").write_text(settings)
    doorman = Doorman()
    doorman.listener = commander = Commander()
    async with accepting(doorman) as url:
        gateway = url.replace("ws:", "http:").removesuffix("/tunnel")
        with Children(directory, forks.child) as children:
            child = children.start(
                "agent",
                *("agent", "--gateway", gateway, "--join", TOKEN.encode(), "--name", "gpu-1"),
                *("--state", str(directory / "state"), "--config", str(directory / "agent.toml")),
                *("--log-level", "debug"),
            )
            await commander.when(lambda: commander.state is not None and commander.state.deployments)
            commander.endpoint = doorman.tunnels[-1].endpoint
            yield commander, child.pid


def engine(name: str, *more: str) -> str:
    """The table of a scripted engine that serves the model ``name``."""
    command = f"{sys.executable} -m tests.support.scripted_engine --model {name} --port {{port}}"
    lines = ("[[engine]]", f'name = "{name}"', f'command = "{command}"', f'models = ["{name}"]', *more)
    return "\n".join(lines)


def processes(*words: str) -> list[int]:
    """Ids of the processes whose command line holds all of ``words``, their guards left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            line = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if all(word in line for word in words) and "process_guard.py" not in line:
                found.append(int(name))
    return found


async def gone(*words: str) -> None:
    async with asyncio.timeout(60):
        while processes(*words):  # noqa: ASYNC110  other processes do not tell
            await asyncio.sleep(0.02)


async def test_models_are_loaded_and_unloaded_as_a_gateway_says(tmp_path: Path) -> None:
    settings = (
        '[models]\nmemory = "16 GiB"',
        engine(ONE, 'memory = "10 GiB"'),
        engine(TWO, 'memory = "10 GiB"', f"idle_timeout_s = {IDLE_S}"),
        '[[engine]]\ntorch = "demo"\nload = "on-demand"',
    )
    async with agent_with(tmp_path, "\n".join(settings)) as (gateway, _):
        assert gateway.state is not None
        assert gateway.state.model_memory_bytes == 16 * GIB
        assert [d.status for d in gateway.state.deployments] == [LOADABLE] * 3
        assert await gateway.when(lambda: gateway.levels) == dict.fromkeys((FIRST, SECOND, DEMO), 0)
        await asyncio.gather(_two_take_turns_in_the_memory_of_one(gateway), _the_built_in_engine(gateway))
    assert processes("scripted_engine", ONE) == []  # it ended with the agent
    assert len(orjson.loads((tmp_path / "state" / "load_times.json").read_bytes())) == 3


async def _two_take_turns_in_the_memory_of_one(gateway: Commander) -> None:
    first = gateway.deployment(FIRST)
    assert (first.managed, first.memory_bytes, first.load_s) == (True, 10 * GIB, None)
    assert (await gateway.ask(FIRST)).code is ErrorCode.REFUSED

    assert (await gateway.command(LOAD, FIRST)).ok
    assert (await gateway.command(LOAD, FIRST)).ok
    refused = await gateway.command(LOAD, SECOND)
    assert not refused.ok
    assert "10.0 GiB of 16.0 GiB" in refused.error
    first = await gateway.becomes(FIRST, LOADED)
    assert first.load_s is not None
    assert await gateway.when(lambda: gateway.levels[FIRST] == first.slots == 8)
    assert (await gateway.ask(FIRST)).status == 200

    (pid,) = processes("scripted_engine", ONE)
    os.kill(pid, signal.SIGKILL)
    await gateway.becomes(FIRST, DeploymentStatus.FAILED)
    await gateway.becomes(FIRST, LOADED)
    assert processes("scripted_engine", ONE) != [pid]

    assert (await gateway.command(UNLOAD, FIRST)).ok
    await gateway.becomes(FIRST, LOADABLE)
    assert processes("scripted_engine", ONE) == []
    assert (await gateway.command(LOAD, SECOND)).ok
    await gateway.becomes(SECOND, LOADED)
    began_s = time.monotonic()
    assert (await gateway.ask(SECOND)).status == 200
    await gateway.becomes(SECOND, LOADABLE)
    assert time.monotonic() - began_s >= IDLE_S
    assert processes("scripted_engine", TWO) == []
    assert (await gateway.command(LOAD, FIRST)).ok
    await gateway.becomes(FIRST, LOADED)


async def _the_built_in_engine(gateway: Commander) -> None:
    memory_bytes = gateway.deployment(DEMO).memory_bytes
    assert memory_bytes is not None
    assert (await gateway.command(LOAD, DEMO)).ok
    demo = await gateway.becomes(DEMO, LOADED)
    assert demo.kv_tokens is not None
    assert demo.kv_tokens >= demo.slots * 64
    assert (await gateway.command(UNLOAD, DEMO)).ok
    assert (await gateway.becomes(DEMO, LOADABLE)).memory_bytes == memory_bytes


async def test_nothing_of_an_engine_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    """Neither the engine nor a child of it that has left its process group."""
    marker = f"86{os.getpid()}"
    script = f"setsid sleep {marker} & exec {sys.executable} -m tests.support.scripted_engine --port {{port}}"
    settings = f"""
        [[engine]]
        command = ["sh", "-c", "{script} --tokens {marker}"]
        load = "at-start"
    """
    async with agent_with(tmp_path, settings) as (gateway, pid):
        await gateway.becomes("sh/scripted", LOADED)
        assert len(processes(marker)) == 2
        os.kill(pid, signal.SIGKILL)
        await gone(marker)
