"""The surface on the real server: what happens on the wire, below and above ASGI."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, bind, build_server
from gateway.api.server.tls import TlsFiles
from gateway.domain.errors import StreamBroken
from gateway.runtime.listeners import UNSENT_BYTES, ListenFailed
from shared.protocol.errors import ErrorCode
from tests.gateway.api.support import EVENTS, FakeResponse, Surface, served

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-tl-test\r\n"
ASK = b'{"model":"m"}'
STREAM = b'{"model":"m","stream":true}'


class Wire:
    """A client that writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes, *lines: bytes) -> None:
        length = b"content-length: %d" % len(body)
        self.send(HEAD + b"\r\n".join([length, *lines, b"", b""]) + body)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(60):
            return await self._reader.readuntil(end)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(60):
            return await self._reader.read(-1)


@asynccontextmanager
async def wire(address: str, limit_bytes: int = 64 * 1024) -> AsyncIterator[Wire]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit_bytes)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def test_a_connection_is_used_again_and_again(address: str) -> None:
    async with wire(address) as client:
        for _ in range(3):
            client.post(ASK)
            assert (await client.until(b'{"ok":true}')).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("pipelined", [False, True])
async def test_what_changes_from_one_request_to_the_next_counts(
    address: str, surface: Surface, pipelined: bool
) -> None:
    longer = b'{"model":"another","messages":[]}'
    asked = [
        (b"authorization: Bearer sk-tl-test\r\nx-a: 1", ASK, b"200"),
        (b"authorization: Bearer sk-tl-test\r\nx-a: 1", longer, b"200"),
        (b"authorization: Bearer sk-tl-testy\r\nx-a: 1", longer, b"401"),
        (b"authorization: Bearer sk-tl-test\r\nx-a: 2", ASK, b"200"),
        (b"authorization: Bearer sk-tl-test\r\nx-a: 2\r\ncontent-encoding: br", ASK, b"415"),
        (b"authorization: Bearer sk-tl-test\r\nx-a: 2", ASK, b"200"),
    ]
    line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: "
    sent = [b"%s%d\r\n%s\r\n\r\n%s" % (line, len(body), fields, body) for fields, body, _ in asked]
    async with wire(address) as client:
        if pipelined:
            client.send(b"".join(sent))
        statuses = []
        for each in sent:
            if not pipelined:
                client.send(each)
            statuses.append((await client.until(b" "), (await client.until(b"\r\n\r\n"))[:3])[1])
            await client.until(b"}}" if statuses[-1] != b"200" else b"}")
    assert statuses == [status for *_, status in asked]
    requests = surface.dispatcher.requests
    assert [request.model for request in requests] == ["m", "another", "m", "m"]
    assert [dict(request.headers)["content-length"] for request in requests] == ["13", "33", "13", "13"]
    assert [dict(request.headers)["x-a"] for request in requests] == ["1", "1", "2", "2"]


async def test_pipelined_requests_are_answered_in_order(address: str) -> None:
    async with wire(address) as client:
        client.post(ASK, b"x-request-id: a")
        client.post(ASK, b"x-request-id: b")
        first = await client.until(b'{"ok":true}')
        second = await client.until(b'{"ok":true}')
        assert (b"x-request-id: a" in first, b"x-request-id: b" in second) == (True, True)


async def test_each_batch_of_a_stream_is_written_at_once(address: str, surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with wire(address) as client:
        client.post(STREAM)
        assert b"x-accel-buffering: no" in await client.until(b"\r\n\r\n")
        for number in range(3):
            event = b"data: %d\n\n" % number
            response.feed(event)
            assert await client.until(event + b"\r\n") == b"%x\r\n%b\r\n" % (len(event), event)
        response.end()
        assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("length", [(), (("content-length", "100"),)])
async def test_an_answer_that_breaks_is_visibly_broken(
    address: str, surface: Surface, length: tuple[tuple[str, str], ...]
) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=length, chunks=(b"half",), ended=False))
    response.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "died"))
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(
                "/v1/chat/completions", content=ASK, headers={"authorization": "Bearer sk-tl-test"}
            )


@pytest.mark.parametrize("length", ["3", "30"])
async def test_an_answer_of_another_length_than_announced_is_visibly_broken(
    address: str, surface: Surface, length: str
) -> None:
    surface.dispatcher.answer(FakeResponse(headers=(("content-length", length),), chunks=(b"0123456789",)))
    async with wire(address) as client:
        client.post(ASK)
        answer = await client.rest()
    assert len(answer.partition(b"\r\n\r\n")[2]) != int(length)


QUIET = HttpSettings(comment_interval_s=3600.0)
"""Writes nothing of its own accord, which would show that a client is gone."""


async def test_a_client_that_hangs_up_frees_the_engine_at_once() -> None:
    surface = Surface(QUIET)
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with served(surface) as address, wire(address) as client:
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        client.writer.close()
        async with asyncio.timeout(60):
            await surface.lifecycle.wait_idle()
    assert response.aborted


async def test_a_client_that_hangs_up_in_the_queue_is_forgotten_at_once() -> None:
    surface = Surface(QUIET)
    surface.dispatcher.hold()
    async with served(surface) as address, wire(address) as client:
        client.post(ASK)
        await surface.dispatcher.arrived.wait()
        client.writer.transport.abort()
        async with asyncio.timeout(60):
            await surface.lifecycle.wait_idle()
    assert surface.dispatcher.cancelled == 1


async def test_a_client_that_stops_reading_stops_only_its_stream(address: str, surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    async with wire(address) as client:
        client.post(STREAM)
        await client.until(b"\r\n\r\n")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        fed = 0
        while fed - response.consumed_bytes < 1024 * 1024:
            response.feed(b"x" * 65536)
            fed += 65536
            await asyncio.sleep(0)
            assert fed < 256 * 1024 * 1024
        async with httpx.AsyncClient(base_url=f"http://{address}") as other:
            assert (await other.get("/healthz")).status_code == 200


async def test_an_answer_to_a_body_that_nobody_reads_still_arrives(surface: Surface) -> None:
    surface = Surface(HttpSettings(BodyLimits(body_bytes=1000)))
    async with served(surface) as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        headers = {"authorization": "Bearer sk-tl-test"}
        answer = await client.post("/v1/chat/completions", content=b"x" * 8_000_000, headers=headers)
        assert answer.status_code == 413
        assert (await client.get("/healthz")).status_code == 200


async def test_a_client_that_waits_for_continue_is_refused_without_sending(address: str) -> None:
    async with wire(address) as client:
        client.send(HEAD + b"content-length: 900000000\r\nexpect: 100-continue\r\n\r\n")
        assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 413")


# --- Before any application sees the request ---


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"x: a\r\n" * 12_000 + b"\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 400_000, 431),
    ],
)
async def test_what_is_refused_unseen_has_a_shape_and_an_id_too(
    address: str, data: bytes, status: int
) -> None:
    async with wire(address) as client:
        client.send(data)
        answer = await client.rest()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"x-request-id: req_" in head
    assert b"connection: close" in head
    assert body.startswith(b'{"error":{"message":')


async def test_a_body_that_turns_to_garbage_is_refused(address: str, surface: Surface) -> None:
    async with wire(address) as client:
        client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
    assert surface.lifecycle.in_flight == 0


async def test_trailers_without_end_are_refused(address: str) -> None:
    async with wire(address) as client:
        client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: a\r\n" * 12_000)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_a_head_that_does_not_come_is_not_waited_for(surface: Surface) -> None:
    async with served(surface, ConnectionLimits(head_s=0.05)) as address:
        async with wire(address) as client:
            client.send(b"GET /healthz HTTP/1.1\r\nx:")
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        async with wire(address) as silent:
            assert await silent.rest() == b""


async def test_no_more_connections_are_taken_than_allowed(surface: Surface) -> None:
    async with served(surface, ConnectionLimits(connections=1)) as address, wire(address) as first:
        first.post(ASK)
        await first.until(b'{"ok":true}')
        async with wire(address) as second:
            assert (await second.rest()).startswith(b"HTTP/1.1 503 ")


async def test_a_client_of_http_1_0_gets_no_interim_answer(address: str) -> None:
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    async with wire(address) as client:
        client.send(head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(ASK))
        await asyncio.sleep(0.05)
        client.send(ASK)
        assert (await client.rest()).startswith(b"HTTP/1.1 200 ")


def test_an_address_that_is_taken_is_said() -> None:
    with (
        bind(Address("127.0.0.1", 0)) as taken,
        pytest.raises(
            ListenFailed,
            match=r"cannot listen on 127\.0\.0\.1:\d+: something listens there already: stop it",
        ),
    ):
        bind(Address("127.0.0.1", taken.getsockname()[1]))


def test_the_kernel_takes_little_of_what_a_client_does_not_read() -> None:
    with bind(Address("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        taken = 0
        with connection, suppress(BlockingIOError):
            connection.setblocking(False)
            while True:
                taken += connection.send(bytes(65536))
    assert taken < 2 * UNSENT_BYTES + 2 * 65536


async def test_tls_files_that_are_none_are_said(tmp_path: Path) -> None:
    nothing = tmp_path / "cert.pem"
    nothing.write_text("nothing")
    with pytest.raises(ListenFailed, match="for TLS"):
        build_server(
            None, Address("127.0.0.1", 0, TlsFiles(nothing, nothing)), ConnectionLimits(), lambda: None
        )


async def healthy(port: int) -> None:
    async with asyncio.timeout(60), wire(f"127.0.0.1:{port}") as client:
        client.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 200")


async def test_connections_of_another_worker_are_accepted_while_it_is_away(
    no_leaks: None, surface: Surface
) -> None:
    server = build_server(surface.app, Address("127.0.0.1", 0), ConnectionLimits(), lambda **options: None)
    other = bind(Address("127.0.0.1", 0))
    port = other.getsockname()[1]
    serving = asyncio.get_running_loop().create_task(server.serve([bind(Address("127.0.0.1", 0))]))
    await server.ready.wait()
    async with asyncio.timeout(60):
        for _ in range(3):
            early = asyncio.ensure_future(healthy(port))  # in the queue of the one that is away
            await asyncio.sleep(0)
            await server.cover(1, other.dup(), None)
            await early
            await server.hold(True)
            held = asyncio.ensure_future(healthy(port))
            await asyncio.sleep(0)
            await server.hold(False)
            await held
            await server.release(1)
            waiting = asyncio.ensure_future(healthy(port))  # for its successor
            other.setblocking(False)
            accepted, _ = await asyncio.get_running_loop().sock_accept(other)
            waiting.cancel()
            accepted.close()
        await server.release(1)
        await server.cover(1, other.dup(), None)
        server.should_exit = True
        await serving
    other.close()


async def test_one_that_leaves_covers_nobody(no_leaks: None, surface: Surface) -> None:
    server = build_server(surface.app, Address("127.0.0.1", 0), ConnectionLimits(), lambda **options: None)
    serving = asyncio.get_running_loop().create_task(server.serve([bind(Address("127.0.0.1", 0))]))
    await server.ready.wait()
    await server.leave()
    other = bind(Address("127.0.0.1", 0))
    await server.cover(1, other, None)
    assert other.fileno() == -1
    server.should_exit = True
    await serving


async def test_it_looks_seldom_and_stops_serving_as_soon_as_it_is_told(surface: Surface) -> None:
    server = build_server(surface.app, Address("127.0.0.1", 0), ConnectionLimits(), lambda **options: None)
    loop = asyncio.get_running_loop()
    looked, tick, looks = asyncio.Event(), server.on_tick, 0

    async def counted(counter: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            looked.set()
        return await tick(counter)

    server.on_tick = counted  # type: ignore[method-assign]
    serving, began_s = loop.create_task(server.main_loop()), loop.time()
    await looked.wait()
    assert loop.time() - began_s >= 1.0
    assert dict(server.server_state.default_headers)[b"date"]
    server.should_exit = True
    for _ in range(5):
        await asyncio.sleep(0)
    assert serving.done(), "nor does it wait for its next look"
