"""The functions in C against those in Python, on messages at random and near misses: they do the same.

Where they were not built, both are the Python ones, and only their own assertions are tried.
"""

import socket
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from shared.protocol import limits
from shared.protocol.frames import FrameType, encode
from shared.speedups import body_path, header_collector, native, out_path, websocket_frames
from tests.fuzz.fuzz_frames import spoil
from tests.shared.speedups.out_paths import EVENT, OutPaths, Turns, chunk

_BODY, _UNWANTED, _RESET, _OTHER = object(), object(), object(), object()
_FACTS = ("open", "waiting", "fresh", "last", "pieces", "sent_bytes", "taken_bytes", "unsaid_bytes")
_PIECES = (b"data: 1\n\n", b"\r\n\r\n", b"\n", b"half", b"data: 2\r\n\r\n", b"x" * 300 + b"\n\n")


class Came(NamedTuple):
    """An event."""

    stream_id: int
    data: bytes


class _Table:
    """The streams of a session for one of the implementations."""

    def __init__(self, implementation: Any, seed: int) -> None:
        random = Random(seed)
        self.written = bytearray()
        self.events: list[Came] = []
        counts = random.choice((implementation.ReceivedBytes, SimpleNamespace))
        self.session = _counted(counts, random.choice((0, 50, 10_000)))
        self.paths = []
        self.ours, self.theirs = socket.socketpair()
        buffered_bytes = random.choice((0, 0, 5))
        self.streams: dict[int, Any] = {}
        for number in range(1, 6):
            flow = SimpleNamespace(write_paused=random.random() < 0.1)
            path = implementation.BodyPath(self._write, flow)
            path.open = random.random() < 0.8
            path.buffered_bytes = lambda: buffered_bytes
            if number == 1 and not flow.write_paused:
                path.descriptor = self.ours.fileno()
            self.paths.append(path)
            self.streams[number] = SimpleNamespace(
                peer=random.choice((_BODY, _BODY, _BODY, _OTHER)),
                local=random.choice((_OTHER, _OTHER, _OTHER, _UNWANTED, _RESET)),
                path=random.choice((path, path, None)),
                credit=_counted(counts, random.choice((20, 5_000))),
            )
        self._receive, self._write_bodies = implementation.receive_bodies, implementation.write_bodies
        self._later: list[Any] | None = random.choice((None, []))

    def receive(self, message: bytes, start: int) -> object:
        """All that can be seen after it."""
        end, due = self._receive(
            message,
            start,
            self.streams,
            self.session,
            self.events,
            Came,
            (_BODY, _UNWANTED, _RESET),
            int(FrameType.DATA),
            limits.DATA_PAYLOAD_BYTES,
            30,
            self._later,
        )
        if self._later and len(self._later) > 1:
            due = self._write_bodies(self._later, 30)
        self.read()
        facts = [[getattr(path, name) for name in _FACTS] for path in self.paths]
        received = [stream.credit.received for stream in self.streams.values()]
        indexes = [self.paths.index(path) for path in due]
        return end, indexes, facts, received, self.session.received, self.events, self.written

    def _write(self, data: bytes) -> None:
        self.read()
        self.written += data

    def read(self) -> None:
        """What came over the socket was written before what comes now."""
        try:
            self.written += self.theirs.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def _counted(kind: Any, granted: int) -> Any:
    made = kind()
    made.received, made.granted = 0, granted
    return made


def _bodies(random: Random) -> None:
    pieces = [encode(FrameType.DATA, random.randint(1, 6), random.choice(_PIECES)) for _ in range(6)]
    messages = [spoil(random, b"".join(random.sample(pieces, random.randint(1, 6)))) for _ in range(3)]
    seed, start = random.getrandbits(32), random.choice((0, 0, 0, 1, 9))
    ours, reference = _Table(native or body_path, seed), _Table(body_path, seed)
    try:
        for message in messages:
            at = min(start, len(message))
            assert ours.receive(message, at) == reference.receive(message, at)
    finally:
        ours.close()
        reference.close()


def _messages(random: Random) -> None:
    masked = random.random() < 0.5
    messages = [random.randbytes(random.choice((0, 1, 125, 126, 300))) for _ in range(random.randint(0, 4))]
    masks = random.randbytes(4 * len(messages)) if masked else b""
    ours = native or websocket_frames
    wire = ours.frame_messages(messages, masks)
    assert wire == websocket_frames.frame_messages(messages, masks)
    assert ours.cut_messages(wire, 0, masked and bool(messages), 1000) == (messages, len(wire))
    spoiled = (
        random.randbytes(random.randrange(20))
        if random.random() < 0.1 or len(wire) < 9
        else spoil(random, wire)
    )
    start, most_bytes = random.randrange(len(spoiled) + 1), random.choice((0, 200, 1 << 20))
    for at in (0, start):
        found = ours.cut_messages(spoiled, at, masked, most_bytes)
        assert found == websocket_frames.cut_messages(spoiled, at, masked, most_bytes)


def _chunks(random: Random) -> None:
    pieces = random.choices((EVENT, b"half", b'{"usage"}\n\n', b"\n\n", b"x" * 60 + b"\n\n"), k=6)
    wire = b"".join(map(chunk, pieces))
    if random.random() < 0.5:
        wire = spoil(random, wire)
    cuts = sorted(random.choices(range(len(wire) + 1), k=random.randrange(5)))
    both = [OutPaths(native or out_path), OutPaths(out_path)]
    for each in both:
        each.reader.follow(each.path, b"head", 4)
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        for each in both:
            each.receive(wire[begin:end])
        assert both[0].facts() == both[1].facts()


def _turns(random: Random) -> None:
    def yes() -> bool:
        return random.random() < 0.3

    sizes, limits_of_credit = (0, 10, 300, 900), (5, 400, 10_000)
    kinds = [
        (random.choice(sizes), random.choice(limits_of_credit), yes(), yes(), yes() and yes())
        for _ in range(random.randrange(6))
    ]
    both = [Turns(native or out_path, kinds), Turns(out_path, kinds)]
    for _ in range(2):
        left_bytes, most_bytes = random.choice((-1, 1, 500, 10_000)), random.choice((0, 299, 10_000))
        ours, reference = (each.take(left_bytes, most_bytes) for each in both)
        assert ours == reference


def _fields(random: Random) -> None:
    bounds = random.choice((0, 3, 100)), random.choice((0, 10, 1000))
    fields = [
        (random.randbytes(random.randrange(12)), random.randbytes(random.choice((0, 3, 200))))
        for _ in range(8)
    ]
    found = []
    for implementation in (native or header_collector, header_collector):
        others: list[tuple[bytes, bytes]] = []
        collector = implementation.HeaderCollector(lambda *field, to=others: to.append(field), *bounds)
        for number, field in enumerate(fields):
            collector.open = number != 3
            if number == 6:
                collector.fields = collector.fields[:1]
            collector(*field)
        collector.close()
        collector(b"Over", b"")
        found.append((collector.fields, others))
    assert found[0] == found[1]


def fuzz(random: Random, inputs: int) -> int:
    for _ in range(inputs):
        random.choice((_bodies, _chunks, _turns, _fields, _messages, _messages, _messages))(random)
    return inputs
