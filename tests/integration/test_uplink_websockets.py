"""Clients' WebSockets through a parent gateway, its child and an agent to an engine: processes of their own,
and both tunnels cut again and again (PROTOCOL §5.5, §7.6).
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.integration.regions import join
from tests.support.echo_engine import EchoEngine, echo_engine
from tests.support.processes import Gateway, House, until
from tests.support.proxy import FaultyProxy

MODEL = "echo"
CUTS, MESSAGES = 6, 1200


@dataclass(frozen=True)
class Line:
    """A way from a client to an engine."""

    parent: Gateway
    key: str
    engine: EchoEngine
    tunnels: tuple[FaultyProxy, FaultyProxy]
    """Between the parent and its child, and between that and its agent."""

    def socket(self, path: str = f"/engines/{MODEL}/ws", *, offered: list[str] | None = None) -> connect:
        """``offered`` are subprotocols; one of them carries the key."""
        return connect(
            self.parent.url.replace("http", "ws", 1) + path,
            additional_headers={} if offered else {"authorization": f"Bearer {self.key}"},
            subprotocols=offered,  # type: ignore[arg-type]
            compression=None,
            max_size=None,
            proxy=None,
        )


@contextlib.asynccontextmanager
async def _line(house: House, *arguments: str) -> AsyncIterator[Line]:
    parent = await asyncio.to_thread(house.gateway, name="parent")
    async with echo_engine(MODEL) as engine, FaultyProxy("127.0.0.1", parent.port) as up:
        child = await asyncio.to_thread(join, house, parent, dial=up.url)
        async with FaultyProxy("127.0.0.1", child.port) as down:
            agent = house.agent(child, engine.url, *arguments, name="gpu-1", dial=down.url)
            key = parent.key("tests")
            await asyncio.to_thread(house.wait_for_model, parent, key, MODEL)
            yield Line(parent, key, engine, (up, down))
            await asyncio.to_thread(house.children.stop, agent)


def _message(number: int) -> str | bytes:
    text = f"{number} " + "x" * (number % 97 if number % 300 else 70_000)
    return text if number % 3 else text.encode()


def _has_more_than(tunnel: FaultyProxy, accepted: int) -> bool:
    return tunnel.accepted > accepted


async def _echoed(socket: ClientConnection, count: int) -> None:
    for number in range(count):
        assert await socket.recv() == _message(number)


async def test_messages_pass_whole_and_in_order_while_both_tunnels_are_cut(house: House) -> None:
    async with _line(house) as line, line.socket() as socket:
        accepted = [tunnel.accepted for tunnel in line.tunnels]
        received = asyncio.create_task(_echoed(socket, MESSAGES))
        for number in range(MESSAGES):
            await socket.send(_message(number))
            if number % (MESSAGES // CUTS) == MESSAGES // CUTS // 2:
                cut = line.tunnels[number // (MESSAGES // CUTS) % 2]
                renewed = functools.partial(_has_more_than, cut, cut.accepted)
                await cut.cut()
                await asyncio.to_thread(until, "a new tunnel", renewed, 30.0)
        await received
        assert all(tunnel.accepted > was for tunnel, was in zip(line.tunnels, accepted, strict=True))
        assert line.engine.received == MESSAGES
        await socket.close(4321, "enough of this")
        await asyncio.to_thread(until, "the engine heard how it was closed", lambda: line.engine.closed)
        assert line.engine.closed == [(4321, "enough of this")]


async def test_an_engines_code_comes_back_and_its_slot_is_free_again(house: House) -> None:
    async with _line(house, "--slots", "1") as line:
        for _ in range(3):  # there is one slot
            async with line.socket() as socket:
                await socket.send("close 4007 engine is tired")
                with pytest.raises(ConnectionClosed) as caught:
                    await socket.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4007, "engine is tired")
        vanishing = await line.socket().__aenter__()
        await vanishing.send("a")
        assert await vanishing.recv() == "a"
        vanishing.transport.abort()
        await asyncio.to_thread(until, "the engine's socket is closed", lambda: line.engine.open == 0)


async def test_subprotocols_arrive_without_the_key_and_a_refusal_keeps_its_status(house: House) -> None:
    async with _line(house) as line:
        path = f"/v1/realtime?model={MODEL}"
        offered = ["realtime", f"openai-insecure-api-key.{line.key}", "beta"]
        async with line.socket(path, offered=offered) as socket:
            assert socket.subprotocol == "realtime"
            await socket.send("hello")
            assert await socket.recv() == "hello"
            assert socket.response is not None
            assert socket.response.headers["x-trunkline-ran-by"] == "gpu-1"
        (request,) = line.engine.requests
        assert request.headers["sec-websocket-protocol"] == "realtime, beta"
        assert line.key not in str(request.headers)
        with pytest.raises(InvalidStatus) as caught:
            async with line.socket(f"/engines/{MODEL}/refused"):
                pass
        assert caught.value.response.status_code == 403
