"""The real thing: an engine process with a tiny model, started by the torch backend, used by OpenAI's SDK.

One process serves all tests of this file; the last ones end it.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from agent.engines.http.load import EngineLoad, Loads
from agent.engines.process import RestartPolicy
from agent.engines.torch.backend import EngineProcess, TorchBackend, engine_environment
from shared.protocol.messages import DeploymentStatus

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SLOTS, QUEUE = 2, 1
ENDLESS: dict[str, Any] = {"model": "slow", "prompt": "tell me", "max_tokens": 16_000}
"""Some ten seconds of computing."""
ENDLESS_STEPS = 16_000
"""Of the engine, for such an answer alone: what was given up at once has cost far fewer."""


@dataclass
class Served:
    """The backend, and the ways to its engine that a test may go directly."""

    backend: TorchBackend
    processes: list[EngineProcess] = field(default_factory=list)
    socket: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def http(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(verify=False, uds=self.socket)  # no authorities to read
        return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=30)

    def sdk(self) -> openai.AsyncOpenAI:
        client: Any = self.http()  # the SDK's own kind of client differs between its versions
        return openai.AsyncOpenAI(
            api_key="none", base_url="http://engine/v1", http_client=client, max_retries=0
        )

    async def until(self, status: DeploymentStatus) -> None:
        async with asyncio.timeout(60):
            while self.backend.deployments()[0].status is not status:
                self.news.clear()
                await self.news.wait()

    async def load(self) -> EngineLoad:
        """As an agent reads it."""
        async with self.http() as client:
            loads = Loads()
            loads.feed((await client.get("/metrics")).content)
        return loads.of("slow")

    async def busy(self) -> tuple[int, int]:
        """Requests running and waiting."""
        load = await self.load()
        return load.running, load.waiting

    async def steps(self) -> int:
        """How many the engine has computed so far."""
        async with self.http() as client:
            text = (await client.get("/metrics")).text
        (value,) = re.findall(r"^trunkline_engine_steps{.*} (\S+)$", text, re.MULTILINE)
        return int(float(value))

    async def until_busy(self, running: int, waiting: int) -> None:
        async with asyncio.timeout(60):
            while await self.busy() != (running, waiting):  # noqa: ASYNC110  it is another process that changes
                await asyncio.sleep(0.005)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory = tmp_path_factory.mktemp("model") / "slow"
    shutil.copytree(tiny_directory, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16_384}))

    async def launch(command: Sequence[str], environment: Mapping[str, str]) -> EngineProcess:
        house.socket = command[command.index("--socket") + 1]
        process = await EngineProcess.start(command, environment)
        house.processes.append(process)
        return process

    backend = TorchBackend(
        directory,
        name="t",
        slots=SLOTS,
        queue=QUEUE,
        threads=1,
        device="cpu",
        restarts=RestartPolicy(first_s=0.01),
        launch=launch,
    )
    house = Served(backend)
    backend.subscribe(house.news.set)
    await backend.start()
    await house.until(DeploymentStatus.LOADED)
    yield house
    await backend.close()


async def test_the_backend_offers_what_the_model_can(served: Served) -> None:
    state = served.backend.deployments()[0]
    assert (state.id, state.slots, state.context_tokens) == ("t/slow", SLOTS, 16_384)
    assert state.routes == ("chat", "completions", "embeddings", "messages", "responses")


async def test_the_sdk_streams_and_reads_whole_answers_alike(served: Served) -> None:
    async with served.sdk() as sdk:
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = await sdk.chat.completions.create(model="slow", messages=messages, max_tokens=20)
        stream = await sdk.chat.completions.create(
            model="slow",
            messages=messages,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) == 20
    assert chunks[-1].usage == whole.usage


async def test_the_sdk_gets_embeddings(served: Served) -> None:
    async with served.sdk() as sdk:
        found = await sdk.embeddings.create(model="slow", input=["a", "bc"])
    assert len(found.data) == 2
    assert len(found.data[0].embedding) == 32


async def test_a_client_that_leaves_frees_its_slot_at_once(served: Served) -> None:
    began = await served.steps()
    async with served.http() as client:
        async with client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
            await anext(response.aiter_bytes())
            assert await served.busy() == (1, 0)
        await served.until_busy(0, 0)
        whole = asyncio.ensure_future(client.post("/v1/completions", json=ENDLESS))
        await served.until_busy(1, 0)
        whole.cancel()
        await served.until_busy(0, 0)
    assert await served.steps() - began < ENDLESS_STEPS, "both together cost less than one to its end"


async def test_a_full_engine_refuses_and_takes_again_when_somebody_leaves(served: Served) -> None:
    async with served.sdk() as sdk:
        requests = [
            asyncio.ensure_future(sdk.completions.create(**ENDLESS | {"max_tokens": 16_000 - n}))
            for n in range(3)
        ]
        await served.until_busy(SLOTS, QUEUE)
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.completions.create(model="slow", prompt="x")
        assert int(caught.value.response.headers["retry-after-ms"]) > 0
        for request in requests:
            request.cancel()
        await served.until_busy(0, 0)
        assert (await sdk.completions.create(model="slow", prompt="x")).usage is not None


async def test_the_engine_answers_questions_while_it_computes(served: Served) -> None:
    async with served.sdk() as sdk, served.http() as client:
        requests = [asyncio.ensure_future(sdk.completions.create(**ENDLESS)) for _ in range(SLOTS)]
        await served.until_busy(SLOTS, 0)
        began = await served.steps()
        for _ in range(50):
            assert (await client.get("/health")).json()["status"] == "BUSY"
        took_steps = await served.steps() - began
        for request in requests:
            request.cancel()
        await served.until_busy(0, 0)
    batches = (await served.load()).batches
    assert batches is not None
    assert batches.counts[1] > 0, "two requests were in a step"
    assert took_steps < 50 * ENDLESS_STEPS / 100, "each waited for a small part of an answer"


async def test_an_engine_that_dies_is_failed_and_comes_back(served: Served) -> None:
    async with served.sdk() as sdk:
        running = asyncio.ensure_future(sdk.completions.create(**ENDLESS))
        await served.until_busy(1, 0)
        os.kill(served.processes[-1].pid, signal.SIGKILL)
        await served.until(DeploymentStatus.FAILED)
        with pytest.raises(openai.APIConnectionError):
            await running
    await served.until(DeploymentStatus.LOADED)
    async with served.sdk() as sdk:
        assert (await sdk.completions.create(model="slow", prompt="x")).choices[0].text


async def test_an_engine_that_is_told_to_end_ends_in_order(served: Served) -> None:
    async with served.sdk() as sdk:
        running = asyncio.ensure_future(sdk.completions.create(**ENDLESS))
        await served.until_busy(1, 0)
        async with asyncio.timeout(60):
            await served.backend.close()
        with pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
            await running
    assert "status 0" in (await served.processes[-1].ended()).reason
    assert not Path(served.socket).parent.exists()


async def test_an_engine_ends_with_the_agent_that_started_it(tiny_directory: Path, tmp_path: Path) -> None:
    """The agent of this test starts an engine and is killed; only the engine then holds the pipe's other
    end."""
    agent = (
        "import subprocess, sys\n"
        "subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "print('started', flush=True)\n"
        "sys.stdin.read()\n"
    )
    engine = [sys.executable, "-m", "agent.engines.torch", "--model", str(tiny_directory)]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", agent, *engine, "--socket", str(tmp_path / "s"), "--exit-with-parent"],
        env=engine_environment(None, {"PATH": "/usr/bin:/bin"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.readline() == b"started\n"
    process.kill()
    async with asyncio.timeout(60):
        await process.stderr.read()
        await process.wait()
    assert process.stdin is not None
    process.stdin.close()
