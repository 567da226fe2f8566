"""Who is no agent: turned away before anything is kept for it."""

import asyncio

import pytest

from shared.protocol import limits
from tests.support.tunnels import Acceptor, accepting


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 4"),
        (b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b""),
        (
            b"GET /tunnel HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            b"HTTP/1.1 400",
        ),
        (b"x" * (limits.UPGRADE_REQUEST_BYTES + 1), b""),
    ],
)
async def test_strangers_are_turned_away(sent: bytes, answer: bytes) -> None:
    acceptor = Acceptor()
    async with accepting(acceptor) as url:
        port = int(url.split(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            received = await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            received = b""
        assert received.startswith(answer)
        writer.close()
        assert acceptor.connections == 0


async def test_a_stranger_that_closes_its_direction_behind_its_request_is_answered() -> None:
    async with accepting(Acceptor()) as url:
        port = int(url.split(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /elsewhere HTTP/1.1\r\nhost: gateway\r\n\r\n")
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 4")
        writer.close()


async def test_a_stranger_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_TIMEOUT_S", 0.05)
    acceptor = Acceptor()
    async with accepting(acceptor) as url:
        port = int(url.split(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await asyncio.wait_for(reader.readexactly(1), 60)
        writer.close()
