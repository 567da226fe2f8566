"""Agents that are revoked, renamed or given a new key of the gateway while they run requests."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from tests.integration.asking import CHAT, HeardStream, chat
from tests.integration.conftest import Site
from tests.support.processes import answer_to, until

CONTINUES = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}
LONG_TOKENS = 60


@dataclass
class Heard(HeardStream):
    """What became of one streamed request."""

    agent: str


async def ask(client: aiohttp.ClientSession, tokens: int, heard: list[Heard]) -> None:
    body = chat(model="moving", stream=True, max_tokens=tokens, script={"tokens_per_s": 40})
    async with client.post(CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        mine = Heard(response.headers["x-trunkline-agent"])
        heard.append(mine)
        await mine.read(response)


@pytest.fixture(scope="module")
def both(site: Site) -> Iterator[dict[str, Child]]:
    """The agents ``leaving`` and ``staying``, which serve one engine's model."""
    house = site.house
    engine = house.engine("--model", "moving", name="moving-engine")
    agents = {
        name: house.agent(site.gateway, engine.url, "--slots", "16", name=name, environment=CONTINUES)
        for name in ("leaving", "staying")
    }
    with Store.open(site.gateway.state) as store:
        until("both joined", lambda: all(map(store.agents.get, agents)), 60)
    house.wait_for_model(site.gateway, site.key, "moving")
    yield agents
    for child in (*agents.values(), engine.child):
        house.children.stop(child)


async def test_streams_of_a_revoked_agent_move_and_no_client_sees_it(
    site: Site, both: dict[str, Child]
) -> None:
    leaving = both["leaving"]
    headers = {"authorization": f"Bearer {site.key}"}
    long: list[Heard] = []
    short: list[Heard] = []
    async with (
        aiohttp.ClientSession(site.gateway.url, headers=headers) as client,
        asyncio.TaskGroup() as tasks,
    ):
        async with asyncio.timeout(60):
            while {each.agent for each in short} != {*both}:
                await asyncio.gather(*(ask(client, 1, short) for _ in range(4)))
        for _ in range(8):
            tasks.create_task(ask(client, LONG_TOKENS, long))
        await asyncio.to_thread(until, "both work", lambda: {e.agent for e in long if e.text} == {*both})
        with Store.open(site.gateway.state) as store:
            store.agents.revoke("leaving", "sold", time.time())
        async with asyncio.timeout(60):
            while (code := leaving.ended(0.0)) is None:
                await ask(client, 1, short)
        short.clear()
        await asyncio.gather(*(ask(client, 1, short) for _ in range(4)))
    assert code == 1, leaving.tail()
    assert "was revoked: sold" in leaving.tail()
    for each in long:
        assert (each.text, each.error, each.done) == (answer_to("hi", LONG_TOKENS), "", True)
    assert {each.agent for each in short} == {"staying"}


def test_a_connected_agent_takes_its_new_name_and_the_gateways_new_key(
    site: Site, both: dict[str, Child]
) -> None:
    record = site.house.directory / "staying-state" / "membership.json"
    with Store.open(site.gateway.state) as store:
        key = store.identity.rotate(86_400.0, time.time()).current.id
        store.agents.rename("staying", "stayed")

    def taken() -> bool:
        said = json.loads(record.read_text())
        return (said["name"], said["gateway"][:16]) == ("stayed", key)

    until("it has taken both", taken)
    assert "moving" in site.gateway.models(site.key)
    both["staying"].check()
