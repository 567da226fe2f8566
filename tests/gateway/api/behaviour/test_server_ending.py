"""The server ends: who is idle goes at once, who is not is cut in time, and no line blames anybody."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.api.server.protocol import BoundedHttpProtocol
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, GatewayServer, bind, build_server
from tests.gateway.api.server.test_server import ASK, STREAM, Wire, wire
from tests.gateway.api.support import EVENTS, FakeResponse, Surface


@asynccontextmanager
async def client_of(surface: Surface) -> AsyncIterator[tuple[GatewayServer, "asyncio.Task[None]", Wire]]:
    """A server, its life, and a client that is connected to it."""
    address = Address("127.0.0.1", 0)
    server = build_server(surface.app, address, ConnectionLimits(), lambda **options: None)
    listener = bind(address)
    serving = asyncio.get_running_loop().create_task(server.serve([listener]))
    await server.ready.wait()
    async with wire(f"127.0.0.1:{listener.getsockname()[1]}") as client:
        yield server, serving, client


async def test_idle_connections_are_closed_at_once(
    log_records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.api.server.server.LAST_WORDS_S", 3600.0)
    async with client_of(Surface()) as (server, serving, client):
        client.post(ASK)
        await client.until(b'{"ok":true}')
        server.should_exit = True
        assert await client.rest() == b""
        async with asyncio.timeout(60):
            await serving
    assert not log_records


async def test_a_timer_that_wakes_before_a_client_was_quiet_for_long_waits_again() -> None:
    async with client_of(Surface()) as (server, serving, client):
        client.post(ASK)
        await client.until(b'{"ok":true}')
        (connection,) = server.server_state.connections
        assert isinstance(connection, BoundedHttpProtocol)
        first = connection.timeout_keep_alive_task
        connection.timeout_keep_alive_handler()
        again = connection.timeout_keep_alive_task
        assert first is not None
        assert again is not None
        assert again is not first
        client.post(ASK)
        await client.until(b'{"ok":true}')
        assert connection.timeout_keep_alive_task is again, "one timer for all of its requests"
        connection._idle_until_s = asyncio.get_running_loop().time() - 1
        connection.timeout_keep_alive_handler()
        assert await client.rest() == b""
        server.should_exit = True
        await serving


async def test_no_timer_ends_a_connection_whose_request_is_being_answered() -> None:
    surface = Surface()
    slow = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with client_of(surface) as (server, serving, client):
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        (connection,) = server.server_state.connections
        assert isinstance(connection, BoundedHttpProtocol)
        connection.timeout_keep_alive_handler()
        slow.feed(b"data: late\n\n")
        await client.until(b"late")
        slow.end()
        await client.until(b"0\r\n\r\n")
        server.should_exit = True
        await serving


async def test_a_half_sent_request_does_not_keep_it(
    log_records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.api.server.server.LAST_WORDS_S", 3600.0)
    async with client_of(Surface()) as (server, serving, client):
        client.send(b"POST /v1/chat")
        await asyncio.sleep(0)
        server.should_exit = True
        assert await client.rest() == b""
        async with asyncio.timeout(60):
            await serving
    assert not log_records


async def test_an_answer_under_way_is_cut_after_the_last_words(
    log_records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.api.server.server.LAST_WORDS_S", 0.05)
    surface = Surface()
    surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with client_of(surface) as (server, serving, client):
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        server.should_exit = True
        async with asyncio.timeout(60):
            await serving
        assert not server.server_state.connections
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.until(b"0\r\n\r\n")
    assert not log_records


async def test_an_answer_that_ends_in_time_is_whole() -> None:
    surface = Surface()
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with client_of(surface) as (server, serving, client):
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        server.should_exit = True
        while server.servers[0].is_serving():  # noqa: ASYNC110 (it does not tell)
            await asyncio.sleep(0)
        response.feed(b"data: 1\n\n")
        response.end()
        assert (await client.rest()).endswith(b"data: 1\n\n\r\n0\r\n\r\n")
        async with asyncio.timeout(60):
            await serving
