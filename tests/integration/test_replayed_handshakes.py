"""A handshake that somebody recorded on the way, sent again through a real proxy (PROTOCOL §8)."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from shared.protocol.frames import FrameType, decode_message
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import Site
from tests.support import programs
from tests.support.nginx import PACKAGES, nginx_before
from tests.support.processes import answer_to
from tests.support.proxy import FaultyProxy

_MODEL = "recorded"


@pytest.fixture(scope="module")
def nginx() -> None:
    """nginx is there."""
    missing = programs.install(PACKAGES)
    if missing is not None:
        pytest.skip(missing)


async def _replay(port: int, sent: bytes) -> bytes:
    """Sends the recorded upgrade and then the rest, as the gateway's answers come; what came back until it
    closed the connection."""
    head, end, rest = sent.partition(b"\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + end)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer.partition(b"\r\n")[0]
        writer.write(rest)
        async with asyncio.timeout(15):
            return await reader.read(-1)
    finally:
        writer.close()


def _refused(came: bytes) -> bool:
    """Behind the CHALLENGE, a new one for each connection, the gateway said REJECT and nothing more."""
    messages = _messages(came)
    return [decode_message(message)[1][0].type for message in messages] == [
        FrameType.CHALLENGE,
        FrameType.REJECT,
    ]


def _messages(came: bytes) -> list[bytes]:
    """The binary messages of a server, which masks nothing; what it said at the close is left out."""
    client = ClientProtocol(parse_uri("ws://gateway/tunnel"), state=State.OPEN)
    client.receive_data(came)
    return [
        bytes(event.data)
        for event in client.events_received()
        if isinstance(event, Frame) and event.opcode is Opcode.BINARY
    ]


@pytest.mark.usefixtures("nginx")
async def test_a_recorded_handshake_gets_nobody_in_and_does_the_agent_no_harm(
    faulty: Site, watched: aiohttp.ClientSession, tmp_path: Path
) -> None:
    house, gateway = faulty.house, faulty.gateway
    engine = await asyncio.to_thread(house.engine, "--model", _MODEL, name="recorded-engine")
    with nginx_before(gateway.port, tmp_path) as port:
        async with FaultyProxy("127.0.0.1", port) as proxy:
            proxy.recordings = []
            agent = house.agent(gateway, engine.url, name="recorded-agent", dial=proxy.url)
            await asyncio.to_thread(house.wait_for_model, gateway, faulty.key, _MODEL)
            [recorded] = [bytes(sent) for sent in proxy.recordings if sent.startswith(b"GET /tunnel")]
            body = chat(model=_MODEL, stream=True, script={"tokens_per_s": 20}, max_tokens=40)
            async with asyncio.timeout(60), watched.post(CHAT, json=body) as response:
                told = await asyncio.gather(*(_replay(port, recorded) for _ in range(5)))
                stream = await response.read()
            assert all(_refused(each) for each in told)
            assert stream.rstrip().endswith(b"[DONE]")
            async with watched.post(CHAT, json=chat(model=_MODEL, max_tokens=3)) as again:
                assert (await again.json())["choices"][0]["message"]["content"] == answer_to("hi", 3)
            assert len([sent for sent in proxy.recordings if sent.startswith(b"GET /tunnel")]) == 1, "not cut"
            await asyncio.to_thread(house.children.stop, agent)
    await asyncio.to_thread(house.children.stop, engine.child)
    log = gateway.child.log.read_text()
    assert "agent_replaced" not in log
