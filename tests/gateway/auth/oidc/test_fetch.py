"""Fetching an issuer's documents from a server that does what the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.auth.oidc import fetch as module
from gateway.auth.oidc.fetch import Fetched, FetchFailed, fetch
from tests.support.tls import TlsTerminator, make_certificate

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\ncache-control: no-store\r\n\r\n"


@asynccontextmanager
async def serving(*answers: bytes, hold: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server on loopback that gives these answers, one a connection; its URL, and the requests it got."""
    requests: list[bytes] = []
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(left.pop(0) if left else b"")
            await writer.drain()
            if hold:
                await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    tasks: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    await asyncio.gather(*tasks)


def ok(body: bytes, *headers: bytes) -> bytes:
    head = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join((*head, b"", body))


def to(location: bytes, status: bytes = b"302 Found") -> bytes:
    return b"HTTP/1.1 %s\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % (status, location)


async def test_a_document_is_fetched_and_says_how_long_it_keeps() -> None:
    async with serving(ok(b"{}", b"Cache-Control: public, max-age=300"), hold=True) as (url, requests):
        assert await fetch(f"{url}/keys?v=1") == Fetched(b"{}", 300.0)
    (request,) = requests
    assert request.startswith(b"GET /keys?v=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization" not in request.lower()


@pytest.mark.parametrize(
    ("field", "age_s"),
    [
        (b"max-age=60", 60.0),
        (b"s-maxage=5", None),
        (b"no-store", 0.0),
        (b"private, no-cache, max-age=9", 0.0),
        (b"max-age=9999999999", 999_999_999.0),
        (b"x", None),
    ],
)
async def test_the_age_is_read_from_cache_control(field: bytes, age_s: float | None) -> None:
    async with serving(ok(b"{}", b"cache-control: " + field)) as (url, _):
        assert (await fetch(url)).max_age_s == age_s


async def test_a_chunked_document_and_one_that_ends_with_its_connection_are_whole() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    async with serving(chunked, b"HTTP/1.1 200 OK\r\n\r\n[1]") as (url, _):
        assert (await fetch(url)).body == b"{}"
        assert (await fetch(url)).body == b"[1]"


async def test_a_document_behind_an_interim_answer_is_read_with_its_own_header() -> None:
    async with serving(INTERIM + ok(b"{}", b"cache-control: max-age=60")) as (url, _):
        assert await fetch(url) == Fetched(b"{}", 60.0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "status 0"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404"),
        (b"rubbish\r\n\r\n", "Expected HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}", "ended too early"),
        (INTERIM + b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}", "ended too early"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", "ended too early"),
        (ok(b"x" * (module.DOCUMENT_BYTES + 1)), "longer than"),
        (b"HTTP/1.1 200 OK\r\n" + b"x-a: %s\r\n" % (b"y" * 40_000) + b"\r\n", "head is longer"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nxyz", "."),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "."),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}}", "."),
        (b"\x00" * 99, "."),
        (to(b"http://127.0.0.2:1/keys"), "another origin"),
        (to(b"https://keys.example/"), "another origin"),
        (to(b"//127.0.0.1:1/keys"), "another origin"),
        (to(b"file:///etc/passwd"), "cannot be used"),
        (to(b"gopher://127.0.0.1/"), "is not https"),
    ],
)
async def test_what_cannot_be_used_is_said(answer: bytes, reason: str) -> None:
    async with serving(answer) as (url, requests):
        with pytest.raises(FetchFailed, match=reason):
            await fetch(f"{url}/keys")
    assert len(requests) == 1


async def test_redirects_at_the_same_origin_are_followed_a_few_times() -> None:
    async with serving(to(b"/b"), to(b"c", b"308 X"), ok(b"{}")) as (url, requests):
        assert (await fetch(f"{url}/a")).body == b"{}"
    assert [request.split()[1] for request in requests] == [b"/a", b"/b", b"/c"]
    async with serving(*[to(b"/again")] * 9) as (url, requests):
        with pytest.raises(FetchFailed, match="more than 3 redirects"):
            await fetch(f"{url}/a")
    assert len(requests) == 4


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_S", 0.05)
    async with serving(b"HTTP/1.1 200 OK\r\n", hold=True) as (url, _):
        with pytest.raises(FetchFailed, match="no answer within"):
            await fetch(url)


async def test_certificates_are_checked(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with (
        serving(ok(b"{}"), hold=True) as (url, _),
        TlsTerminator(int(url.rpartition(":")[2]), certificate, key) as tls,
    ):
        with pytest.raises(FetchFailed, match="certificate verify failed"):
            await fetch(tls.url)
        assert (await fetch(tls.url, certificate)).body == b"{}"


async def test_where_nobody_listens_nothing_is_fetched() -> None:
    async with serving(b"") as (url, _):
        pass
    with pytest.raises(FetchFailed, match=r"[Cc]onnect"):
        await fetch(url)
