"""Two processes of one gateway, and an agent with a session with each (PROTOCOL §7.5)."""

import asyncio
import json
import shutil
import signal
import time
from dataclasses import dataclass

import aiohttp
import pytest

from gateway.observability.audit.segments import DIRECTORY
from shared.process.ports import free_port
from tests.gateway.observability.audit import logs
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House, until

SLOTS = 4


@dataclass(frozen=True, slots=True)
class Pair:
    house: House
    gateways: tuple[Gateway, Gateway]
    engine: Engine
    key: str

    def client(self, which: int) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {self.key}"}
        return aiohttp.ClientSession(self.gateways[which].url, headers=headers)

    def running(self) -> int:
        return int(self.engine.stats()["running"])


@pytest.fixture
def pair(house: House) -> Pair:
    """The agent joins one gateway, whose state is copied then: both have one identity and know the agent."""
    ports = free_port(), free_port()
    engine = house.engine("--model", MODEL)
    first = house.gateway(name="a", port=ports[0])
    key = first.key("tests")
    house.agent(first, engine.url, "--slots", str(SLOTS))
    house.wait_for_model(first, key, MODEL)
    house.children.stop(first.child)
    shutil.copytree(first.state, house.directory / "b-state")
    peers = json.dumps([f"{name}=http://127.0.0.1:{port}" for name, port in zip("ab", ports, strict=True)])
    gateways = []
    for name, port in zip("ab", ports, strict=True):
        environment = {"TRUNKLINE_GATEWAY_CLUSTER__PROCESS": name, "TRUNKLINE_GATEWAY_CLUSTER__PEERS": peers}
        gateways.append(house.gateway(name=name, port=port, environment=environment))
    for gateway in gateways:
        house.wait_for_model(gateway, key, MODEL)
    return Pair(house, (gateways[0], gateways[1]), engine, key)


async def ask(client: aiohttp.ClientSession, tokens: int, tokens_per_s: float) -> str:
    body = chat(stream=True, max_tokens=tokens, script={"tokens_per_s": tokens_per_s})
    async with client.post(CHAT, json=body) as response:
        assert response.status == 200
        return (await response.read()).decode()


async def held(client: aiohttp.ClientSession) -> str:
    """An answer that goes on as the engine is stepped."""
    body = chat(stream=True, max_tokens=10, script={"stepped": True})
    async with client.post(CHAT, json=body) as response:
        assert response.status == 200
        return (await response.read()).decode()


async def test_slots_follow_the_requests_and_are_never_exceeded(pair: Pair) -> None:
    async with pair.client(0) as a, pair.client(1) as b:
        for busy, quiet in ((a, b), (b, a)):
            asked = [asyncio.ensure_future(held(busy)) for _ in range(12)]
            await asyncio.to_thread(until, "one has all slots", lambda: pair.running() == SLOTS)
            asked.append(asyncio.ensure_future(held(quiet)))
            await pair.engine.step(lambda: all(each.done() for each in asked))  # noqa: B023
            answers = await asyncio.gather(*asked)
            assert all(answer.endswith("data: [DONE]\n\n") for answer in answers)
    stats = await asyncio.to_thread(pair.engine.stats)
    assert stats["peak_running"] == SLOTS, "a process alone gets all of them, and both together no more"


async def test_together_their_requests_use_no_more_gpu_seconds_than_passed(pair: Pair) -> None:
    """Each process sees one request at the engine, the agent both."""
    async with pair.client(0) as a, pair.client(1) as b:
        began_s = time.monotonic()
        await asyncio.gather(ask(a, 40, 20.0), ask(b, 40, 20.0))
        took_s = time.monotonic() - began_s

    def used() -> list[float]:
        written = [each for gateway in pair.gateways for each in logs.records(gateway.state / DIRECTORY)]
        return [each["gpu_s"] for each in written if each["kind"] == "request" and "gpu_s" in each]

    await asyncio.to_thread(until, "both are in the logs", lambda: len(used()) == 2)
    assert 0.4 * took_s < sum(used()) <= took_s, "a process alone would have counted twice as much"


async def test_when_one_is_killed_the_other_has_all_slots_soon(pair: Pair) -> None:
    async with pair.client(0) as a, pair.client(1) as b:
        lost = [asyncio.ensure_future(ask(b, 2000, 20.0)) for _ in range(2)]
        await asyncio.to_thread(until, "they run", lambda: pair.running() == 2)
        pair.gateways[1].child.signal(signal.SIGKILL)
        # An agent that waited for its tunnel to come back would keep them for half a minute.
        await asyncio.to_thread(until, "they have left the engine", lambda: pair.running() == 0, 20.0)
        kept = [asyncio.ensure_future(held(a)) for _ in range(SLOTS)]
        await asyncio.to_thread(until, "all slots are in use", lambda: pair.running() == SLOTS, 20.0)
        await asyncio.gather(*lost, return_exceptions=True)
        await pair.engine.step(lambda: all(each.done() for each in kept))
        answers = await asyncio.gather(*kept)
    assert all(answer.endswith("data: [DONE]\n\n") for answer in answers)
    assert (await asyncio.to_thread(pair.engine.stats))["peak_running"] == SLOTS


async def test_a_path_of_another_process_is_misdirected(pair: Pair) -> None:
    async with pair.client(0) as a:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await a.ws_connect("/tunnel/b", protocols=["trunkline.1"])
        assert refused.value.status == 421
        async with a.ws_connect("/tunnel/a", protocols=["trunkline.1"]) as tunnel:
            assert (await tunnel.receive_bytes())[:1] == b"\x01", "CHALLENGE"


async def test_a_process_waits_while_the_engine_reads_a_long_prompt_for_the_other(pair: Pair) -> None:
    """B has a slot, and the engine nothing to do for B; its scheduler knows what A gave to the engine."""
    long = [{"role": "user", "content": "word " * 3000}]
    async with pair.client(0) as a, pair.client(1) as b:
        occupying = chat(messages=long, stream=True, max_tokens=16, script={"delay_s": 60.0})
        reading = asyncio.ensure_future(a.post(CHAT, json=occupying))
        await asyncio.to_thread(until, "the engine reads", lambda: pair.running() == 1)
        async with b.post(CHAT, json=chat(max_tokens=1)) as response:
            assert response.status == 200
            waited_ms = float(response.headers["x-trunkline-queue-ms"])
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await asyncio.to_thread(until, "the engine has let go", lambda: pair.running() == 0)
        alone_ms = []
        for _ in range(5):  # the machine may stand still during one of them
            async with b.post(CHAT, json=chat(max_tokens=1)) as response:
                alone_ms.append(float(response.headers["x-trunkline-queue-ms"]))
    assert waited_ms > 100.0
    assert min(alone_ms) < 50.0
