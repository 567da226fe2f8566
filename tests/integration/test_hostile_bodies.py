"""Bodies that are sent to do harm: other tenants are served meanwhile, and the gateway goes on turning."""

import asyncio
import http.client
import io
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import orjson
import pytest

from gateway.domain.quotas import Rates
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import Site
from tests.integration.test_limits import new_key, session_of

JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
CONNECTIONS = 24
ANNOUNCED_BYTES = 60 * MIB
STEP_S = 0.1


class Trickle:
    """A connection that announces a body as long as it may be and sends it as slowly as one can."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def begin(cls, site: Site, key: str) -> "Trickle":
        host, port = site.gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {ANNOUNCED_BYTES}\r\n\r\n"
            '{"model":"scripted","x":"'.encode()
        )
        return cls(reader, writer)

    async def run(self) -> None:
        while True:
            self.writer.write(b"x" * int(1300 * STEP_S))
            await self.writer.drain()
            await asyncio.sleep(STEP_S)

    async def status(self) -> int:
        line = await self.reader.readline()
        return int(line.split()[1])


@asynccontextmanager
async def trickling(site: Site, *keys: str) -> AsyncIterator[list[Trickle]]:
    """Many such connections of each key, while inside."""
    clients = [await Trickle.begin(site, key) for key in keys for _ in range(CONNECTIONS)]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    try:
        yield clients
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            client.writer.transport.abort()


async def served(session: aiohttp.ClientSession, padding_bytes: int = 0) -> int:
    ask = chat(script={"tokens": 3, "tokens_per_s": 1000}, padding="x" * padding_bytes)
    async with session.post(CHAT, data=io.BytesIO(orjson.dumps(ask)), headers=JSON) as response:
        await response.read()
        return response.status


async def test_a_key_that_announces_and_trickles_shuts_nobody_out(site: Site) -> None:
    hostile = [new_key(site, f"hostile-{number}", "hostile") for number in range(2)]
    victim = new_key(site, "victim", "victims")
    async with trickling(site, *hostile), session_of(site, victim) as session:
        await asyncio.sleep(0.5)  # all of them are under way
        small = [await served(session) for _ in range(10)]
        large = await asyncio.gather(*(served(session, 8 * MIB) for _ in range(3)))
    assert small == [200] * 10
    assert large == [200] * 3


async def test_a_key_held_to_one_request_has_one_body_read(site: Site) -> None:
    hostile = new_key(site, "held", "held", Rates(concurrency=1))
    async with trickling(site, hostile) as clients:
        refused = [asyncio.create_task(client.status()) for client in clients]
        async with asyncio.timeout(60):
            for _ in range(CONNECTIONS - 1):
                done, _ = await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)
                assert done.pop().result() == 429
                refused = [task for task in refused if not task.done()]
                if len(refused) <= 1:
                    break
        assert len(refused) == 1
        refused[0].cancel()
    async with session_of(site, hostile) as session, asyncio.timeout(60):
        assert await freed(session)


async def freed(session: aiohttp.ClientSession) -> bool:
    """As soon as the gateway knows that the key's last connection is gone."""
    while await served(session) != 200:  # noqa: ASYNC110  the gateway does not tell
        await asyncio.sleep(0.05)
    return True


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(b'"stream":true,"stream_options":{}' + b',"":""' * 1_900_000, id="two million members"),
        pytest.param(b'"messages":[],"tools":[' + b"[]," * 1_900_000 + b"[]]", id="two million lists"),
        pytest.param(b'"messages":"' + b"\\u0061" * (5 * MIB) + b'"', id="30 MB of escapes"),
        pytest.param(b'"stream_options":1,' * 1_000_000, id="no JSON"),
    ],
)
async def test_no_body_stops_the_gateway(site: Site, members: bytes) -> None:
    """Three such requests at once: what others wait stays far below the seconds that reading them takes."""
    body = b'{"model":"scripted",%b}' % members
    key = new_key(site, f"large-{len(body)}", "large")
    async with session_of(site, key) as session:
        with pauses() as paused_s, looking(site) as waits:
            statuses = await asyncio.gather(*(status_of(session, body) for _ in range(3)))
    assert waits
    assert max(waits) < 1.0 + sum(each for each in paused_s if each > 0.05), sorted(waits)[-5:]
    assert set(statuses) <= {200, 400}


async def status_of(session: aiohttp.ClientSession, body: bytes) -> int:
    async with session.post(CHAT, data=io.BytesIO(body), headers=JSON) as response:
        await response.read()
        return response.status


@contextmanager
def pauses() -> Iterator[list[float]]:
    """By how much each of many short waits was too long while inside: so long the machine stood still."""
    paused_s: list[float] = []
    over = threading.Event()

    def wait() -> None:
        began_s = time.monotonic()
        while not over.wait(0.01):
            before_s, began_s = began_s, time.monotonic()
            paused_s.append(began_s - before_s - 0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield paused_s
    finally:
        over.set()
        thread.join()


@contextmanager
def looking(site: Site) -> Iterator[list[float]]:
    """How long the gateway takes to say that it is alive, again and again while inside. From a thread: the
    test's own loop is stopped by what it sends."""
    waits: list[float] = []
    over = threading.Event()

    def look() -> None:
        connection = http.client.HTTPConnection(site.gateway.url.removeprefix("http://"), timeout=60)
        while not over.wait(0.01):
            began_s = time.monotonic()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            waits.append(time.monotonic() - began_s)
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("member", ["tools", "stream_options", "metadata", "response_format"])
@pytest.mark.parametrize("levels", [260, 900, 5000])
async def test_json_nested_without_end_is_no_fault_of_the_gateway(
    site: Site, member: str, levels: int
) -> None:
    nested = b'{"a":' * levels + b"1" + b"}" * levels
    ask = orjson.dumps(chat(stream=True))
    body = b'{"%b":%b,%b' % (member.encode(), nested, ask[1:])
    expected = {400} if levels > 1000 or member in ("tools", "stream_options") else {200, 400}
    async with (
        session_of(site, site.key) as session,
        session.post(CHAT, data=body, headers=JSON) as response,
    ):
        await response.read()
        assert response.status in expected
