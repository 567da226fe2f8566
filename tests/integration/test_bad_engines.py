"""Engines that die, lie or fall silent: clients are told, slots come free, nothing leaks."""

import asyncio
import json

import aiohttp
import pytest

from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import Site
from tests.support.processes import fetch, until


@pytest.mark.parametrize("fault", ["die", "close", "garbage"])
async def test_an_engine_that_fails_before_its_head_is_a_502(
    watched: aiohttp.ClientSession, fault: str
) -> None:
    async with watched.post(CHAT, json=chat(script={"fault": fault})) as response:
        assert response.status == 502
        assert (await error_of(response))["code"] == "engine_failed"


async def test_a_rubbish_answer_passes_as_the_engine_wrote_it(watched: aiohttp.ClientSession) -> None:
    async with watched.post(CHAT, json=chat(script={"fault": "rubbish"})) as response:
        assert response.status == 200
        assert await response.read() == b"<html>\xff\xfe rubbish"


@pytest.mark.parametrize("fault", ["die", "close", "garbage"])
async def test_an_engine_that_fails_mid_answer_ends_the_stream_with_an_error(
    watched: aiohttp.ClientSession, fault: str
) -> None:
    body = chat(stream=True, script={"fault": fault, "after": 3, "tokens_per_s": 100})
    async with asyncio.timeout(60), watched.post(CHAT, json=body) as response:
        assert response.status == 200
        received = await response.read()
    events = [json.loads(line[6:]) for line in received.splitlines() if line.startswith(b"data: {")]
    assert "error" in events[-1]
    assert b"[DONE]" not in received


async def test_an_engine_that_says_nothing_is_let_go_when_the_client_goes(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), watched.post(CHAT, json=chat(script={"fault": "hang"})):
            pass
    await asyncio.to_thread(faulty.engine.until_idle)


async def test_an_engine_killed_mid_answer_serves_again_once_it_is_back(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    house, gateway = faulty.house, faulty.gateway
    engine = house.engine("--model", "mortal", name="mortal-engine")
    agent = house.agent(gateway, engine.url, name="mortal-agent")
    await asyncio.to_thread(house.wait_for_model, gateway, faulty.key, "mortal")
    body = chat(model="mortal", stream=True, max_tokens=1000, script={"tokens_per_s": 50})
    async with asyncio.timeout(60), watched.post(CHAT, json=body) as response:
        await response.content.readany()
        await asyncio.to_thread(house.children.stop, engine.child)
        assert b'"error"' in await response.read()
    again = house.engine("--model", "mortal", "--port", engine.url.rpartition(":")[2], name="mortal-again")

    def answered() -> bool:
        try:
            fetch(f"{gateway.url}{CHAT}", body=chat(model="mortal", max_tokens=2), key=faulty.key)
        except OSError:
            return False
        return True

    await asyncio.to_thread(until, "it serves again", answered, 60.0)
    await asyncio.to_thread(house.children.stop, agent)
    await asyncio.to_thread(house.children.stop, again.child)
