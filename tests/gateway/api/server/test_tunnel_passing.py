"""An agent's connection that is for another worker reaches it as it came."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, GatewayServer, bind, build_server
from tests.gateway.api.support import Surface

UPGRADE = (
    b"GET /tunnel/%b HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"x-forwarded-for: 192.0.2.1\r\n\r\n"
)


class Tunnel(asyncio.Protocol):
    """What becomes of an upgraded connection: it says its name and what came."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.name + b" got " + data)


class Workers:
    """Servers that pass on to each other by calling each other."""

    def __init__(self) -> None:
        self.servers: dict[str, GatewayServer] = {}
        self.ports: dict[str, int] = {}
        self.asked: list[str] = []
        self.passes = True
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, surface: Surface, *names: str) -> None:
        for name in names:
            self.servers[name] = server = build_server(
                surface.app,
                Address("127.0.0.1", 0),
                ConnectionLimits(),
                self._tunnel(name),
                pass_on=self._pass_on_from(name),
            )
            listener = bind(Address("127.0.0.1", 0))
            self.ports[name] = listener.getsockname()[1]
            self._tasks.append(asyncio.get_running_loop().create_task(server.serve([listener])))
            await server.ready.wait()

    def _tunnel(self, name: str) -> Callable[..., Any]:
        return lambda **options: Tunnel(name.encode())

    def _pass_on_from(self, own: str) -> Callable[[str, int, bytes], bool]:
        def pass_on(process: str, descriptor: int, data: bytes) -> bool:
            self.asked.append(process)
            if not self.passes or process == own or process not in self.servers:
                return False
            self.servers[process].take_over(socket.socket(fileno=os.dup(descriptor)), data)
            return True

        return pass_on

    async def stop(self) -> None:
        for server in self.servers.values():
            server.should_exit = True
            server.abort_connections()
        await asyncio.gather(*self._tasks)


async def said(port: int, data: bytes, end: bytes) -> tuple[bytes, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(60):
        return await reader.readuntil(end), writer


@pytest.fixture
async def both(no_leaks: None, surface: Surface) -> Any:
    workers = Workers()
    await workers.start(surface, "a", "b")
    yield workers
    await workers.stop()


async def test_it_goes_on_at_the_other_worker_with_the_whole_head(both: Workers) -> None:
    answer, writer = await said(both.ports["a"], UPGRADE % b"b", b"\r\n\r\n")
    assert answer == b"b got " + UPGRADE % b"b"
    writer.transport.abort()


async def test_it_stays_where_it_is_wanted_or_where_nobody_takes_it(both: Workers) -> None:
    for path, passes in ((b"a", True), (b"c", True), (b"b", False)):
        both.passes = passes
        answer, writer = await said(both.ports["a"], UPGRADE % path, b"\r\n\r\n")
        assert answer.startswith(b"a got GET /tunnel/" + path)
        writer.transport.abort()
    assert both.asked == ["a", "c", "b"]


async def test_the_path_of_any_process_is_not_passed_on(both: Workers) -> None:
    for path in (b"GET /tunnel HTTP/1.1", b"GET /tunnel/ HTTP/1.1"):
        head = UPGRADE.replace(b"GET /tunnel/%b HTTP/1.1", path)
        answer, writer = await said(both.ports["a"], head, b"\r\n\r\n")
        assert answer.startswith(b"a got " + path)
        writer.transport.abort()
    assert both.asked == []


async def test_it_may_follow_a_request_on_the_same_connection(both: Workers) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", both.ports["a"])
    async with asyncio.timeout(60):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(UPGRADE % b"b")
        assert (await reader.readuntil(b"\r\n\r\n")).endswith(b"b got " + UPGRADE % b"b")
    writer.transport.abort()


async def test_requests_that_are_no_tunnels_are_answered_where_they_come(both: Workers) -> None:
    answer, writer = await said(
        both.ports["a"], b"GET /tunnel/b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 4")
    assert both.asked == []
    writer.transport.abort()
