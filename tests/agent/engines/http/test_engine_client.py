"""Requests to an engine over real sockets: streaming both ways, and every way an engine can fail."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from agent.engines.backend import BackendFailed, BackendRefused, BackendTimeout, BackendUnreachable
from agent.engines.http.client.upload import RequestBodyBroken
from agent.engines.http.engine_client import EngineClient
from agent.engines.settings import EngineSettings, EngineTimeouts
from shared.protocol.messages import RequestHead
from tests.agent.support.canned import Body, asked, canned, once, read, until
from tests.support.scripted_engine import Fault, Script, ScriptedEngine

CHAT = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def client(url: str, **settings: object) -> AsyncIterator[EngineClient]:
    made = EngineClient(EngineSettings(url=url, **settings))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


def head(
    path: str = CHAT, method: str = "POST", length: int | None = None, *more: tuple[str, str]
) -> RequestHead:
    lengths = () if length is None else (("content-length", str(length)),)
    headers = (("content-type", "application/json"), *lengths, *more)
    return RequestHead("e/m", method, path, headers, "m", "r1")


def chat(stream: bool = True, **script: object) -> bytes:
    message = {"role": "user", "content": "hello"}
    return orjson.dumps({"model": "m", "stream": stream, "messages": [message], "script": script})


def noted(event: asyncio.Event) -> bool:
    event.set()
    return True


async def fetch(made: EngineClient, body: bytes, request: RequestHead | None = None) -> tuple[int, bytes]:
    async with asked(made, request or head(length=len(body)), once(body)) as response:
        return response.status, await read(response)


async def test_an_answer_streams_through() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        status, body = await fetch(made, chat(tokens=5))
    assert status == 200
    assert body.count(b"data: ") == 8
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_unix_socket_serves_as_well(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    async with (
        ScriptedEngine(unix_socket=path) as engine,
        client("http://localhost", unix_socket=path) as made,
    ):
        status, _ = await fetch(made, chat(tokens=1))
        assert (status, engine.stats.finished) == (200, 1)


async def test_a_big_body_goes_up_in_pieces_and_whole() -> None:
    body = bytes(range(256)) * 40_000
    async with ScriptedEngine() as engine, client(engine.url) as made:
        _, chunked = await fetch(made, body, head("/up"))
        _, measured = await fetch(made, body, head("/up", length=len(body)))
    assert orjson.loads(chunked)["sha256"] == orjson.loads(measured)["sha256"]
    assert orjson.loads(chunked)["headers"]["transfer-encoding"] == "chunked"
    assert orjson.loads(measured)["headers"]["content-length"] == str(len(body))


async def test_a_get_without_a_body_sends_none() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        _, answer = await fetch(made, b"", head("/thing?q=1", "GET"))
    seen = orjson.loads(answer)
    assert (seen["method"], seen["path"], seen["bytes"]) == ("GET", "/thing?q=1", 0)
    assert not {"content-length", "transfer-encoding"} & set(seen["headers"])


async def test_the_engines_key_is_put_in_and_the_clients_left_out() -> None:
    async with ScriptedEngine(api_key="inner") as engine, client(engine.url, api_key="inner") as made:
        status, answer = await fetch(made, b"x", head("/y", "POST", None, ("authorization", "Bearer outer")))
    assert status == 200
    assert orjson.loads(answer)["headers"]["authorization"] == "Bearer inner"


async def test_an_engines_own_error_is_an_answer() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        for wanted in (400, 429, 500, 503):
            status, body = await fetch(made, chat(status=wanted))
            assert (status, orjson.loads(body)["error"]["code"]) == (wanted, f"scripted_{wanted}")


async def test_redirects_are_not_followed() -> None:
    answer = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0\r\n\r\n"
    async with canned(answer) as server, client(server.url) as made:
        assert await fetch(made, b"x") == (302, b"")


async def test_the_path_prefix_of_the_engine_comes_first() -> None:
    async with canned() as server, client(f"{server.url}/inner/v1") as made:
        await fetch(made, b"x")
        assert server.received.startswith(b"POST /inner/v1/chat/completions HTTP/1.1\r\n")


async def test_a_refused_path_never_reaches_the_engine() -> None:
    async with canned() as server, client(server.url) as made:
        with pytest.raises(BackendRefused):
            await fetch(made, b"", head("/v1/../admin"))
        assert not server.received


async def test_nobody_listening_is_unreachable() -> None:
    async with canned() as server:
        url = server.url
    async with client(url) as made:
        with pytest.raises(BackendUnreachable, match="cannot be connected to"):
            await fetch(made, b"x")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x16\x03\x01 what\r\n\r\n", "no HTTP"),
        (b"", "without an answer"),
        (OK + b"content-length: 10\r\n\r\n12345", "ended before it was whole"),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\n12345\r\n", "ended before it was whole"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n12345\r\n", "no HTTP|ended before"),
        (OK + b"x: " + b"y" * 40_000 + b"\r\n\r\n", "no HTTP"),
        (OK + b"x: y\r\n" * 200 + b"\r\n", "no HTTP|too many"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "status 101"),
    ],
)
async def test_a_broken_answer_is_the_engines_failure(answer: bytes, why: str) -> None:
    async with canned(answer, close=True) as server, client(server.url) as made:
        with pytest.raises(BackendFailed, match=why):
            await fetch(made, b"x")


@pytest.mark.parametrize("fault", [Fault.DIE, Fault.CLOSE, Fault.GARBAGE])
@pytest.mark.parametrize("after", [0, 2])
async def test_an_engine_that_dies_is_its_failure(fault: Fault, after: int) -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        with pytest.raises(BackendFailed):
            await fetch(made, chat(tokens=5, fault=fault, after=after))


async def test_framing_that_breaks_while_the_reader_waits_is_its_failure() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made, asyncio.timeout(60):
        with pytest.raises(BackendFailed):
            await fetch(made, chat(tokens=5, fault=Fault.GARBAGE, after=2, tokens_per_s=50.0))


async def test_silence_before_and_in_an_answer_times_out() -> None:
    timeouts = EngineTimeouts(first_byte_s=0.05, idle_s=0.05)
    async with ScriptedEngine() as engine, client(engine.url, timeouts=timeouts) as made:
        with pytest.raises(BackendTimeout, match="before its answer"):
            await fetch(made, chat(fault=Fault.HANG))
        with pytest.raises(BackendTimeout, match="in the middle of"):
            await fetch(made, chat(fault=Fault.STALL, after=2, tokens=5))


async def test_the_limit_before_the_head_does_not_count_in_the_body() -> None:
    timeouts = EngineTimeouts(first_byte_s=0.05, idle_s=None)
    async with ScriptedEngine() as engine, client(engine.url, timeouts=timeouts) as made:
        status, body = await fetch(made, chat(tokens=4, tokens_per_s=12.0))
    assert (status, body[-8:]) == (200, b"[DONE]\n\n")


async def test_an_engine_that_does_not_read_times_out() -> None:
    timeouts = EngineTimeouts(first_byte_s=0.05, idle_s=0.05)
    async with canned(deaf=True) as server, client(server.url, timeouts=timeouts) as made:
        with pytest.raises(BackendTimeout, match="took nothing"):
            await fetch(made, b"x" * 30_000_000)


@pytest.mark.parametrize("length", [3, 9])
async def test_a_body_of_another_length_than_declared_is_never_passed_as_whole(length: int) -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        with pytest.raises(RequestBodyBroken):
            await fetch(made, b"12345", head("/up", length=length))
        assert engine.stats.finished == 0


async def test_the_body_is_asked_for_only_as_fast_as_the_engine_takes_it() -> None:
    body = Body(itertools.repeat(b"x" * 65536))
    async with canned(deaf=True) as server, client(server.url, timeouts=EngineTimeouts(idle_s=0.1)) as made:
        with pytest.raises(BackendTimeout):
            async with asked(made, head("/up"), body):
                pass
    assert (
        body.taken_bytes < body.given_bytes < 32 * 1024 * 1024
    )  # what the kernel's two socket buffers hold, at the most


async def test_an_answer_nobody_reads_stops_the_engine() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        body = chat(tokens=200_000, pad_bytes=1000)
        async with asked(made, head(length=len(body)), once(body)) as response:
            pouring = asyncio.ensure_future(response.stream_to(lambda piece: False))
            before = -1
            while engine.stats.sent_tokens != before:
                before = engine.stats.sent_tokens
                await asyncio.sleep(0.02)
            assert 0 < before < 50_000
            pouring.cancel()


async def test_leaving_early_closes_the_connection() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        body = chat(tokens=1000, tokens_per_s=100)
        async with asked(made, head(length=len(body)), once(body)) as response:
            first = asyncio.Event()
            pouring = asyncio.ensure_future(response.stream_to(lambda piece: noted(first)))
            await first.wait()
            pouring.cancel()
        await until(lambda: not engine.stats.running)
        assert engine.stats.cancelled == 1


async def test_cancelling_while_the_engine_is_silent_closes_the_connection() -> None:
    async with canned(b"") as server, client(server.url) as made:
        task = asyncio.ensure_future(fetch(made, b"x"))
        await until(lambda: server.received.endswith(b"x"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.gone.wait()


async def test_connections_are_used_again_after_whole_answers_only() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        for _ in range(5):
            await fetch(made, chat(tokens=2))
        assert engine.stats.connections == 1


async def test_a_hundred_streams_run_at_once() -> None:
    async with (
        ScriptedEngine(default=Script(tokens=20, tokens_per_s=200)) as engine,
        client(engine.url) as made,
    ):
        answers = await asyncio.gather(*(fetch(made, chat()) for _ in range(100)))
        assert {status for status, _ in answers} == {200}
        assert engine.stats.peak_running == 100


async def test_a_question_is_answered_whole_or_fails() -> None:
    async with ScriptedEngine() as engine, client(engine.url) as made:
        assert (await made.ask("/v1/models")).json()["data"][0]["id"] == "scripted"
        assert (await made.ask("/health")).status == 200
    huge = OK + b"content-length: 99999999\r\n\r\n" + b"x" * 5_000_000
    async with canned(huge) as server, client(server.url) as made:
        with pytest.raises(BackendFailed, match="longer than"):
            await made.ask("/metrics")
    async with canned(b"") as server, client(server.url, timeouts=EngineTimeouts(probe_s=0.05)) as made:
        with pytest.raises(BackendTimeout):
            await made.ask("/health")
