"""Who asks for another protocol and does not get it is answered over HTTP/1.1, body and all."""

import asyncio

import pytest

from tests.gateway.api.server.test_server import ASK, HEAD, wire
from tests.gateway.api.support import Surface


async def test_an_upgrade_elsewhere_than_at_the_tunnel_is_a_plain_request(address: str) -> None:
    async with wire(address) as client:
        client.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_a_body_behind_an_upgrade_is_never_taken_for_a_request(address: str, surface: Surface) -> None:
    smuggled = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    async with wire(address) as client:
        client.post(smuggled, b"connection: upgrade", b"upgrade: h2c")
        answer = await client.rest()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_json" in answer, "it was read as the body"


CHUNKED = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (5, ASK[:5], len(ASK) - 5, ASK[5:])


@pytest.mark.parametrize(
    ("framing", "body"),
    [(b"content-length: %d" % len(ASK), ASK), (b"transfer-encoding: chunked", CHUNKED)],
)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "more", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"no request at all\r\n\r\n"]
)
async def test_a_request_that_would_like_another_protocol_is_read_to_its_end(
    address: str, surface: Surface, framing: bytes, body: bytes, apart: bool, more: bytes
) -> None:
    """As some clients ask for HTTP/2 with every request. The connection ends with its answer."""
    upgrade = b"\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n\r\n"
    async with wire(address) as client:
        client.send(HEAD + framing + upgrade)
        for piece in (body[:7], body[7:] + more) if apart else (body + more,):
            if apart:
                await asyncio.sleep(0.02)
            client.send(piece)
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"ok":true}')
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert len(surface.dispatcher.requests) == 1


async def test_a_broken_body_behind_an_upgrade_is_refused(address: str) -> None:
    async with wire(address) as client:
        client.send(
            HEAD + b"transfer-encoding: chunked\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nxyz\r\n"
        )
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
