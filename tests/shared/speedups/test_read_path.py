import gc
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


@pytest.mark.parametrize("most_events", [-1, 0, read_path.MOST_EVENTS + 1])
def test_only_so_many_sockets_are_read_at_once(
    implementation: ModuleType, sockets: Sockets, most_events: int
) -> None:
    sockets.send(0, b"first")
    with pytest.raises(ValueError, match="from 1 to 256 sockets"):
        sockets.read(implementation, most_events)
    assert sockets.read(implementation, read_path.MOST_EVENTS) == [(0, b"first")]


def test_none_is_nobody(implementation: ModuleType, sockets: Sockets) -> None:
    sockets.send(0, b"first")
    members = {sockets.pairs[0][0].fileno(): None}
    assert implementation.read_ready(sockets.poll, members, 8, 100) == ([], 0, 0)


class Member:
    """Held by nobody else."""

    name = "member"


class Forgetting:
    """While entered, the collector runs whenever it can, and the members are forgotten at its call number
    ``at``, of those that it makes before and after a run."""

    def __init__(self, members: dict[int, Member], at: int) -> None:
        self.members = members
        self.left = at
        self.thresholds = gc.get_threshold()

    def __enter__(self) -> None:
        # An object that lies ready since it was used last is taken without a run: here none does.
        self.taken = [(number, number) for number in range(5000)]
        gc.callbacks.append(self._called)
        gc.set_threshold(1)

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self.thresholds)
        gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        self.left -= 1
        if self.left == 0:
            self.members.clear()


@pytest.mark.parametrize("at", range(1, 12))
def test_members_may_be_forgotten_meanwhile(implementation: ModuleType, sockets: Sockets, at: int) -> None:
    members = {ours.fileno(): Member() for ours, _ in sockets.pairs}
    for number in range(3):
        sockets.send(number, b"some")
    with Forgetting(members, at):
        found, count, _ = implementation.read_ready(sockets.poll, members, 8, 100)
    others = [Member() for _ in range(100)]  # where a member was whose memory was given back
    assert all(type(member) is Member and member.name == "member" for member, _ in found)
    assert not {id(member) for member, _ in found} & {id(other) for other in others}
    assert count == len(found)
