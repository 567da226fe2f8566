"""Asking a process at an address where anything may answer."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cluster import process_client
from gateway.cluster.process_client import BadAddress, NoAnswer, check_address, get
from tests.support.tls import make_certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-thing: yes\r\n\r\n{}"


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port at which ``serve`` is called for each connection."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def saying(data: bytes, heads: list[bytes] | None = None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        writer.write(data)
        writer.close()

    return serve


async def ask(
    port: int, scheme: str = "http", host: str = "127.0.0.1", ca_file: Path | None = None
) -> object:
    return await get(f"{scheme}://{host}:{port}/base/", "/cluster/b/agents?x=1", "s t", 1.0, ca_file)


async def test_the_answer_is_read_whole() -> None:
    heads: list[bytes] = []
    async with serving(saying(GOOD, heads)) as port:
        answer = await get(f"http://127.0.0.1:{port}/base/", "/cluster/b/agents?x=1", "s t", 1.0, None)
    assert (answer.status, bytes(answer.body), answer.headers["x-thing"]) == (200, b"{}", "yes")
    assert heads[0].startswith(b"GET /base/cluster/b/agents?x=1 HTTP/1.1\r\n")
    assert b"\r\nauthorization: s t\r\n" in heads[0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ended too early"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", "ended too early"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", "its head is longer than"),
    ],
)
async def test_what_is_no_answer_is_told(data: bytes, said: str) -> None:
    async with serving(saying(data)) as port:
        with pytest.raises(NoAnswer, match=said):
            await ask(port)


@pytest.mark.parametrize("head", [b"content-length: 99999999999", b"transfer-encoding: chunked"])
async def test_an_answer_without_end_is_read_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(process_client, "ANSWER_BYTES", 100_000)
    sent_bytes = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        try:
            while sent_bytes < 50_000_000:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent_bytes += 65536
                await writer.drain()
        except ConnectionError:
            pass

    async with serving(serve) as port:
        with pytest.raises(NoAnswer, match="longer than 100000 bytes"):
            await ask(port)
    assert sent_bytes < 50_000_000


async def test_one_that_hangs_is_given_up_in_time() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()
        writer.close()
        ended.set()

    async with serving(serve) as port:
        with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
            await get(f"http://127.0.0.1:{port}", "/", "s t", 0.1, None)
        await asyncio.wait_for(ended.wait(), 60)  # its connection is closed, too


async def test_nobody_is_there() -> None:
    async with serving(saying(GOOD)) as port:
        pass
    with pytest.raises(NoAnswer, match=r"refused|111"):
        await ask(port)


async def test_a_certificate_counts_if_it_is_trusted(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with serving(saying(GOOD), context) as port:
        with pytest.raises(NoAnswer, match="its certificate is not trusted here: "):
            await ask(port, "https")
        assert await ask(port, "https", ca_file=certificate)
        with pytest.raises(NoAnswer, match="No such file"):
            await ask(port, "https", ca_file=tmp_path / "none.pem")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gateway",
        "ftp://a",
        "wss://a",
        "http://",
        "http://u:p@a",
        "http://a?x",
        "http://a:0",
        "http://[",
        "http://ä",
    ],
)
def test_what_is_no_address_is_named(url: str) -> None:
    with pytest.raises(BadAddress, match="no address of a process"):
        check_address(url)
