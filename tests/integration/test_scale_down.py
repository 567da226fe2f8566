"""Four agents are scaled down to one while they stream: no client loses or doubles a token."""

import asyncio
from dataclasses import dataclass

import aiohttp
import pytest

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from tests.integration.asking import CHAT, HeardStream, chat
from tests.integration.conftest import Site
from tests.support.processes import answer_to, until

CONTINUES = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}
NAMES = ("end-1", "end-2", "end-3", "end-4")
TOKENS_PER_S = 10


@dataclass
class Heard(HeardStream):
    """What became of one streamed request."""

    number: int


async def ask(client: aiohttp.ClientSession, mine: Heard, tokens: int) -> None:
    script = {"tokens_per_s": TOKENS_PER_S}
    messages = [{"role": "user", "content": f"question {mine.number}"}]
    body = chat(messages=messages, model="shrinking", stream=True, max_tokens=tokens, script=script)
    async with client.post(CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        await mine.read(response)


async def end(client: aiohttp.ClientSession, name: str, child: Child, site: Site) -> int:
    """As an autoscaler does: drain the agent with its streams moved, then end it. How many moved."""
    moved = 0
    while True:
        async with client.post(f"/admin/agents/{name}/move") as response:
            said = await response.json()
            assert response.status == 200, said
        moved += int(said["moved"])
        if not said["streams"]:
            break
        await asyncio.sleep(0.1)
    await asyncio.to_thread(site.house.children.stop, child)
    return moved


async def scaled_down(site: Site, streams: int, tokens: int) -> None:
    house = site.house
    engine = house.engine("--model", "shrinking", name="shrinking-engine")
    agents = {
        name: house.agent(site.gateway, engine.url, "--slots", str(streams), name=name, environment=CONTINUES)
        for name in NAMES
    }
    with Store.open(site.gateway.state) as store:
        await asyncio.to_thread(until, "all joined", lambda: all(map(store.agents.get, agents)), 60)
    await asyncio.to_thread(house.wait_for_model, site.gateway, site.key, "shrinking")
    headers = {"authorization": f"Bearer {site.gateway.key(f'scaler-{streams}', role=AdminRole.OPERATOR)}"}
    heard = [Heard(number) for number in range(streams)]
    every = aiohttp.TCPConnector(limit=0)  # else no more than 100 of them ask at once
    async with aiohttp.ClientSession(site.gateway.url, headers=headers, connector=every) as client:  # noqa: SIM117
        async with asyncio.TaskGroup() as tasks:
            for each in heard:
                tasks.create_task(ask(client, each, tokens))
            await asyncio.to_thread(until, "all stream", lambda: all(each.text for each in heard), 60)
            while len(agents) > 1:
                name = await least(client, agents)
                await end(client, name, agents.pop(name), site)
            assert not all(each.done for each in heard), "they ran while it was scaled down"
    wrong = [
        each
        for each in heard
        if (each.text, each.error, each.done) != (answer_to(f"question {each.number}", tokens), "", True)
    ]
    assert wrong == []
    for child in (*agents.values(), engine.child):
        await asyncio.to_thread(house.children.stop, child)


async def least(client: aiohttp.ClientSession, agents: dict[str, Child]) -> str:
    """The agent with the least remaining work, of those that are left, as the gateway names it."""
    while True:
        async with client.get("/admin/scaling") as response:
            said = (await response.json())["models"]
        costs = [
            (each["cost"], each["agent"])
            for device in said.get("shrinking", {"classes": {}})["classes"].values()
            for each in device["replicas"]
            if each["agent"] in agents
        ]
        if len(costs) == len(agents):
            return str(min(costs)[1])
        await asyncio.sleep(0.2)


async def test_24_streams_on_four_agents_come_whole_when_three_of_them_end(site: Site) -> None:
    await scaled_down(site, 24, 300)


@pytest.mark.cluster
async def test_200_streams_on_four_agents_come_whole_when_three_of_them_end(site: Site) -> None:
    await scaled_down(site, 200, 500)
