"""The faulty network does what tests rely on it to do."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.http_connect_proxy import ConnectProxy
from tests.support.proxy import FaultyProxy, Link, Side

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def echo_port(no_leaks: None) -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_what_goes_in_comes_back_unchanged(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        sent = bytes(range(256)) * 4000
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        writer.close()


async def test_a_shaped_link_takes_as_long_as_its_rate_says(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port, Link(rate_bytes_per_s=1e6, delay_s=0.02)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        writer.write(bytes(200_000))
        writer.write_eof()
        assert len(await reader.read(-1)) == 200_000
        assert 0.2 < loop.time() - began_s < 1.0
        writer.close()


async def test_a_cut_resets_both_sides(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
        assert not proxy.connections


async def test_a_half_open_connection_is_silent_for_the_side_left(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await proxy.half_open(Side.CLIENT)
        writer.write(b"y")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        writer.close()


async def test_a_stall_delays_and_loses_nothing(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        proxy.stall()
        writer.write(b"y")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        proxy.resume()
        assert await reader.read(1) == b"y"
        writer.close()


async def test_corruption_changes_one_byte_and_truncation_ends_early(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        (connection,) = proxy.connections
        connection.up.tamper = lambda offset, data: data.replace(b"b", b"B")
        connection.down.end_at_bytes = 3
        writer.write(b"bcd")
        assert await reader.read(-1) == b"Bc"
        writer.close()


async def test_a_cut_may_be_in_the_middle_of_what_was_written_at_once(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        proxy.cut_within(up_bytes=1000, down_bytes=3)
        writer.write(b"abcdef")
        assert await reader.readexactly(3) == b"abc"
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()


async def test_bytes_vanish_without_anybody_being_told_and_new_connections_work(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        proxy.vanish()
        writer.write(b"y")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        again, writer_again = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer_again.write(b"z")
        assert await again.read(1) == b"z"
        for each in (writer, writer_again):
            each.close()


async def test_a_network_changes_under_an_open_connection(echo_port: int) -> None:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        proxy.reshape(Link(delay_s=0.05))
        began_s = asyncio.get_running_loop().time()
        writer.write(b"y")
        assert await reader.read(1) == b"y"
        assert asyncio.get_running_loop().time() - began_s >= 0.1
        writer.close()


async def test_a_connect_proxy_tunnels_and_refuses_the_wrong_password(echo_port: int) -> None:
    async with ConnectProxy(credentials=("u", "p")) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
        assert b"407" in await reader.readline()
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        login = b"proxy-authorization: Basic dTpw\r\n"
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n%b\r\nhello" % (echo_port, login))
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        assert proxy.tunnels == [f"127.0.0.1:{echo_port}"]
