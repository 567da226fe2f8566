"""A client that has sent its request and closes its direction gets its answer; one that is gone is
noticed."""

import asyncio

import pytest

from gateway.api.server.protocol import PROBE_AGAIN_S, PROBE_S
from tests.gateway.api.server.test_server import ASK, HEAD, STREAM, wire
from tests.gateway.api.support import EVENTS, FakeResponse, Surface, json_response

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


async def arrived(surface: Surface) -> None:
    async with asyncio.timeout(60):
        await surface.dispatcher.arrived.wait()


async def test_the_answer_comes_and_then_the_end(surface: Surface, address: str) -> None:
    held = surface.dispatcher.hold()
    async with wire(address) as client:
        client.post(ASK)
        client.writer.write_eof()
        await arrived(surface)
        assert await client.until(INTERIM)
        held.set_result(json_response())
        answer = (await client.rest()).replace(INTERIM, b"")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"ok":true}')
    assert b"connection: close" in answer
    assert surface.dispatcher.cancelled == 0


async def test_a_stream_comes_whole(surface: Surface, address: str) -> None:
    held = surface.dispatcher.hold()
    response = FakeResponse(headers=EVENTS, ended=False)
    async with wire(address) as client:
        client.post(STREAM)
        client.writer.write_eof()
        await arrived(surface)
        await client.until(INTERIM)
        held.set_result(response)
        for number in range(3):
            response.feed(b"data: %d\n\n" % number)
            await client.until(b"data: %d\n\n" % number)
        response.end()
        assert (await client.rest()).endswith(b"0\r\n\r\n")
    assert [status for _, status, _ in surface.finished] == [200]


async def test_one_that_closes_both_directions_is_found_out_by_the_second_probe(
    surface: Surface, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROBE_AGAIN_S < PROBE_S
    monkeypatch.setattr("gateway.api.server.protocol.PROBE_S", 3600.0)  # there is no third
    surface.dispatcher.hold()
    async with wire(address) as client:
        client.post(ASK)
        await arrived(surface)
        client.writer.close()
        async with asyncio.timeout(60):
            await surface.dispatcher.left.wait()


async def test_one_that_leaves_after_it_half_closed_is_gone_soon(
    surface: Surface, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROBE_S <= 1.0
    monkeypatch.setattr("gateway.api.server.protocol.PROBE_S", 0.05)
    surface.dispatcher.hold()
    async with wire(address) as client:
        client.post(ASK)
        client.writer.write_eof()
        await arrived(surface)
        for _ in range(2):
            await client.until(INTERIM)
        assert not surface.dispatcher.cancelled
        client.writer.transport.abort()
        async with asyncio.timeout(60):
            await surface.dispatcher.left.wait()


@pytest.mark.parametrize("sent", [HEAD[:40], HEAD + b"content-length: 50\r\n\r\n" + ASK])
async def test_half_a_request_and_the_end_are_no_request(surface: Surface, address: str, sent: bytes) -> None:
    async with wire(address) as client:
        client.send(sent)
        client.writer.write_eof()
        assert await client.rest() == b""
    assert not surface.dispatcher.requests


async def test_a_client_of_http_1_0_gets_no_interim_answer(surface: Surface, address: str) -> None:
    surface.dispatcher.hold()
    async with wire(address) as client:
        lines = b"content-length: %d\r\n\r\n" % len(ASK)
        client.send(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + lines + ASK)
        await arrived(surface)
        client.writer.write_eof()
        assert await client.rest() == b""
    assert surface.dispatcher.cancelled == 1
