"""Stopping in order: nothing new, what runs finishes, and everything is gone at the end."""

import asyncio
import signal
import time
from collections.abc import Callable

import aiohttp

from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to, until


async def test_a_gateway_told_to_stop_lets_its_streams_finish(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    headers = {"authorization": f"Bearer {site.key}"}
    body = chat(stream=True, max_tokens=40, script={"tokens_per_s": 20})
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        response = await session.post(CHAT, json=body)
        await response.content.readany()
        site.gateway.child.signal(signal.SIGTERM)
        await asyncio.to_thread(until, "it takes no more", lambda: not site.gateway.serving())
        received = await response.read()
    assert received.endswith(b"data: [DONE]\n\n")
    assert site.engine.stats()["cancelled"] == 0
    assert await asyncio.to_thread(site.gateway.child.ended, 15.0) == 0


async def test_an_agent_told_to_stop_lets_its_streams_finish(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    agent = next(child for child in site.house.children if child.name == "agent")
    headers = {"authorization": f"Bearer {site.key}"}
    body = chat(stream=True, max_tokens=40, script={"tokens_per_s": 20})
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        response = await session.post(CHAT, json=body)
        await response.content.readany()
        agent.signal(signal.SIGTERM)
        received = await response.read()
    assert received.endswith(b"data: [DONE]\n\n")
    assert await asyncio.to_thread(agent.ended, 15.0) == 0
    assert MODEL not in site.gateway.models(site.key)


async def test_an_idle_house_stops_at_once(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    began_s = time.monotonic()
    for child in reversed(tuple(site.house.children)):
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.ended, 10.0) == 0, child.tail()
    assert time.monotonic() - began_s < 8


async def test_an_agent_survives_the_restart_of_its_gateway(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    house, gateway = site.house, site.gateway
    await asyncio.to_thread(house.children.stop, gateway.child)
    listen = ("--listen", f"127.0.0.1:{gateway.port}", "--state", str(gateway.state))
    house.children.start("gateway-again", "gateway", *listen)
    await asyncio.to_thread(until, "the gateway is back", gateway.serving, 60.0)
    await asyncio.to_thread(house.wait_for_model, gateway, site.key, MODEL, 60.0)
    headers = {"authorization": f"Bearer {site.key}"}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        answer = await (await session.post(CHAT, json=chat(max_tokens=3))).json()
    assert answer["choices"][0]["message"]["content"] == answer_to("hi", 3)
