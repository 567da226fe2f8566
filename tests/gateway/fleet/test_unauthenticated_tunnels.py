"""Connections that have not proved who they are are bounded, and their handshakes take turns."""

import asyncio
from pathlib import Path

import pytest

from gateway.fleet.endpoint import AgentEndpointSettings
from shared.protocol.errors import DialFailed
from tests.gateway.fleet.agent_house import Host, eventually, running_gateway

pytestmark = pytest.mark.usefixtures("no_leaks")

UPGRADE = (
    b"GET /tunnel HTTP/1.1\r\nhost: gateway\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-protocol: trunkline.1\r\n\r\n"
)


@pytest.mark.parametrize(
    "settings",
    [
        AgentEndpointSettings(max_strangers=2),
        AgentEndpointSettings(max_strangers_per_address=2),
    ],
)
async def test_strangers_are_bounded(tmp_path: Path, settings: AgentEndpointSettings) -> None:
    async with running_gateway(tmp_path, settings) as gateway:
        port = int(gateway.url.rpartition(":")[2].partition("/")[0])
        silent = []
        for _ in range(2):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(UPGRADE)
            silent.append(writer)
        await eventually(lambda: gateway.agents.unauthenticated == 2)
        with pytest.raises(DialFailed, match="503"):
            await Host(gateway).dial()
        for writer in silent:
            writer.close()
        await eventually(lambda: not gateway.agents.unauthenticated)
        await Host(gateway).dial()


@pytest.mark.parametrize("garbage", [b"\x00" * 100, b"\xff" * 70_000, b"\x82\x05hello", b"\x81\x02hi"])
async def test_garbage_before_authentication_ends_that_connection_only(
    tmp_path: Path, garbage: bytes
) -> None:
    async with running_gateway(tmp_path) as gateway:
        port = int(gateway.url.rpartition(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(garbage)
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass
        writer.close()
        await eventually(lambda: not gateway.agents.unauthenticated)
        await Host(gateway).dial()


class Wire(asyncio.Transport):
    """A connection of which nothing is read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.gone = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += len(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.gone

    def abort(self) -> None:
        self.gone = True


async def test_a_crowd_is_challenged_in_many_turns_of_the_loop(tmp_path: Path) -> None:
    """One challenge takes 0.1 ms or more, of which 2 ms a turn may be spent."""
    crowd = 250
    async with running_gateway(tmp_path) as gateway:
        wires = [(gateway.agents.protocol(), Wire()) for _ in range(crowd)]
        for tunnel, wire in wires:
            tunnel.connection_made(wire)
        for tunnel, _ in wires:
            tunnel.data_received(UPGRADE)
        most = challenged = 0
        while True:
            before, challenged = challenged, sum(wire.written > 0 for _, wire in wires)
            most = max(most, challenged - before)
            if challenged == crowd:
                break
            await asyncio.sleep(0)
        assert most < crowd / 2
        for tunnel, _ in wires:
            tunnel.abort()
