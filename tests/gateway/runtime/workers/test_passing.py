"""Connections go from worker to worker with what was read of them, or stay where they are."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.runtime.workers.passing import MOST_BYTES, ConnectionPassing

NAMES = ["h-0", "h-1"]


class Taken:
    def __init__(self) -> None:
        self.queue = asyncio.Queue[tuple[socket.socket, bytes]]()

    def take(self, connection: socket.socket, data: bytes) -> None:
        self.queue.put_nowait((connection, data))

    async def next(self) -> tuple[socket.socket, bytes]:
        return await asyncio.wait_for(self.queue.get(), 60)


@asynccontextmanager
async def workers(state: Path) -> AsyncIterator[tuple[ConnectionPassing, Callable[[], Taken]]]:
    """One that passes on, and a way to start the other."""
    first = ConnectionPassing(state, "h-0", lambda: NAMES[1:])
    second = ConnectionPassing(state, "h-1", lambda: NAMES[:1])
    taken = Taken()

    def start() -> Taken:
        second.start(taken.take)
        return taken

    first.start(Taken().take)
    try:
        yield first, start
    finally:
        first.close()
        second.close()


async def test_the_other_worker_has_the_connection_and_what_was_read(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path) as (first, start):
        taken = start()
        client, accepted = socket.socketpair()
        with client:
            assert first.pass_on("h-1", accepted.fileno(), b"GET /tunnel/h-1 HTTP/1.1\r\n\r\n")
            accepted.close()
            client.sendall(b"more")
            connection, data = await taken.next()
            with connection:
                assert data == b"GET /tunnel/h-1 HTTP/1.1\r\n\r\n"
                assert connection.recv(10) == b"more"
                assert not os.get_inheritable(connection.fileno())
                connection.sendall(b"answer")
                assert client.recv(10) == b"answer"
            assert client.recv(10) == b""


@pytest.mark.parametrize("process", ["h-0", "h-1", "h-2", "../h-1", ""])
async def test_nothing_goes_to_one_that_is_away_or_no_sibling(
    tmp_path: Path, process: str, no_leaks: None
) -> None:
    async with workers(tmp_path) as (first, _):
        client, accepted = socket.socketpair()
        with client, accepted:
            assert not first.pass_on(process, accepted.fileno(), b"head")
            client.sendall(b"still here")
            assert accepted.recv(20) == b"still here"


async def test_one_that_died_and_left_its_socket_behind_is_away(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path) as (first, _):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(tmp_path / "workers" / "h-1.passed.sock"))
        client, accepted = socket.socketpair()
        with client, accepted:
            assert not first.pass_on("h-1", accepted.fileno(), b"head")


async def test_the_next_of_that_name_takes_connections_again(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path) as (first, start):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(tmp_path / "workers" / "h-1.passed.sock"))
        taken = start()
        client, accepted = socket.socketpair()
        with client, accepted:
            assert first.pass_on("h-1", accepted.fileno(), b"head")
            connection, _ = await taken.next()
            connection.close()


async def test_one_that_does_not_read_gets_a_bounded_number_and_none_leaks(
    tmp_path: Path, no_leaks: None
) -> None:
    async with workers(tmp_path) as (first, start):
        taken = start()
        pairs = [socket.socketpair() for _ in range(2000)]  # in one turn of the loop: nobody reads
        passed = [first.pass_on("h-1", theirs.fileno(), b"head") for _, theirs in pairs]
        assert passed[0]
        assert not passed[-1]
        for ours, theirs in pairs:
            ours.close()
            theirs.close()
        for _ in range(passed.count(True)):
            (await taken.next())[0].close()
        assert taken.queue.empty()


async def test_those_that_wait_for_one_that_ends_are_closed(tmp_path: Path, no_leaks: None) -> None:
    first = ConnectionPassing(tmp_path, "h-0", lambda: NAMES[1:])
    (tmp_path / "workers").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hangs:
        hangs.bind(str(tmp_path / "workers" / "h-1.passed.sock"))
        client, accepted = socket.socketpair()
        with accepted:
            assert first.pass_on("h-1", accepted.fileno(), b"head")
    with client:
        assert client.recv(10) == b""
    first.close()


async def test_too_much_is_not_passed_on(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path) as (first, start):
        taken = start()
        client, accepted = socket.socketpair()
        with client, accepted:
            assert not first.pass_on("h-1", accepted.fileno(), b"x" * (MOST_BYTES + 1))
            assert first.pass_on("h-1", accepted.fileno(), b"x" * MOST_BYTES)
            connection, data = await taken.next()
            connection.close()
            assert len(data) == MOST_BYTES


async def test_only_the_owner_can_reach_them_and_nothing_is_left(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path):
        assert (tmp_path / "workers").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "workers" / "h-0.passed.sock").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "workers") == []


async def test_nothing_is_passed_on_after_the_end(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path) as (first, start):
        start()
        first.close()
        client, accepted = socket.socketpair()
        with client, accepted:
            assert not first.pass_on("h-1", accepted.fileno(), b"head")
