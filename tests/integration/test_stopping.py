"""Stopping in order: nothing new, what runs finishes, and everything is gone at the end."""

import asyncio
import json
import signal
import time
from collections.abc import Callable

import aiohttp

from gateway.tools.quickstart.processes import Child
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to, until

DRAINING = {"TRUNKLINE_GATEWAY_DRAIN_S": "0.5"}
ENDLESS = chat(stream=True, max_tokens=10_000, script={"tokens_per_s": 20})
CUT_IN_TIME_S = 60.0
"""Much less than ``ENDLESS`` takes."""
DRAIN_S = 30.0
"""How long each of them would wait for what runs."""
"""For a busy machine; with nothing in the way it takes half a second longer than ``drain_s``."""


def streamed(tokens: int) -> dict[str, object]:
    """One that goes on as the engine is stepped."""
    return chat(stream=True, max_tokens=tokens, script={"stepped": True})


async def rest_of(site: Site, *responses: aiohttp.ClientResponse) -> list[bytes]:
    """What is left of streams that are stepped."""
    reading = [asyncio.ensure_future(each.read()) for each in responses]
    await site.engine.step(lambda: all(each.done() for each in reading))
    return await asyncio.gather(*reading)


def text_of(events: bytes) -> str:
    """What the chunks of a streamed chat say together."""
    chunks = [json.loads(line[6:]) for line in events.split(b"\n\n") if line.startswith(b'data: {"id"')]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


def client(site: Site) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.gateway.url, headers={"authorization": f"Bearer {site.key}"})


async def begun(session: aiohttp.ClientSession, body: object) -> tuple[aiohttp.ClientResponse, bytes]:
    """A stream whose first events came, and these."""
    response = await session.post(CHAT, json=body)
    assert response.status == 200
    return response, await response.content.readany()


async def has_died(site: Site, code: int, within_s: float = 60.0) -> str:
    """What the gateway logged until it ended with that code."""
    child = site.gateway.child
    assert await asyncio.to_thread(child.ended, within_s) == code, child.tail()
    return child.log.read_text()


def is_told_of_the_end(events: bytes) -> bool:
    """The stream ends with an error event that says why, not just somewhere."""
    last = events.strip().split(b"\n\n")[-1]
    assert last.startswith(b"data: {"), last
    error = json.loads(last[6:])["error"]
    return bool(error["code"] == "shutting_down" and error["message"])


async def test_a_gateway_told_to_stop_lets_its_streams_finish(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    agent = next(child for child in site.house.children if child.name == "agent")
    async with client(site) as session:
        idle = await (await session.get("/healthz")).read()
        streams = [await begun(session, streamed(tokens)) for tokens in (30, 60)]
        site.gateway.child.signal(signal.SIGTERM)
        await asyncio.to_thread(until, "it takes no more", lambda: not site.gateway.serving())
        refused = await session.post(CHAT, json=chat())
        assert (refused.status, (await error_of(refused))["code"]) == (503, "shutting_down")
        assert float(refused.headers["retry-after"]) > 0
        rests = await rest_of(site, *(response for response, _ in streams))
        received = [head + rest for (_, head), rest in zip(streams, rests, strict=True)]
        assert idle
    assert [text_of(events) for events in received] == [answer_to("hi", 30), answer_to("hi", 60)]
    assert all(events.endswith(b"data: [DONE]\n\n") for events in received)
    assert site.engine.stats()["cancelled"] == 0
    assert "ancel" not in await has_died(site, 0)
    await asyncio.to_thread(until, "the agent says so", lambda: "gateway drains" in agent.log.read_text())


async def test_a_stream_longer_than_the_deadline_ends_with_an_error(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site, gateway_environment=DRAINING)
    async with client(site) as session:
        response, head = await begun(session, ENDLESS)
        began_s = time.monotonic()
        site.gateway.child.signal(signal.SIGTERM)
        received = head + await response.read()
        assert 0.5 <= time.monotonic() - began_s < CUT_IN_TIME_S
    assert b"[DONE]" not in received
    assert is_told_of_the_end(received)
    log = await has_died(site, 0, CUT_IN_TIME_S)
    assert "cutting_requests" in log
    assert "Cancel" not in log
    await asyncio.to_thread(site.engine.until_idle)


async def test_a_second_signal_ends_the_gateway_at_once(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    async with client(site) as session:
        response, head = await begun(session, ENDLESS)
        site.gateway.child.signal(signal.SIGTERM)
        await asyncio.to_thread(until, "it takes no more", lambda: not site.gateway.serving())
        site.gateway.child.signal(signal.SIGTERM)
        assert is_told_of_the_end(head + await response.read())
    await has_died(site, 0, CUT_IN_TIME_S)


def serves(agent: Child) -> bool:
    said = agent.log.read_text()
    return "connected  " in said and "engine serves" in said


async def test_an_agent_told_to_stop_lets_its_streams_finish(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    agent = next(child for child in site.house.children if child.name == "agent")
    async with client(site) as session:
        response, head = await begun(session, streamed(40))
        other = await asyncio.to_thread(site.house.engine, "--model", MODEL, name="other-engine")
        second = await asyncio.to_thread(site.house.agent, site.gateway, other.url, name="other")
        await asyncio.to_thread(until, "the other agent serves", lambda: serves(second))
        agent.signal(signal.SIGTERM)
        await asyncio.to_thread(until, "it drains", lambda: "draining" in agent.log.read_text())
        answer = await (await session.post(CHAT, json=chat(max_tokens=3))).json()
        assert answer["choices"][0]["message"]["content"] == answer_to("hi", 3)
        received = head + b"".join(await rest_of(site, response))
    assert text_of(received) == answer_to("hi", 40)
    assert received.endswith(b"data: [DONE]\n\n")
    asked = [engine.stats()["requests"].count(f"POST {CHAT}") for engine in (site.engine, other)]
    assert asked == [1, 1]
    assert await asyncio.to_thread(agent.ended, 60.0) == 0
    assert "stopped" in agent.log.read_text()


async def test_an_idle_house_stops_at_once(new_site: Callable[..., Site]) -> None:
    site = await asyncio.to_thread(new_site)
    began_s = time.monotonic()
    for child in reversed(tuple(site.house.children)):
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.ended, 60.0) == 0, child.tail()
    assert time.monotonic() - began_s < DRAIN_S, "nobody waits for anything"


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
