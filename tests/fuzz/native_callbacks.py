"""Objects that do something whenever they are asked, called, compared or ended, given to the functions in C:
they raise, forget what is in use, replace it, and use the same functions meanwhile.

What comes of it is not compared: only errors of the objects themselves, and of wrong uses, may come out.
"""

import gc
import select
import socket
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from shared.protocol.frames import FrameType, encode
from shared.speedups import body_path, header_collector, native, out_path, read_path, websocket_frames
from tests.shared.speedups.out_paths import Slotted

_BODY, _UNWANTED, _RESET, _OTHER = object(), object(), object(), object()
_EVENT = b"data: 1\n\n"
_CHUNK = b"9\r\n" + _EVENT + b"\r\n"
_BODIES = (
    encode(FrameType.DATA, 1, _EVENT) + encode(FrameType.DATA, 2, b"half") + encode(FrameType.DATA, 1, _EVENT)
)
_LONG = encode(FrameType.DATA, 1, b"x" * 16_000 + b"\n\n") * 3
_MOST_DEPTH = 3
_STREAM = ("peer", "local", "credit", "path")
_PATH = ("open", "descriptor", "buffered_bytes", "on_unsaid", "last", "sent_bytes", "step_bytes")


class _Trouble(Exception):
    """What the objects raise."""


_DOCUMENTED = (
    _Trouble,
    AttributeError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)


class _Came(tuple[int, bytes]):
    """An event."""

    __slots__ = ()


class _Asked:
    """Does something before an attribute of it is read or set."""

    def __init__(self, meddle: Callable[[], None], **values: Any) -> None:
        object.__setattr__(self, "meddle", meddle)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "meddle")()
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "meddle")()
        object.__setattr__(self, name, value)


class _Slotted:
    """Has its attributes in slots, and does something when it ends."""

    __slots__ = ("credit", "local", "meddle", "path", "peer")

    def __init__(self, meddle: Callable[[], None], **values: Any) -> None:
        self.meddle = meddle
        for name, value in values.items():
            setattr(self, name, value)

    def __del__(self) -> None:
        try:
            self.meddle()
        except _DOCUMENTED:
            return


class _HalfSlotted:
    """Has some in slots, at other places, and does something when it is asked for another."""

    __slots__ = ("_peer", "a", "b", "c", "credit", "local", "meddle", "path")

    def __init__(self, meddle: Callable[[], None], **values: Any) -> None:
        self.meddle = meddle
        for name, value in values.items():
            setattr(self, name, value)

    @property
    def peer(self) -> Any:
        self.meddle()
        return self._peer

    @peer.setter
    def peer(self, value: Any) -> None:
        self._peer = value


class _Number(int):
    """A key that does something when it is compared, and a number that does when it is used as one."""

    meddle: Callable[[], None]

    def __eq__(self, other: object) -> bool:
        self.meddle()
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))


class _Line(deque[Any]):
    """A queue that does something when it is used."""

    meddle: Callable[[], None]

    def __len__(self) -> int:
        self.meddle()
        return super().__len__()

    def append(self, item: Any) -> None:
        self.meddle()
        super().append(item)

    def popleft(self) -> Any:
        self.meddle()
        return super().popleft()


class _World:
    """One of each, and what can be done to them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.depth = 0
        self.trouble = random.choice((0.0, 0.05, 0.3))
        self.busy = random.choice((0.1, 0.5))
        self.members: dict[Any, Any] = {}
        self.streams: dict[Any, Any] = {}
        self.events: list[Any] = []
        self.later: list[Any] = []
        self.pieces: list[Any] = []
        self.pairs = [socket.socketpair() for _ in range(2)]
        self.poll = select.epoll() if hasattr(select, "epoll") else None
        self.flow = _Asked(self.meddle, write_paused=False)
        self.session = self.make(_Asked, received=0, granted=1 << 40, sent=0, limit=1 << 40, closed=False)
        self.ready, self.unread = _Line(), _Line()
        self.ready.meddle = self.unread.meddle = self.meddle
        self.paths = [self.body_path() for _ in range(2)]
        for number in (1, 2):
            self.streams[self.number(number)] = self.stream(number)
        self.follow_new_path()
        collectors: Any = native or header_collector
        self.collector = collectors.HeaderCollector(self.called, 2, 20)
        for ours, _ in self.pairs:
            ours.setblocking(False)
            if self.poll is not None:
                self.poll.register(ours.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        self.actions = [self.raise_trouble, self.forget, self.replace, self.collect, *self.uses()]

    def make(self, kind: Any, **values: Any) -> Any:
        return kind(self.meddle, **values)

    def number(self, value: int) -> Any:
        if self.random.random() < 0.7:
            return value
        made = _Number(value)
        made.meddle = self.meddle
        return made

    def body_path(self) -> Any:
        bodies: Any = native or body_path
        path = bodies.BodyPath(self.called, self.flow)
        path.open = True
        path.buffered_bytes = self.buffered
        if self.random.random() < 0.5:
            path.descriptor = self.pairs[0][0].fileno()
        return path

    def stream(self, number: int) -> Any:
        kind = self.random.choice((_Asked, _Slotted, _HalfSlotted))
        credit = _Asked(self.meddle, received=0, granted=1 << 40)
        path = self.random.choice((None, *self.paths))
        return self.make(kind, peer=_BODY, local=_OTHER, credit=credit, path=path)

    def out(self) -> Any:
        credit = _Asked(self.meddle, sent=0, limit=1 << 40)
        queue = _Line([_EVENT])
        queue.meddle = self.meddle
        values: dict[str, Any] = {
            "pending_bytes": 9,
            "waiting": False,
            "interactive": True,
            "queued": False,
            "stream_id": 1,
        }
        values |= {
            "chunks": queue,
            "credit": credit,
            "head": self.random.choice((None, b"head")),
            "end": b"end",
        }
        return Slotted(**values) if self.random.random() < 0.5 else self.make(_Asked, **values)

    def follow_new_path(self) -> None:
        outs: Any = native or out_path
        stream = self.make(_Slotted, peer=_OTHER, local=_BODY)
        if self.random.random() < 0.7:
            stream = self.make(_Asked, peer=_OTHER, local=_BODY, out=self.out())
        endpoint = self.make(_Asked, wake=self.called)
        self.out_path = outs.OutPath(stream, self.session, endpoint, self.ready, (_BODY, _RESET), 1000)
        self.out_path.open = True
        if not hasattr(self, "reader"):
            self.reader = outs.ChunkReader(self.called, self.buffered, self.unread)
        self.reader.follow(self.out_path, self.random.choice((b"", b"3\r\na", b"1000\r\n")), 0)

    def called(self, *_: object) -> None:
        self.meddle()

    def buffered(self) -> Any:
        self.meddle()
        return self.random.choice((0, 0, 0, 1, _Number(0), None))

    def meddle(self) -> None:
        """Does something now and then."""
        if self.depth >= _MOST_DEPTH or self.random.random() > self.busy:
            return
        self.depth += 1
        try:
            self.random.choice(self.actions)()
        finally:
            self.depth -= 1

    def raise_trouble(self) -> None:
        if self.random.random() < self.trouble:
            raise _Trouble

    def collect(self) -> None:
        gc.collect(0)

    def forget(self) -> None:
        """What is in use is in use no more."""
        containers: list[Any] = [self.streams, self.members, self.later, self.pieces, self.events, self.ready]
        for path in self.paths:
            containers += (path.waiting, path.fresh)
        self.random.choice(containers).clear()

    def replace(self) -> None:
        """Something else is in its place."""
        choice = self.random.randrange(7)
        if choice == 0:
            self.paths[self.random.randrange(2)] = self.body_path()
        elif choice == 1:
            self.streams[self.number(self.random.randint(1, 2))] = self.stream(1)
        elif choice == 2:
            self.follow_new_path()
        elif choice == 3:
            self.reader.path = None
        elif choice == 4:
            self.collector.fields = []
        elif choice == 5:
            self.random.choice(self.paths).waiting.append(self.random.choice((_EVENT, None)))
        else:
            path, name = self.random.choice(self.paths), self.random.choice(_PATH)
            values: tuple[Any, ...] = (True, False, -1, None, b"last", self.buffered)
            if name == "descriptor":
                values = (-1,)  # others could be anybody's, and be written to
            if self.random.random() < 0.2:
                delattr(path, name)
            else:
                setattr(path, name, self.random.choice(values))

    def uses(self) -> list[Callable[[], object]]:
        """Every function, called with all these."""
        bodies: Any = native or body_path
        outs: Any = native or out_path
        messages: Any = native or websocket_frames
        states = (_BODY, _UNWANTED, _RESET)

        def receive() -> None:
            later = self.random.choice((None, self.later))
            fixed = (_Came, states, int(FrameType.DATA), 1 << 20, later)
            message = _LONG if self.random.random() < 0.05 else _BODIES
            bodies.receive_bodies(message, 0, self.streams, self.session, self.events, *fixed)

        def turns() -> None:
            if not deque.__len__(self.ready):
                deque.append(self.ready, self.out())
            outs.take_turns(self.ready, self.pieces, self.pieces, self.session, self.number(500), 100, 2)

        def messages_of_pieces() -> None:
            messages.frame_messages([*map(bytes, (3, 200)), *self.pieces], b"")

        return [
            receive,
            receive,
            turns,
            messages_of_pieces,
            self.read,
            lambda: bodies.write_bodies(self.later),
            lambda: self.random.choice(self.paths).take(_EVENT),
            lambda: self.random.choice(self.paths).flush(),
            lambda: self.out_path.take(_EVENT),
            lambda: self.reader(
                self.random.choice((_CHUNK, _CHUNK, b"3\r\nab", b"\n\r\n", b"zz" + bytes(5000)))
            ),
            lambda: self.reader.follow(self.out_path, b"", 0),
            lambda: self.reader.close() if self.random.random() < 0.2 else None,
            lambda: self.collector(b"Name", b"value"),
            lambda: self.collector.close() if self.random.random() < 0.2 else None,
        ]

    def read(self) -> None:
        if self.poll is None:
            return
        reads: Any = native or read_path
        for ours, theirs in self.pairs:
            theirs.send(b"some", socket.MSG_DONTWAIT)
            self.members[self.number(ours.fileno())] = self.make(_Slotted)
        reads.read_ready(self.poll, self.members, 8, self.number(100))

    def close(self) -> None:
        """Nothing is done any more."""
        self.depth = _MOST_DEPTH
        for path in self.paths:
            path.descriptor = -1
        for pair in self.pairs:
            for each in pair:
                each.close()
        if self.poll is not None:
            self.poll.close()


def callbacks(random: Random) -> None:
    world = _World(random)
    actions = world.uses()
    try:
        for _ in range(random.randrange(1, 8)):
            try:
                random.choice(actions)()
            except _DOCUMENTED:
                continue
    finally:
        world.close()
