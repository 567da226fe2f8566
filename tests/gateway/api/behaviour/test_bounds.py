"""Nobody stays for ever: what is still to come has a limit, and what is still to be taken, too."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, bind, build_server
from tests.gateway.api.server.test_server import ASK, STREAM, Wire, wire
from tests.gateway.api.support import EVENTS, FakeResponse, Surface, served

STRANGER = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
LENGTH, CHUNKS = b"content-length: 5\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"
UPGRADE = b"GET /tunnel HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Of a server whose patience is short."""
    monkeypatch.setattr("gateway.api.server.server.KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr("gateway.api.server.protocol.UNREAD_S", 0.2)
    async with served(Surface(), ConnectionLimits(head_s=0.2)) as where:
        yield where


async def answered(client: Wire, head: bytes, rest: bytes) -> bytes:
    """What comes for ``rest``, behind a head whose answer came before it; until the server closes."""
    client.send(STRANGER + head)
    await client.until(b"}}")
    client.send(rest)
    async with asyncio.timeout(60):
        return await client.rest()


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (LENGTH, b"hello"),
        (LENGTH, b"hel"),
        (CHUNKS, b"5\r\nhello\r\n0\r\n\r\n"),
        (CHUNKS, b"5"),
        (CHUNKS, b"5;extension="),
        (CHUNKS, b"0\r\nx"),
    ],
)
async def test_who_goes_on_sending_after_the_answer_and_stops_is_not_waited_for(
    address: str, head: bytes, rest: bytes
) -> None:
    async with wire(address) as client:
        assert await answered(client, head, rest) == b""


async def test_a_head_that_begins_behind_a_late_body_has_its_time_too(address: str) -> None:
    async with wire(address) as client:
        assert b"408" in await answered(client, LENGTH, b"helloGET / HT")


async def test_who_is_quiet_after_some_requests_is_not_kept_for_ever(address: str) -> None:
    async with wire(address) as client:
        client.post(ASK)
        client.post(ASK)
        await client.until(b'{"ok":true}')
        await client.until(b'{"ok":true}')
        async with asyncio.timeout(60):
            assert await client.rest() == b""


async def test_a_late_body_does_not_end_the_connection(address: str) -> None:
    async with wire(address) as client:
        client.send(STRANGER + LENGTH)
        await client.until(b"}}")
        client.send(b"helloGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " in await client.until(b'{"status":"ok"}')


@pytest.mark.parametrize("length", [(), (("content-length", "67108864"),)])
async def test_who_never_takes_his_answer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, length: tuple[tuple[str, str], ...]
) -> None:
    monkeypatch.setattr("gateway.api.server.protocol.UNTAKEN_S", 0.05)
    surface = Surface()
    response = surface.dispatcher.answer(FakeResponse(headers=length, chunks=(bytes(1024),), ended=False))
    async with served(surface) as address, wire(address) as client:
        client.post(ASK)
        await client.until(b"\r\n\r\n")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        response.feed(*[bytes(1024 * 1024)] * 20)
        async with asyncio.timeout(60):
            await surface.lifecycle.wait_idle()
    assert response.aborted


async def test_a_connection_becomes_no_tunnel_while_it_is_owed_an_answer() -> None:
    surface, upgraded = Surface(), list[object]()
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    server = build_server(
        surface.app,
        Address("127.0.0.1", 0),
        ConnectionLimits(),
        lambda **options: upgraded.append(options) or asyncio.Protocol(),  # type: ignore[func-returns-value]
    )
    listener = bind(Address("127.0.0.1", 0))
    serving = asyncio.get_running_loop().create_task(server.serve([listener]))
    await server.ready.wait()
    async with wire(f"127.0.0.1:{listener.getsockname()[1]}") as client:
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        client.send(UPGRADE)
        await client.rest()
    async with asyncio.timeout(60):
        await surface.lifecycle.wait_idle()
    assert response.aborted
    assert not upgraded
    server.should_exit = True
    await serving
