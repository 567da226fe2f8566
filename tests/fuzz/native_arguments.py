"""Arguments of wrong types and values for everything that the module in C offers, found by its names: only
errors that say so come out, and what was called with them can be used on."""

import os
import select
import socket
from collections import deque, namedtuple
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from shared.protocol.frames import FrameType, encode
from shared.speedups import native
from shared.speedups.session_frames import RULES_BYTES

_DOCUMENTED = (
    *(AttributeError, BufferError, IndexError, OSError, OverflowError, TypeError, ValueError),
    RuntimeWarning,  # of newer interpreters, where a bool is given as a descriptor
)
_EVENT = b"data: 1\n\n"
_BODY, _OTHER = object(), object()
_Pair = namedtuple("_Pair", "stream_id data")
_Frame = namedtuple("_Frame", "type stream_id payload")
_NOT_OPEN = (-1, 1 << 20, (1 << 31) - 1)
"""Descriptors: others could be anybody's, and be written to."""


class _Slotted:
    __slots__ = ("a", "b", "c", "credit", "head", "local", "out", "path", "peer", "sent")


_Foreign = type(
    "_Foreign",
    (),
    {"__slots__": (), **{name: getattr(_Slotted, name) for name in _Slotted.__slots__}},
)
"""Has slots of another class by their names."""


class _Bytes(bytes):
    """Of another class."""


def _numbers(random: Random) -> int:
    edge = random.choice((0, 1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 63, 1 << 64))
    return random.choice((1, -1)) * edge + random.choice((-1, 0, 1))


def _wrong(random: Random) -> Any:
    """Anything."""
    data = random.choice((b"", b"x", _EVENT, bytes(300)))
    made: tuple[Any, ...] = (
        *(None, True, 1.5, float("nan"), "text", object(), print, len),
        *([], [1], [b"x"], [data, data], (), (1, 2), {}, {1: 2}, {1: _Foreign()}, deque([data])),
        *(object, int, tuple, _Pair, os.stat_result, _Pair(1, b"x"), _Foreign(), _Slotted(), _Bytes(data)),
        *(data, bytearray(data), memoryview(data), memoryview(data)[::2], SimpleNamespace()),
        *(_numbers(random) for _ in range(12)),
    )
    return random.choice(made)


Call = tuple[Callable[..., Any], tuple[Any, ...]]


class _Offered:
    """What there is, each with a call of it that is right."""

    def __init__(self, poll: Any, ours: socket.socket) -> None:
        names: Any = native
        self.path = names.BodyPath(len, SimpleNamespace(write_paused=False))
        self.path.open, self.path.buffered_bytes = True, lambda: 0
        counts = SimpleNamespace(received=0, granted=1000, sent=0, limit=1000, closed=False)
        out = SimpleNamespace(
            **{"pending_bytes": 9, "waiting": False, "interactive": True, "queued": False, "stream_id": 1},
            **{"chunks": deque([_EVENT]), "head": b"head", "end": b"end", "credit": counts},
        )
        stream = SimpleNamespace(peer=_BODY, local=_OTHER, path=self.path, credit=counts, out=out)
        self.counts = names.ReceivedBytes()
        self.counts.granted = 1000
        self.ready = deque([out])
        endpoint = SimpleNamespace(wake=lambda: None)
        self.outgoing = (stream, counts, endpoint, self.ready, (_OTHER, _BODY), 1000)
        self.out_path = names.OutPath(*self.outgoing)
        self.out_path.open = True
        self.reader = names.ChunkReader(len, lambda: 0.0, [])
        self.reader.follow(self.out_path, b"", 0)
        self.collector = names.HeaderCollector(max, 2, 20)
        plain = (counts, out, stream)
        self.objects = (self.path, self.counts, self.out_path, self.reader, self.collector, *plain)
        self.calls = self._functions(poll, ours, stream) | self._types() | self._methods()

    def _functions(self, poll: Any, ours: socket.socket, stream: Any) -> dict[str, Call]:
        names: Any = native
        message = encode(FrameType.DATA, 1, _EVENT) + encode(FrameType.DATA, 1, b"half")
        data_type, later = int(FrameType.DATA), [self.path]
        wanted = ((_BODY, _BODY, _BODY), data_type, 100, later)
        bodies: tuple[Any, ...] = (message, 0, {1: stream}, self.counts, [], _Pair, *wanted)
        return {
            "cut_frames": (names.cut_frames, (message, 0, bytes(RULES_BYTES), _Frame, data_type)),
            "cut_messages": (names.cut_messages, (b"\x82\x01x", 0, False, 100)),
            "frame_messages": (names.frame_messages, ([b"one", b"two"], bytes(8))),
            "receive_bodies": (names.receive_bodies, bodies),
            "write_bodies": (names.write_bodies, (later,)),
            "take_turns": (names.take_turns, (self.ready, [], [], stream.credit, 1000, 100, data_type)),
            "read_ready": (names.read_ready, (poll, {ours.fileno(): "ours"}, 8, 100)),
        }

    def _types(self) -> dict[str, Call]:
        names: Any = native
        return {
            "BodyPath": (names.BodyPath, (len, SimpleNamespace(write_paused=False))),
            "OutPath": (names.OutPath, self.outgoing),
            "ChunkReader": (names.ChunkReader, (len, float, [])),
            "HeaderCollector": (names.HeaderCollector, (max, 2, 20)),
            "ReceivedBytes": (names.ReceivedBytes, ()),
        }

    def _methods(self) -> dict[str, Call]:
        return {
            "BodyPath.take": (self.path.take, (_EVENT,)),
            "BodyPath.flush": (self.path.flush, ()),
            "OutPath.take": (self.out_path.take, (_EVENT,)),
            "ChunkReader.follow": (self.reader.follow, (self.out_path, b"9\r\n" + _EVENT, 0)),
            "ChunkReader.close": (self.reader.close, ()),
            "ChunkReader.__call__": (self.reader, (b"9\r\n" + _EVENT + b"\r\n",)),
            "HeaderCollector.close": (self.collector.close, ()),
            "HeaderCollector.__call__": (self.collector, (b"Name", b"value")),
        }


def offered_names() -> set[str]:
    """Of everything that is called with wrong arguments."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return set(_Offered(None, ours).calls)


def _call(random: Random, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    given = list(arguments)
    for _ in range(random.choice((0, 1, 1, 2))):
        if given:
            given[random.randrange(len(given))] = _wrong(random)
    if random.random() < 0.05:
        given = given[: random.randrange(len(given) + 1)] + [None] * random.choice((0, 0, 1))
    if random.random() < 0.02:
        function(*given, name=None)
    function(*given)


def _change(random: Random, changed: Any) -> None:
    """A part of it becomes something else."""
    name = random.choice([each for each in dir(changed) if not each.startswith("__")] or ["gone"])
    if random.random() < 0.1:
        delattr(changed, name)
    elif name == "descriptor":
        changed.descriptor = random.choice(_NOT_OPEN)
    else:
        setattr(changed, name, _wrong(random))


def arguments(random: Random) -> None:
    if native is None:
        return
    ours, theirs = socket.socketpair()
    poll = select.epoll() if hasattr(select, "epoll") else None
    try:
        ours.setblocking(False)
        theirs.send(b"some")
        if poll is not None:
            poll.register(ours.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        offered = _Offered(poll, ours)
        calls = [*offered.calls.values()]
        for _ in range(random.randrange(1, 12)):
            try:
                if random.random() < 0.2:
                    _change(random, random.choice(offered.objects))
                else:
                    _call(random, *random.choice(calls))
            except _DOCUMENTED:
                continue
    finally:
        if poll is not None:
            poll.close()
        ours.close()
        theirs.close()
