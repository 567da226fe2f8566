"""Requests over kept connections, and bodies that are still going up when the answer comes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.engines.backend import BackendBody, BackendFailed, BackendUnreachable
from agent.engines.http.client import connections
from agent.engines.http.client.upload import REPLAY_BYTES, RequestBodyBroken
from agent.engines.http.engine_client import EngineClient
from agent.engines.settings import EngineSettings, EngineTimeouts
from shared.protocol.messages import RequestHead
from tests.agent.support.canned import asked, once, read, until
from tests.support.tls import make_certificate

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Played:
    """An engine of ``serve(number, reader, writer)`` for each connection, counted from 0."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.connections = 0
        self.url = ""
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._one(self.connections, reader, writer))
        self.connections += 1
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _one(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(number, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def engine(
    serve: Serve, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Played, EngineClient]]:
    played = Played(serve)
    server = played.server = await asyncio.start_server(played.accept, "127.0.0.1", 0, ssl=tls)
    scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
    played.url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}"
    client = EngineClient(EngineSettings(url=played.url, timeouts=EngineTimeouts(idle_s=5.0)))
    try:
        yield played, client
    finally:
        await client.close()
        server.close()
        for task in tuple(played.tasks):
            task.cancel()
        await asyncio.gather(*played.tasks, return_exceptions=True)
        await server.wait_closed()


async def request(reader: asyncio.StreamReader) -> bytes:
    """The next request, which says how long it is; all of its bytes."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
    return head + await reader.readexactly(length)


async def ask(
    client: EngineClient,
    body: bytes = b"hello",
    method: str = "POST",
    sending: BackendBody | None = None,
    length: int | None = None,
) -> bytes:
    length = len(body) if sending is None else length
    headers = () if length is None else (("content-length", str(length)),)
    async with asked(
        client, RequestHead("e/m", method, "/x", headers, "m", "r"), sending or once(body)
    ) as response:
        return await read(response)


def closes_after(answers: int) -> Serve:
    """The first connection answers so often, then reads a request and closes; later ones answer on."""

    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = 0
        while await request(reader):
            seen += 1
            if number == 0 and seen > answers:
                return
            writer.write(OK)

    return serve


async def test_a_kept_connection_that_was_closed_is_replaced_once() -> None:
    async with engine(closes_after(1)) as (played, client):
        assert [await ask(client), await ask(client), await ask(client)] == [b"ok"] * 3
        assert played.connections == 2


async def test_a_fresh_connection_that_is_closed_is_the_engines_failure() -> None:
    async with engine(closes_after(0)) as (played, client):
        with pytest.raises(BackendFailed, match="without an answer"):
            await ask(client)
        assert played.connections == 1


async def test_an_engine_that_closes_again_failed() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        if number == 0:
            writer.write(OK)
            await request(reader)

    async with engine(serve) as (played, client):
        await ask(client)
        with pytest.raises(BackendFailed, match="without an answer"):
            await ask(client)
        assert played.connections == 2


async def test_a_request_that_may_have_killed_its_engine_is_not_said_to_be_unsent() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        await request(reader)
        assert played.server is not None
        played.server.close()

    async with engine(serve) as (played, client):
        await ask(client)
        with pytest.raises(BackendFailed, match="without an answer"):
            await ask(client)
        with pytest.raises(BackendUnreachable):
            await ask(client)


async def test_a_request_too_long_to_be_remembered_is_not_sent_again() -> None:
    async with engine(closes_after(1)) as (played, client):
        await ask(client)
        with pytest.raises(BackendFailed):
            await ask(client, b"x" * (REPLAY_BYTES + 1))
        assert played.connections == 1


async def test_a_request_of_which_a_word_was_answered_is_not_sent_again() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        await request(reader)
        writer.write(b"HTTP/1.1 ")

    async with engine(serve) as (played, client):
        await ask(client)
        with pytest.raises(BackendFailed):
            await ask(client)
        assert played.connections == 1


async def test_a_connection_that_closes_while_it_rests_is_not_chosen() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)

    async with engine(serve) as (played, client):
        for _ in range(3):
            assert await ask(client, b"x" * (REPLAY_BYTES + 1)) == b"ok"
            await until(lambda: not client._pool._idle)
        assert played.connections == 3


@pytest.mark.parametrize("status", [204, 304])
async def test_a_body_that_follows_an_answer_without_one_is_no_other_requests(status: int) -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            writer.write(b"HTTP/1.1 %d Fine\r\n\r\n" % status)
            await asyncio.sleep(0.001)
            writer.write(b"null")

    async with engine(serve) as (_, client):
        assert [await ask(client) for _ in range(5)] == [b""] * 5


async def test_no_more_connections_rest_than_the_pool_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE", 2)
    async with engine(closes_after(9)) as (played, client):
        assert await asyncio.gather(*(ask(client) for _ in range(5))) == [b"ok"] * 5
        assert played.connections == 5
        assert len(client._pool._idle) == 2


async def test_a_connection_at_rest_is_closed_before_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_IDLE_S", 0.01)
    async with engine(closes_after(9)) as (played, client):
        await ask(client)
        await until(lambda: not played.tasks)
        assert not client._pool._idle


class Rising:
    """A body that has begun and never ends."""

    ended = False

    def __init__(self) -> None:
        self.began = False

    def take(self) -> bytes:
        data, self.began = b"" if self.began else b"begun", True
        return data

    def taken(self, size_bytes: int) -> None: ...

    async def more(self) -> None:
        if self.began:
            await asyncio.Event().wait()


class Slow(Rising):
    """A body whose second and last piece comes when it is ``let``."""

    def __init__(self, last: bytes) -> None:
        super().__init__()
        self.last = last
        self.let = asyncio.Event()

    def take(self) -> bytes:
        data, self.ended = super().take() or self.last, self.let.is_set()
        return data

    async def more(self) -> None:
        if self.began:
            await self.let.wait()


async def test_a_body_that_comes_later_goes_up_over_a_kept_connection_too() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            writer.write(OK)

    async with engine(serve) as (played, client):
        await ask(client)
        body = Slow(b"end")
        asking = asyncio.ensure_future(ask(client, sending=body, length=8))
        await until(lambda: body.began)
        body.let.set()
        assert await asking == b"ok"
        assert await ask(client) == b"ok"
        assert played.connections == 1


async def test_a_body_that_turns_out_too_long_ends_its_request_at_once_or_later() -> None:
    async with engine(closes_after(9)) as (_, client):
        for _ in range(2):
            await ask(client)
            with pytest.raises(RequestBodyBroken):
                await ask(client, sending=once(b"too long"), length=3)
        await ask(client)
        body = Slow(b"more than was said")
        body.let.set()
        with pytest.raises(RequestBodyBroken):
            await ask(client, sending=body, length=8)
        assert await ask(client) == b"ok"


async def test_a_request_on_its_way_up_begins_again_when_its_kept_connection_was_closed() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        if number == 0:
            await reader.readuntil(b"begun")

    async with engine(serve) as (played, client):
        await ask(client)
        body = Slow(b"end")
        asking = asyncio.ensure_future(ask(client, sending=body, length=8))
        await until(lambda: played.connections == 2)
        body.let.set()
        assert await asking == b"ok"


async def test_a_request_let_go_before_it_has_a_connection_is_not_sent() -> None:
    async with engine(closes_after(9)) as (played, client):
        for turns in range(6):
            asking = asyncio.ensure_future(ask(client))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not played.tasks)
        assert not client._pool._busy


async def test_an_answer_to_half_a_request_is_an_answer_and_ends_the_connection() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"begun")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await reader.read()
        gone.set()

    gone = asyncio.Event()
    async with engine(serve) as (_, client):
        assert await ask(client, sending=Rising()) == b"big"
        await gone.wait()
        assert not client._pool._idle


async def test_a_get_may_have_a_body_that_nobody_announced() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(OK)

    seen: list[bytes] = []
    async with engine(serve) as (_, client):
        await ask(client, method="GET", sending=once(b"why"))
    assert b"transfer-encoding: chunked\r\n" in seen[0]
    assert seen[0].endswith(b"3\r\nwhy\r\n0\r\n\r\n")


async def test_head_and_body_leave_together_and_nothing_is_added() -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request(reader))
        writer.write(OK)

    seen: list[bytes] = []
    async with engine(serve) as (played, client):
        await ask(client)
    host = played.url.removeprefix("http://").encode()
    assert seen == [
        b"POST /x HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\ncontent-length: 5\r\n\r\nhello" % host
    ]


@pytest.mark.parametrize("begins", [OK[:-1], b"HTTP/1.1 200 OK\r\n\r\no"])
async def test_closing_the_client_cuts_off_what_runs(begins: bytes) -> None:
    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(begins)
        answered.set()
        await reader.read()

    answered = asyncio.Event()
    async with engine(serve) as (_, client):
        asking = asyncio.ensure_future(ask(client))
        await answered.wait()
        await until(lambda: [each for each in client._pool._busy if each.status])
        await client.close()
        with pytest.raises(BackendFailed):
            await asking


async def test_closing_the_client_leaves_no_connection_that_is_being_made() -> None:
    async with engine(closes_after(9)) as (played, client):
        asking = asyncio.ensure_future(ask(client))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(BackendUnreachable, match="let go"):
            await asking
        assert not client._pool._busy
        await until(lambda: not played.tasks)


async def test_an_engine_behind_tls_is_asked_if_it_is_who_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with engine(closes_after(9), context) as (_, stranger):
        with pytest.raises(BackendUnreachable, match="cannot be connected to"):
            await ask(stranger)
    monkeypatch.setattr(connections, "_tls", lambda: ssl.create_default_context(cafile=str(certificate)))
    async with engine(closes_after(9), context) as (played, client):
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert played.connections == 1
