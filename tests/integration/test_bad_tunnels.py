"""Peers that are no agents, agents that lie, and tunnels that break."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from tests.integration.asking import CHAT, chat
from tests.integration.conftest import Site
from tests.support.processes import Engine, answer_to, fetch, until
from tests.support.proxy import FaultyProxy

_UPGRADE = (
    b"GET /tunnel HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"sec-websocket-protocol: trunkline.1\r\n\r\n"
)
_LET_GO_S = 60.0
"""A stranger has five seconds."""


def _text_of(stream: bytes) -> str:
    """What the chunks of a streamed chat say."""
    events = [event[len(b"data: ") :] for event in stream.split(b"\n\n") if event.startswith(b"data: {")]
    deltas = [choice["delta"] for event in events for choice in orjson.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def _until_closed(reader: asyncio.StreamReader, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        try:
            await reader.read(-1)
        except ConnectionResetError:
            pass


@asynccontextmanager
async def _behind_a_faulty_network(site: Site, model: str) -> AsyncIterator[tuple[FaultyProxy, Engine]]:
    """An agent and an engine of their own that serve ``model``, dialling through the proxy."""
    house, gateway = site.house, site.gateway
    engine = house.engine("--model", model, name=f"{model}-engine")
    async with FaultyProxy("127.0.0.1", gateway.port) as proxy:
        agent = house.agent(gateway, engine.url, name=f"{model}-agent", dial=proxy.url)
        await asyncio.to_thread(house.wait_for_model, gateway, site.key, model)
        yield proxy, engine
        await asyncio.to_thread(house.children.stop, agent)
        await asyncio.to_thread(house.children.stop, engine.child)


@pytest.mark.parametrize("sent", [b"\x00" * 100, b"\xff" * 70_000, b"\x82\x7f" + b"\xff" * 8])
async def test_garbage_before_authentication_ends_that_tunnel_alone(
    watched: aiohttp.ClientSession, faulty: Site, sent: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", faulty.gateway.port)
    writer.write(_UPGRADE)
    assert b" 101 " in await reader.readline()
    writer.write(sent)
    await _until_closed(reader, _LET_GO_S)
    writer.close()
    async with watched.post(CHAT, json=chat()) as response:
        assert response.status == 200


async def test_a_peer_that_never_says_hello_is_let_go(watched: aiohttp.ClientSession, faulty: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", faulty.gateway.port)
    writer.write(_UPGRADE)
    await _until_closed(reader, _LET_GO_S)
    writer.close()


async def test_garbage_after_authentication_ends_the_tunnel_and_the_agent_comes_back(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    async with _behind_a_faulty_network(faulty, "shaky") as (proxy, _):
        proxy.corrupt()
        body = chat(model="shaky", stream=True, script={"tokens_per_s": 50}, max_tokens=20)
        async with asyncio.timeout(60), watched.post(CHAT, json=body) as response:
            await response.read()
        await asyncio.to_thread(until, "it dialled again", lambda: proxy.accepted >= 2)
        await asyncio.to_thread(faulty.house.wait_for_model, faulty.gateway, faulty.key, "shaky")
        async with asyncio.timeout(60), watched.post(CHAT, json=chat(model="shaky", max_tokens=3)) as again:
            assert (await again.json())["choices"][0]["message"]["content"] == answer_to("hi", 3)


async def test_an_answer_survives_any_number_of_cut_tunnels_byte_for_byte(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    async with _behind_a_faulty_network(faulty, "cut") as (proxy, engine):
        body = chat(model="cut", stream=True, script={"stepped": True}, max_tokens=100)
        received = b""
        async with asyncio.timeout(60), watched.post(CHAT, json=body) as response:
            async for piece in response.content.iter_any():
                received += piece
                if proxy.accepted < 5 and received.count(b"\n\n") > 10 * proxy.accepted:
                    await proxy.cut()
                await asyncio.to_thread(fetch, f"{engine.url}/_step", body={})  # the next token
        assert proxy.accepted == 5
        assert _text_of(received) == answer_to("hi", 100)
        assert received.endswith(b"data: [DONE]\n\n")


async def test_an_agent_cannot_offer_models_its_token_does_not_allow(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    house, gateway = faulty.house, faulty.gateway
    engine = house.engine("--model", "allowed-1", "--model", "forbidden-1", name="liar-engine")
    agent = house.agent(gateway, engine.url, name="liar", token=gateway.token(models=["allowed-*"]))
    await asyncio.to_thread(house.wait_for_model, gateway, faulty.key, "allowed-1")
    assert "forbidden-1" not in gateway.models(faulty.key)
    async with watched.post(CHAT, json=chat(model="forbidden-1")) as response:
        assert response.status == 404
    await asyncio.to_thread(house.children.stop, agent)
    await asyncio.to_thread(house.children.stop, engine.child)
