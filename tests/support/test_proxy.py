"""The faulty network does what tests rely on it to do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Carried:
    """A connection to an echo through the faulty network, which has carried one byte there and back."""

    proxy: FaultyProxy
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@pytest.fixture
async def carried(echo_port: int) -> AsyncIterator[Carried]:
    async with FaultyProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        yield Carried(proxy, reader, writer)
        writer.close()


async def nothing_comes(carried: Carried) -> None:
    """Of a byte that is sent now."""
    carried.writer.write(b"y")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(carried.reader.read(1), 0.05)


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
        assert loop.time() - began_s > 0.2
        writer.close()


async def test_a_cut_resets_both_sides(carried: Carried) -> None:
    await carried.proxy.cut()
    with pytest.raises(ConnectionResetError):
        await carried.reader.read(1)
    assert not carried.proxy.connections


async def test_a_half_open_connection_is_silent_for_the_side_left(carried: Carried) -> None:
    await carried.proxy.half_open(Side.CLIENT)
    await nothing_comes(carried)


async def test_a_stall_delays_and_loses_nothing(carried: Carried) -> None:
    carried.proxy.stall()
    await nothing_comes(carried)
    carried.proxy.resume()
    assert await carried.reader.read(1) == b"y"


async def test_a_parted_network_carries_nothing_on_new_connections_neither(carried: Carried) -> None:
    carried.proxy.part()
    await nothing_comes(carried)
    again, writer_again = await asyncio.open_connection("127.0.0.1", carried.proxy.port)
    await nothing_comes(Carried(carried.proxy, again, writer_again))
    carried.proxy.heal()
    assert await carried.reader.read(1) == b"y"
    assert await again.read(1) == b"y"
    writer_again.close()


async def test_one_client_alone_can_be_parted(carried: Carried) -> None:
    proxy = carried.proxy
    other, writer_other = await asyncio.open_connection("127.0.0.1", proxy.port)
    parted = {carried.writer.get_extra_info("sockname")[1]}
    proxy.part(lambda port: port in parted)
    await nothing_comes(carried)
    third, writer_third = await asyncio.open_connection("127.0.0.1", proxy.port)
    for reader, writer in ((other, writer_other), (third, writer_third)):
        writer.write(b"z")
        assert await reader.read(1) == b"z"
        writer.close()
    proxy.heal()
    assert await carried.reader.read(1) == b"y"


async def test_who_goes_away_refuses_connections_and_comes_back_on_the_same_port(carried: Carried) -> None:
    port = carried.proxy.port
    await carried.proxy.go_away()
    with pytest.raises(ConnectionResetError):
        await carried.reader.read(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    carried.proxy.come_back()
    again, writer_again = await asyncio.open_connection("127.0.0.1", port)
    writer_again.write(b"z")
    assert await again.read(1) == b"z"
    writer_again.close()


async def test_corruption_changes_one_byte_and_truncation_ends_early(carried: Carried) -> None:
    (connection,) = carried.proxy.connections
    connection.up.tamper = lambda offset, data: data.replace(b"b", b"B")
    connection.down.end_at_bytes = 3
    carried.writer.write(b"bcd")
    assert await carried.reader.read(-1) == b"Bc"


async def test_a_cut_may_be_in_the_middle_of_what_was_written_at_once(carried: Carried) -> None:
    carried.proxy.cut_within(up_bytes=1000, down_bytes=3)
    carried.writer.write(b"abcdef")
    assert await carried.reader.readexactly(3) == b"abc"
    with pytest.raises(ConnectionResetError):
        await carried.reader.read(1)


async def test_bytes_vanish_without_anybody_being_told_and_new_connections_work(carried: Carried) -> None:
    carried.proxy.vanish()
    await nothing_comes(carried)
    again, writer_again = await asyncio.open_connection("127.0.0.1", carried.proxy.port)
    writer_again.write(b"z")
    assert await again.read(1) == b"z"
    for each in (carried.writer, writer_again):
        each.close()


async def test_a_network_changes_under_an_open_connection(carried: Carried) -> None:
    carried.proxy.reshape(Link(delay_s=0.05))
    began_s = asyncio.get_running_loop().time()
    carried.writer.write(b"y")
    assert await carried.reader.read(1) == b"y"
    assert asyncio.get_running_loop().time() - began_s >= 0.1


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
