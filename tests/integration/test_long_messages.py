"""Messages of up to a gigabyte on WebSockets of clients and engines: nobody holds them, no one else waits.

``TRUNKLINE_TEST_MESSAGE_MIB=1024`` sends messages of a gibibyte, and ``-rP`` shows what they cost.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from shared.protocol.limits import MIB
from tests.bench.figures import cpu_s
from tests.bench.peers.machine import forget_peak
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import Site
from tests.integration.sockets import open_socket
from tests.support.echo_engine import echo_engine
from tests.support.leaks import rss_bytes
from tests.support.long_messages import send_zeros
from tests.support.processes import until
from tests.support.realtime_engine import MODEL as VOXTRAL
from tests.support.realtime_engine import realtime_engine

SIZE_BYTES = int(os.environ.get("TRUNKLINE_TEST_MESSAGE_MIB", "64")) * MIB
GROWTH_BYTES = 48 * MIB
"""What gateway and agent may need for a message of whatever length. A frame of an engine, of 16 MiB, is held
whole."""
ASKED = 8
"""How often others are asked while a message is on its way."""
TOKENS = 20


def peak_bytes(pid: int) -> int:
    """The most memory that a process held since its peak was forgotten."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@dataclass(slots=True)
class Watched:
    """What a process needed since it was looked at first."""

    name: str
    pid: int
    rss_bytes: int = 0
    cpu_s: float = 0.0

    def __post_init__(self) -> None:
        forget_peak(self.pid)
        self.rss_bytes, self.cpu_s = rss_bytes(self.pid), cpu_s(self.pid)

    @property
    def growth_bytes(self) -> int:
        return peak_bytes(self.pid) - self.rss_bytes

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rss_bytes / MIB:.1f} MiB, at most {self.growth_bytes / MIB:.1f} MiB more, "
            f"{cpu_s(self.pid) - self.cpu_s:.2f} s of CPU"
        )


class Others:
    """Clients beside the one with a long message: another socket of its engine, and streams of another engine
    of its agent."""

    def __init__(
        self, site: Site, socket: ClientConnection, session: aiohttp.ClientSession, model: str
    ) -> None:
        self._url = site.gateway.url + CHAT
        self._socket, self._session, self._model = socket, session, model
        self.asked = 0

    async def ask(self) -> None:
        """Returns when both have had their whole answer."""
        number = str(self.asked)
        await self._socket.send(number)
        assert await self._socket.recv() == number
        body = chat(stream=True, script={"tokens": TOKENS}) | {"model": self._model}
        async with self._session.post(self._url, json=body) as response:
            text = await response.text()
        assert response.status == 200, text
        assert text.count('"content"') >= TOKENS
        assert text.endswith("data: [DONE]\n\n")
        self.asked += 1

    async def ask_at_each_eighth(self, passed_bytes: int) -> None:
        """Of the long message; ``passed_bytes`` of it are through."""
        if passed_bytes * ASKED >= (self.asked + 1) * SIZE_BYTES:
            await self.ask()


@asynccontextmanager
async def beside(site: Site, name: str, engine_url: str, model: str) -> AsyncIterator[tuple[Others, str]]:
    """Others at an agent of the engine at ``engine_url``, and the path of long messages at an echo engine.
    Afterwards neither gateway nor agent may have needed much."""
    house, gateway = site.house, site.gateway
    chats = f"chats-{name}"
    async with echo_engine(f"echo-{name}") as echo:
        talker = house.engine("--model", chats, name=f"{name}-engine")
        engines = [part for url in (echo.url, talker.url) for part in ("--engine", url)]
        agent = house.agent(gateway, engine_url or None, *engines, name=f"{name}-agent")
        try:
            for each in filter(None, (model, echo.model, chats)):
                await asyncio.to_thread(house.wait_for_model, gateway, site.key, each)
            headers = {"authorization": f"Bearer {site.key}"}
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                open_socket(site, f"/engines/{echo.model}/ws") as socket,
            ):
                others = Others(site, socket, session, chats)
                await others.ask()
                others.asked = 0
                children = {"gateway": gateway.child, "agent": agent}
                watched = [Watched(name, child.pid) for name, child in children.items()]
                yield others, f"/engines/{echo.model}/long"
                await others.ask()
                sys.stdout.write(f"{SIZE_BYTES / MIB:g} MiB; {'; '.join(map(str, watched))}\n")
                for process in watched:
                    assert process.growth_bytes < GROWTH_BYTES, str(process)
            await asyncio.to_thread(until, "all sockets of the engine are closed", lambda: not echo.open)
        finally:
            await asyncio.to_thread(house.children.stop, agent)


async def send_and_receive(socket: ClientConnection, frame_bytes: int) -> None:
    """One long message, and what comes after it. Raises ConnectionClosed."""
    await send_zeros(socket, SIZE_BYTES, frame_bytes, masked=True)
    while True:
        await socket.recv()


async def test_a_clients_message_of_any_length_passes_in_frames(site: Site) -> None:
    async with beside(site, "long-in", "", "") as (others, path), open_socket(site, path) as socket:
        await send_zeros(socket, SIZE_BYTES, MIB, masked=True, meanwhile=others.ask_at_each_eighth)
        assert await socket.recv() == str(SIZE_BYTES)
        assert others.asked == ASKED


async def test_an_engines_message_of_any_length_passes_in_frames(site: Site) -> None:
    async with beside(site, "long-out", "", "") as (others, path), open_socket(site, path) as socket:
        await socket.send(f"send {SIZE_BYTES} {4 * MIB}")
        size_bytes = 0
        async for fragment in socket.recv_streaming(decode=False):
            size_bytes += len(fragment)
            await others.ask_at_each_eighth(size_bytes)
        assert size_bytes == SIZE_BYTES
        assert others.asked == ASKED


async def test_a_client_is_told_1009_however_much_of_its_frame_is_still_to_come(site: Site) -> None:
    async with beside(site, "frame-in", "", "") as (_, path):
        socket = await open_socket(site, path)
        with pytest.raises(ConnectionClosed) as caught:
            await send_and_receive(socket, SIZE_BYTES)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


async def test_an_engines_frame_above_the_limit_closes_both_sides_with_1009(site: Site) -> None:
    async with beside(site, "frame-out", "", "") as (_, path), open_socket(site, path) as socket:
        await socket.send(f"send {SIZE_BYTES} {SIZE_BYTES}")
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


async def test_an_event_of_a_realtime_session_above_16_mib_closes_it_with_1009(site: Site) -> None:
    async with (
        realtime_engine() as engine,
        beside(site, "event", engine.url, VOXTRAL),
    ):
        socket = await open_socket(site, f"/v1/realtime?model={VOXTRAL}")
        with pytest.raises(ConnectionClosed) as caught:
            await send_and_receive(socket, MIB)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
