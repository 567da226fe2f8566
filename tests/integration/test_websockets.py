"""Clients' WebSockets to engines, through processes of gateway and agent (PROTOCOL §5.5)."""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.integration.conftest import Site
from tests.integration.sockets import open_socket
from tests.support.echo_engine import EchoEngine, echo_engine
from tests.support.processes import fetch, until
from tests.support.proxy import FaultyProxy

MODEL = "echo"
CUT_EVERY_S = 2.0
CUT_FOR_S = 12.0
MESSAGES = 1000


@asynccontextmanager
async def served(site: Site, name: str, *arguments: str) -> AsyncIterator[tuple[EchoEngine, FaultyProxy]]:
    """An echo engine whose agent dials through a proxy that may fail."""
    model, house, gateway = f"{MODEL}-{name}", site.house, site.gateway
    async with echo_engine(model) as engine, FaultyProxy("127.0.0.1", gateway.port) as proxy:
        agent = house.agent(gateway, engine.url, *arguments, name=f"{model}-agent", dial=proxy.url)
        try:
            await asyncio.to_thread(house.wait_for_model, gateway, site.key, model)
            yield engine, proxy
        finally:
            await asyncio.to_thread(house.children.stop, agent)


async def until_true(what: str, condition: Any, seconds: float = 60.0) -> None:
    await asyncio.to_thread(until, what, condition, seconds)


def message(number: int) -> str | bytes:
    """Texts and bytes of all lengths, each different."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    text = f"{number} " + digest * (number % 97 if number % 200 else 2000)
    return text if number % 3 else text.encode()


async def test_a_call_over_a_tunnel_that_is_cut_again_and_again_loses_and_doubles_nothing(site: Site) -> None:
    async with (
        served(site, "cut") as (engine, proxy),
        open_socket(site, f"/engines/{MODEL}-cut/ws") as socket,
    ):
        ends_s = time.monotonic() + CUT_FOR_S
        cuts = sent = 0

        async def cut() -> None:
            nonlocal cuts
            while time.monotonic() < ends_s:
                await asyncio.sleep(CUT_EVERY_S)
                await proxy.cut()
                cuts += 1

        async def send() -> None:
            nonlocal sent
            while time.monotonic() < ends_s or sent < MESSAGES:
                await socket.send(message(sent))
                sent += 1
                await asyncio.sleep(0.01)
            await socket.send("last")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cut())
            tasks.create_task(send())
            received = 0
            while (found := await socket.recv()) != "last":
                assert found == message(received)
                received += 1
        assert received == sent >= MESSAGES
        assert cuts >= CUT_FOR_S / CUT_EVERY_S / 2
        assert engine.received == sent + 1
        await socket.close(4321, "enough of this")
        await until_true("the engine heard how the client closed", lambda: engine.closed)
        assert engine.closed == [(4321, "enough of this")]
        assert engine.open == 0


async def test_an_engines_code_and_reason_reach_the_client_and_the_slot_is_free_again(site: Site) -> None:
    async with served(site, "close", "--slots", "1") as (engine, _):
        for _ in range(3):  # there is one slot
            async with open_socket(site, f"/engines/{MODEL}-close/ws") as socket:
                await socket.send("hello")
                assert await socket.recv() == "hello"
                await socket.send("close 4007 engine is tired")
                with pytest.raises(ConnectionClosed) as caught:
                    await socket.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4007, "engine is tired")
        assert engine.open == 0


async def test_the_log_says_how_many_bytes_came_over_a_socket(site: Site) -> None:
    path = f"/engines/{MODEL}-log/ws"
    async with served(site, "log"), open_socket(site, path) as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"
        await socket.close()

    def said() -> list[str]:
        lines = site.gateway.child.log.read_text().splitlines()
        return [line for line in lines if path in line and "bytes_in" in line]

    await until_true("it is logged", said)
    assert [re.findall(r"bytes_in\W+(\d+)", line) for line in said()] == [["5"]]


async def test_a_socket_holds_its_slot_as_long_as_it_is_open(site: Site) -> None:
    path = f"/engines/{MODEL}-slot/ws"
    async with served(site, "slot", "--slots", "1") as (engine, _):
        async with open_socket(site, path) as first:
            second = asyncio.ensure_future(open_socket(site, path).__aenter__())
            await first.send("a")
            assert await first.recv() == "a"
            assert not second.done()
            assert engine.open == 1
        socket: ClientConnection = await second
        await socket.send("b")
        assert await socket.recv() == "b"
        await socket.close()


async def test_a_client_that_vanishes_gives_its_slot_back(site: Site) -> None:
    async with served(site, "gone") as (engine, _):
        socket = await open_socket(site, f"/engines/{MODEL}-gone/ws").__aenter__()
        await socket.send("a")
        assert await socket.recv() == "a"
        socket.transport.abort()
        await until_true("the engine's socket is closed", lambda: engine.open == 0)


async def test_openais_browser_clients_show_their_key_as_a_subprotocol(site: Site) -> None:
    async with served(site, "realtime") as (engine, _):
        offered = ["realtime", f"openai-insecure-api-key.{site.key}", "openai-beta.realtime-v1"]
        path = f"/v1/realtime?model={MODEL}-realtime&x=1"
        async with open_socket(site, path, key="", subprotocols=offered) as socket:
            assert socket.subprotocol == "realtime"
            await socket.send("hello")
            assert await socket.recv() == "hello"
        (request,) = engine.requests
        assert request.path == path
        assert request.headers["sec-websocket-protocol"] == "realtime, openai-beta.realtime-v1"
        assert site.key not in str(request.headers)


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/engines/echo-no/ws", "wrong", 401),
        ("/engines/echo-no/refused", None, 403),
        ("/engines/nobody-serves-this/ws", None, 404),
        ("/v1/realtime", None, 400),
    ],
)
async def test_a_socket_that_cannot_be_is_refused_with_a_status(
    site: Site, path: str, key: str | None, status: int
) -> None:
    async with served(site, "no"):
        with pytest.raises(InvalidStatus) as caught:
            async with open_socket(site, path, key=key):
                pass
        assert caught.value.response.status_code == status


async def test_long_messages_pass_in_frames_and_a_frame_longer_than_the_limit_is_refused(site: Site) -> None:
    async with served(site, "long") as (engine, _):
        path = f"/engines/{MODEL}-long/ws"

        async def fragments() -> AsyncIterator[bytes]:
            for _ in range(24):
                yield bytes(500_000)

        async with open_socket(site, path) as socket:
            await socket.send(fragments())
            found = await socket.recv()
            assert len(found) == 12_000_000
            await socket.send(bytes((1 << 20) + 1))
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        await until_true("the engine's socket is closed", lambda: engine.open == 0)


async def test_a_plain_request_for_the_realtime_path_is_told_what_to_do(site: Site) -> None:
    with pytest.raises(OSError, match="426"):
        await asyncio.to_thread(fetch, f"{site.base_url}/realtime?model=x", key=site.key)
