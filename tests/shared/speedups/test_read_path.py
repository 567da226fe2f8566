import os
import select
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from shared.speedups import read_path
from tests.shared.speedups.implementations import each_implementation

if not hasattr(select, "epoll"):
    pytest.skip("this system has no epoll", allow_module_level=True)

implementation = each_implementation(read_path)
EVENTS = select.EPOLLIN | select.EPOLLRDHUP


class Sockets:
    """Pairs of sockets, of which one end each is watched. Members are their numbers."""

    def __init__(self, count: int) -> None:
        self.poll = select.epoll()
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.members: dict[int, int] = {}
        for number, (ours, _) in enumerate(self.pairs):
            ours.setblocking(False)
            self.poll.register(ours.fileno(), EVENTS)
            self.members[ours.fileno()] = number

    def send(self, number: int, data: bytes) -> None:
        self.pairs[number][1].sendall(data)

    def read(self, implementation: Any, most_events: int = 256, most_bytes: int = 1 << 20) -> list[Any]:
        found, count, size_bytes = implementation.read_ready(self.poll, self.members, most_events, most_bytes)
        assert (count, size_bytes) == (len(found), sum(len(data or b"") for _, data in found))
        return sorted(found)

    def close(self) -> None:
        self.poll.close()
        for pair in self.pairs:
            for each in pair:
                each.close()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets(3)
    yield made
    made.close()


def test_what_has_come_is_read_once_of_each_socket(implementation: ModuleType, sockets: Sockets) -> None:
    assert sockets.read(implementation) == []
    sockets.send(0, b"first")
    sockets.send(2, b"third")
    sockets.send(2, b" and more")
    assert sockets.read(implementation) == [(0, b"first"), (2, b"third and more")]
    assert sockets.read(implementation) == []


def test_nothing_is_read_before_an_end(implementation: ModuleType, sockets: Sockets) -> None:
    sockets.send(1, b"the last")
    sockets.pairs[1][1].shutdown(socket.SHUT_WR)
    sockets.send(0, b"first")
    assert sockets.read(implementation) == [(0, b"first"), (1, None)]
    assert sockets.pairs[1][0].recv(100) == b"the last", "it is left to who reads it then"


def test_a_socket_that_broke_is_told_as_one(implementation: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, select.epoll() as poll:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        with ours:
            ours.setblocking(False)
            poll.register(ours.fileno(), EVENTS)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            theirs.close()  # sends a reset
            assert implementation.read_ready(poll, {ours.fileno(): "ours"}, 8, 100) == (
                [("ours", None)],
                1,
                0,
            )


def test_no_more_is_read_than_was_asked_for(implementation: ModuleType, sockets: Sockets) -> None:
    for number in range(3):
        sockets.send(number, b"some")
    assert len(sockets.read(implementation, most_events=2)) == 2
    assert len(sockets.read(implementation, most_bytes=4)) == 1
    assert sockets.read(implementation) == []


def test_a_socket_of_nobody_is_not_read(implementation: ModuleType, sockets: Sockets) -> None:
    sockets.send(0, b"first")
    sockets.send(1, b"second")
    del sockets.members[sockets.pairs[0][0].fileno()]
    assert sockets.read(implementation) == [(1, b"second")]
    assert sockets.pairs[0][0].recv(100) == b"first"


def test_a_long_body_comes_in_pieces_of_bounded_size(implementation: ModuleType) -> None:
    sockets = Sockets(1)
    _, theirs = sockets.pairs[0]
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.setblocking(False)
    sent = os.urandom(1 << 20)
    at, got = 0, b""
    while len(got) < len(sent):
        try:
            at += theirs.send(sent[at : at + 65536]) if at < len(sent) else 0
        except BlockingIOError:
            for _, data in sockets.read(implementation):
                assert 0 < len(data) <= read_path.READ_BYTES
                got += data
        else:
            if at == len(sent):
                got += b"".join(data for _, data in sockets.read(implementation))
    assert got == sent
    sockets.close()


def test_a_closed_epoll_is_an_error(implementation: ModuleType) -> None:
    poll = select.epoll()
    poll.close()
    with pytest.raises((OSError, ValueError)):
        implementation.read_ready(poll, {}, 1, 1)
