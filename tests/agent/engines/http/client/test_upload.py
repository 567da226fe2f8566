"""Requests on their way up while their connection ends, or takes them slowly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.engines.backend import BackendTimeout
from agent.engines.http.client.connection import EngineConnection
from agent.engines.http.client.upload import REPLAY_BYTES
from agent.engines.http.engine_client import EngineClient
from agent.engines.settings import EngineSettings, EngineTimeouts
from tests.agent.engines.http.client.test_call import OK, Slow, ask, engine, request
from tests.agent.support.canned import canned, once, until


@asynccontextmanager
async def half_sent(seen: list[bytes]) -> AsyncIterator[tuple[EngineClient, Slow, "asyncio.Future[bytes]"]]:
    """A request over a kept connection, of which ``begun`` is with the engine and nothing else has come yet;
    further connections answer, and ``seen`` is what they are sent."""

    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = await request(reader)
        writer.write(OK)
        if number == 0:
            await reader.readuntil(b"begun")
            there.set()
            await reader.read()
        else:
            seen.append(sent.partition(b"\r\n\r\n")[2])

    there = asyncio.Event()
    async with engine(serve) as (_, client):
        await ask(client)
        body = Slow(b"x" * REPLAY_BYTES)
        asking = asyncio.ensure_future(ask(client, sending=body, length=5 + REPLAY_BYTES))
        await there.wait()
        yield client, body, asking


async def test_what_comes_of_a_body_as_its_kept_connection_closes_is_sent_over_the_next() -> None:
    seen: list[bytes] = []
    async with half_sent(seen) as (client, body, asking):
        [connection] = client._pool._busy
        body.let.set()
        connection.eof_received()
        assert await asking == b"ok"
    assert seen == [b"begun" + body.last]


async def test_a_request_let_go_as_its_kept_connection_closes_leaves_no_task() -> None:
    async with half_sent([]) as (client, _, asking):
        [connection] = client._pool._busy
        asking.cancel()  # it lets go in the next turn, before the request begins again
        connection.eof_received()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: "EngineCall" not in repr(asyncio.all_tasks()))
        assert not client._pool._busy


class Measured:
    """A transport whose socket has ``left_bytes`` to take each time that is asked."""

    def __init__(self, transport: asyncio.Transport, left_bytes: list[int]) -> None:
        self._transport = transport
        self._left_bytes = left_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_write_buffer_size(self) -> int:
        return self._left_bytes.pop(0)


async def test_an_engine_that_takes_a_long_piece_slowly_has_not_stopped_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(connection: EngineConnection, transport: Any) -> None:
        connection.transport = Measured(transport, left_bytes)  # type: ignore[assignment]

    monkeypatch.setattr(EngineConnection, "connection_made", made)
    left_bytes, body = [9, 7, 4, 4], b"x" * 30_000_000
    async with canned(deaf=True) as deaf:
        client = EngineClient(EngineSettings(url=deaf.url, timeouts=EngineTimeouts(idle_s=0.05)))
        with pytest.raises(BackendTimeout, match="took nothing"):
            await ask(client, sending=once(body, len(body)), length=len(body))
        assert not left_bytes
        await client.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_an_answer_that_has_begun_may_wait_for_the_rest_of_its_request(ends: bool) -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"begun")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
        await reader.readuntil(b"end")
        if ends:
            writer.write(b"k")
        await reader.read()

    async with engine(serve) as (played, _):
        client = EngineClient(EngineSettings(url=played.url, timeouts=EngineTimeouts(idle_s=0.2)))
        body = Slow(b"end")
        asking = asyncio.ensure_future(ask(client, sending=body, length=8))
        await asyncio.sleep(0.4)
        body.let.set()
        if ends:
            assert await asking == b"ok"
        else:
            with pytest.raises(BackendTimeout, match="in the middle of"):
                await asking
        await client.close()
