"""Nobody stays for ever: what is still to come has a limit, and what is still to be taken, too."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.api.server.protocol import bounded
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, bind, build_server
from tests.gateway.api.server.test_server import ASK, HEAD, STREAM, Wire, wire
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


@pytest.mark.parametrize(
    "second",
    [
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        UPGRADE,
        b"no request\r\n\r\n",
    ],
)
@pytest.mark.parametrize("apart", [False, True])
async def test_what_is_wrong_with_a_request_is_no_answer_to_the_one_before_it(
    second: bytes, apart: bool
) -> None:
    surface = Surface()
    response = surface.dispatcher.answer(FakeResponse(ended=False, chunks=()))
    async with served(surface) as address, wire(address) as client:
        client.post(ASK)
        if apart:
            await asyncio.sleep(0.02)
        client.send(second)
        assert b" 400 " not in await client.rest()
        async with asyncio.timeout(60):
            await surface.lifecycle.wait_idle()
    assert response.aborted or not surface.dispatcher.requests


async def test_an_empty_line_behind_a_request_ends_nothing(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with served(surface, ConnectionLimits(head_s=0.3)) as address, wire(address) as client:
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        client.send(b"\r\n")
        await asyncio.sleep(0.6)
        response.feed(b"data: [DONE]\n\n")
        response.end()
        await client.until(b"0\r\n\r\n")
        client.send(b"\r\n")
        client.post(ASK)
        assert b"200 OK" in await client.until(b"\r\n\r\n")


@pytest.mark.parametrize("ends", ["client", "application", "answer", "slowly read answer"])
async def test_who_leaves_the_rest_of_an_answer_is_cut_off_however_it_ended(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("gateway.api.server.protocol.UNTAKEN_S", 0.2)
    size_bytes = 60_000  # less than makes the server wait for its client
    if ends == "slowly read answer":
        size_bytes = 150_000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % (size_bytes + (ends == "application")))]
        if ends.endswith("answer"):
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(
            {"type": "http.response.body", "body": bytes(size_bytes), "more_body": ends == "application"}
        )

    loop, lost, made = asyncio.get_running_loop(), asyncio.Event(), list[Any]()
    config = Config(app, lifespan="off", log_config=None)
    config.load()
    kind = bounded(ConnectionLimits())

    class Watched(kind):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.append(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server = await loop.create_server(lambda: Watched(config, ServerState(), {}, loop), sock=listener)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(60):
            while not (made and made[0].get_write_buffer_size()):  # noqa: ASYNC110 (the kernel takes the first)
                await asyncio.sleep(0.001)
            if ends == "client":
                client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # it took longer than it may
                while ends == "slowly read answer" and made[0].get_write_buffer_size() > 14_000:
                    await loop.sock_recv(client, 1000)
            await lost.wait()
        server.close()


async def test_a_connection_that_its_client_ends_in_a_trailer_is_ended(address: str) -> None:
    """The parser heeds it there, too, and reads nothing behind it."""
    async with wire(address) as client:
        client.send(HEAD + CHUNKS + b"%x\r\n%b\r\n0\r\nConnection: close\r\n\r\n" % (len(ASK), ASK))
        assert b"connection: close" in await client.until(b'{"ok":true}')
        assert await client.rest() == b""
