"""Models loaded when clients ask for them: a gateway, an agent, and two engines of which one fits."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from gateway.domain.store_address import StoreAddress
from shared.process.ports import free_port
from tests.integration.asking import CHAT
from tests.support.processes import Gateway, House

MODELS = ("first", "second")
LOAD_S = 0.6
"""Three times as long as clients wait for a first comment."""
SETTINGS = {
    "TRUNKLINE_GATEWAY_HTTP__COMMENT_S": "0.2",
    "TRUNKLINE_GATEWAY_PLACEMENT__MIN_RESIDENCE_S": "2",
}


def _engine(model: str) -> str:
    command = (
        f"{sys.executable} -m tests.support.scripted_engine --model {model} --port {{port}} --load-s {LOAD_S}"
    )
    return f'[[engine]]\nname = "{model}"\ncommand = "{command}"\nmodels = ["{model}"]\nmemory = "10 GiB"\n'


def _start_agent(house: House, gateway: Gateway) -> None:
    """One that serves both and has memory for one."""
    file = Path(house.directory, "agent.toml")
    file.write_text('[models]\nmemory = "16 GiB"\n' + "".join(map(_engine, MODELS)))
    house.children.start(
        "agent",
        *("agent", "--gateway", gateway.url, "--join", gateway.token(), "--name", "gpu-1"),
        *("--state", str(house.directory / "agent-state"), "--config", str(file)),
    )


@pytest.fixture
def gateway(house: House) -> Gateway:
    gateway = house.gateway(environment=SETTINGS)
    _start_agent(house, gateway)
    return gateway


async def _ready(client: aiohttp.ClientSession) -> dict[str, bool]:
    async with client.get("/v1/models") as answer:
        return {each["id"]: each["ready"] for each in (await answer.json())["data"]}


async def _offered(client: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(60):
        while set(await _ready(client)) != set(MODELS):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _ask(client: aiohttp.ClientSession, model: str) -> str:
    """The whole stream of an answer."""
    body = {"model": model, "stream": True, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    async with client.post(CHAT, json=body) as answer:
        assert answer.status == 200
        return (await answer.read()).decode()


def _text(stream: str) -> str:
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    pieces = [choice["delta"].get("content") for event in events for choice in json.loads(event)["choices"]]
    return "".join(piece or "" for piece in pieces)


async def test_models_take_turns_in_the_memory_of_one_and_clients_wait_for_them(gateway: Gateway) -> None:
    headers = {"authorization": f"Bearer {gateway.key('tests')}"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(gateway.url, headers=headers, timeout=timeout) as client:
        await _offered(client)
        assert await _ready(client) == {"first": False, "second": False}

        stream = await _ask(client, "first")
        assert stream.startswith(": loading the model\n\n")
        assert stream.endswith("data: [DONE]\n\n")
        assert await _ready(client) == {"first": True, "second": False}
        warm = await _ask(client, "first")
        assert "loading" not in warm
        assert _text(warm) == _text(stream)

        streams = await asyncio.gather(*(_ask(client, model) for model in ("second", "first", "second")))
        assert len({_text(each) for each in streams}) == 1
        assert any(": waiting for room to load the model" in each for each in streams)
        async with client.get("/metrics") as answer:
            metrics = await answer.text()
    assert 'trunkline_model_loads_total{model="second",outcome="loaded"} 1.0' in metrics
    assert 'outcome="failed"' not in metrics


async def test_of_two_gateways_one_loads_what_clients_of_both_wait_for(
    house: House, postgres_address: StoreAddress
) -> None:
    """And when it has stopped, the other one does."""
    gateways: dict[str, Gateway] = {}
    for name in ("first", "second"):
        port = free_port()
        more = {"TRUNKLINE_GATEWAY_CLUSTER__URL": f"http://127.0.0.1:{port}"}
        cluster_key = [] if not gateways else ["--cluster-key", str(gateways["first"].state / "cluster.key")]
        gateways[name] = await asyncio.to_thread(
            house.gateway,
            *("--store", postgres_address.url, *cluster_key),
            name=name,
            port=port,
            environment=SETTINGS | more,
        )
    owner, other = gateways.values()
    _start_agent(house, owner)
    key = await asyncio.to_thread(owner.key, "tests")
    headers, timeout = {"authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(owner.url, headers=headers, timeout=timeout) as to_owner,
        aiohttp.ClientSession(other.url, headers=headers, timeout=timeout) as to_other,
    ):
        await _offered(to_owner)
        await _offered(to_other)
        assert (await _ask(to_other, "first")).endswith("data: [DONE]\n\n")
        assert (await _ask(to_owner, "second")).endswith("data: [DONE]\n\n")
        assert '"model_load"' in owner.child.log.read_text()
        assert '"model_load"' not in other.child.log.read_text()
        await asyncio.to_thread(house.children.stop, owner.child)
        assert (await _ask(to_other, "first")).endswith("data: [DONE]\n\n")
        assert '"model_load"' in other.child.log.read_text()
