"""The gateway is killed and started again: all are back by themselves, and what was known is known."""

import asyncio
import signal

import aiohttp
import pytest

from tests.bench import restart
from tests.integration.asking import CHAT, chat, error_of
from tests.support.processes import House, fetch

AGENTS = 10
GENEROUS_S = 60.0
"""For machines that do much else; ``tests/run bench restart`` measures."""

WHILE_DOWN = {"ConnectionRefusedError", "ConnectionResetError", "closed", "503"}


async def test_agents_keys_and_models_are_back_after_a_kill(house: House) -> None:
    site = await asyncio.to_thread(restart.build, house, AGENTS, 1)
    gateway, headers = site.gateway, {"authorization": f"Bearer {site.key}"}
    token = await asyncio.to_thread(gateway.token)
    long = chat(model="a0", stream=True, max_tokens=10_000, script={"tokens_per_s": 20})
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        cut = await session.post(CHAT, json=long)
        await cut.content.readany()
        figures = await asyncio.to_thread(restart.run, site, 1, impatient=True)
        with pytest.raises(aiohttp.ClientError):
            await cut.read()
        unknown = await session.post(CHAT, json=chat(model="nobody-has-this"))
        assert (unknown.status, (await error_of(unknown))["code"]) == (404, "model_not_found")
    (kill,) = figures.kills
    assert len(kill.answered_s) == AGENTS
    assert max(figures.after(lambda kill: kill.listening_s)) < GENEROUS_S
    assert kill.refused["ConnectionRefusedError"] > 0
    assert set(kill.refused) <= WHILE_DOWN, "a model that was served is waited for, not denied"
    newcomer = await asyncio.to_thread(newly_joined, site, token)
    assert newcomer == 0


def newly_joined(site: restart.Site, token: str) -> int | None:
    """Joins with a token made before the kill; the exit code of an agent that is stopped once it serves."""
    engine = site.house.engine("--model", "late", name="late-engine")
    agent = site.house.agent(site.gateway, engine.url, name="late", token=token)
    site.house.wait_for_model(site.gateway, site.key, "late")
    assert len(fetch(f"{site.gateway.base_url}/models", key=site.key)["data"]) == AGENTS + 1
    agent.signal(signal.SIGTERM)
    return agent.ended(60.0)
