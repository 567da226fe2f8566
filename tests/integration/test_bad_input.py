"""Bad input from clients: each gets its clear error, nothing hangs, nothing leaks."""

import asyncio
import os

import aiohttp
import pytest

from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import Site

_NO_REQUESTS = [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"model": 7}', b'{"messages": []}']


def _head(site: Site, length: int) -> bytes:
    """The head of a chat request that says its body is so long."""
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "host: x",
        f"authorization: Bearer {site.key}",
        "content-type: application/json",
        f"content-length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("body", _NO_REQUESTS)
async def test_a_body_that_is_no_request_is_a_400(watched: aiohttp.ClientSession, body: bytes) -> None:
    async with watched.post(CHAT, data=body, headers={"content-type": "application/json"}) as response:
        assert response.status == 400
        assert (await error_of(response))["type"] == "invalid_request_error"


async def test_an_unknown_path_is_a_404_and_a_wrong_method_is_refused(watched: aiohttp.ClientSession) -> None:
    async with watched.post("/v1/no/such/route", json=chat()) as response:
        assert response.status == 404
        await error_of(response)
    async with watched.get(CHAT) as response:
        assert response.status in (404, 405)
        await error_of(response)


@pytest.mark.parametrize("body", [b"no boundary at all", b"--x\r\nno header", b""])
async def test_a_broken_multipart_body_is_a_400(watched: aiohttp.ClientSession, body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with watched.post("/v1/audio/transcriptions", data=body, headers=headers) as response:
        assert response.status == 400
        await error_of(response)


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", faulty.gateway.port)
    writer.write(_head(faulty, 100_000_000) + b"{")
    async with asyncio.timeout(60):
        assert b" 413 " in await reader.readline()
    writer.close()


async def test_headers_that_are_too_large_are_refused(watched: aiohttp.ClientSession, faulty: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", faulty.gateway.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 200_000 + b"\r\n\r\n")
    async with asyncio.timeout(60):
        line = await reader.readline()
    assert b" 431 " in line or b" 400 " in line
    writer.close()


async def test_bytes_that_are_not_http_end_the_connection(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", faulty.gateway.port)
    writer.write(os.urandom(4096) + b"\r\n\r\n")
    async with asyncio.timeout(60):
        await reader.read(-1)
    writer.close()


async def test_clients_that_send_half_a_body_and_leave_are_forgotten(
    watched: aiohttp.ClientSession, faulty: Site
) -> None:
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", faulty.gateway.port)
        writer.write(_head(faulty, 1000) + b"{")
        await writer.drain()
        writer.transport.abort()
