"""Reading many sockets together, in C against Python: peers that send, end and reset, sockets that are closed
or become others meanwhile, members that go, and limits of every size."""

import select
import socket
from random import Random
from typing import Any

from shared.speedups import native, read_path

_HAS_EPOLL = hasattr(select, "epoll")
_SIZES = (1, 3, 100, 5_000, 5_000, 300_000)
_MOST_EVENTS = (1, 2, 3, 256, 256, 256, 0, -1, 257, 1 << 40)
_MOST_BYTES = (0, -1, 1, 5, 1_000, 1 << 20, 1 << 20, (1 << 63) - 1)
_STEPS = (
    "send",
    "send",
    "send",
    "end",
    "close",
    "reset",
    "lose",
    "copy",
    "other",
    "leave",
    "nobody",
    "read",
    "read",
)
_TRIES = 3
"""A program that looks at the descriptors of this process, as in ``/proc/PID/fd``, keeps a socket open for a
moment after it was closed. What differs because of that does not differ again."""

Step = tuple[str, int, int]
"""Its name, and the number of a pair and a size, or the limits of a read."""


class _Sockets:
    """Pairs of sockets for one of the implementations; one end of each is watched. Members are strings."""

    def __init__(self, implementation: Any, pairs: int) -> None:
        self._read = implementation.read_ready
        self._poll = select.epoll()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._copies: list[socket.socket] = []
        self._members: dict[int, str | None] = {}
        for _ in range(pairs):
            self._add()

    def _add(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._pairs.append((ours, theirs))
        self._poll.register(ours.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        self._members[ours.fileno()] = f"member {len(self._pairs)}"

    def step(self, name: str, number: int, size: int) -> None:
        """Something happens to a pair."""
        ours, theirs = self._pairs[number % len(self._pairs)]
        if ours.fileno() < 0 or theirs.fileno() < 0:
            return
        if name == "send":
            _send(theirs, bytes([number]) * size)
        elif name == "end":
            _end(theirs)
        elif name == "close":
            theirs.close()
        elif name == "reset":
            _send(ours, b"unread")
            theirs.close()
        elif name == "lose":
            ours.close()
        elif name == "copy":  # the epoll watches the socket on, under a number that is closed
            self._copies.append(ours.dup())
            ours.close()
        elif name == "other":  # and here under the number of another socket
            self._copies.append(ours.dup())
            ours.close()
            self._add()
        elif name == "leave":
            self._members.pop(ours.fileno(), None)
        else:
            self._members[ours.fileno()] = None

    def read(self, most_events: int, most_bytes: int) -> object:
        """What was read, or that it was refused."""
        try:
            return self._read(self._poll, self._members, most_events, most_bytes)
        except ValueError:
            return "refused"

    def close(self) -> None:
        self._poll.close()
        for pair in self._pairs:
            for each in pair:
                each.close()
        for each in self._copies:
            each.close()


def _send(sender: socket.socket, data: bytes) -> None:
    try:
        sender.send(data)
    except OSError:
        return


def _end(sender: socket.socket) -> None:
    try:
        sender.shutdown(socket.SHUT_WR)
    except OSError:
        return


def reads(random: Random) -> None:
    if not _HAS_EPOLL:
        return
    pairs = 60 if random.random() < 0.01 else random.choice((1, 2, 3, 3, 8))
    steps = [_step(random) for _ in range(random.randrange(1, 12))]
    # One after the other: a number that is closed for one could become a socket of the other.
    for _ in range(_TRIES):
        found, expected = (_played(each, pairs, steps) for each in (native or read_path, read_path))
        if found == expected:
            return
    raise AssertionError(pairs, steps)  # without what was found, which may be long


def _step(random: Random) -> Step:
    name = random.choice(_STEPS)
    if name == "read":
        return name, random.choice(_MOST_EVENTS), random.choice(_MOST_BYTES)
    return name, random.randrange(100), random.choice(_SIZES)


def _played(implementation: Any, pairs: int, steps: list[Step]) -> list[object]:
    """All that is read when these things happen."""
    sockets = _Sockets(implementation, pairs)
    found: list[object] = []
    try:
        for name, first, second in steps:
            if name == "read":
                found.append(sockets.read(first, second))
            else:
                sockets.step(name, first, second)
        found.append(sockets.read(256, 1 << 30))
    finally:
        sockets.close()
    return found
