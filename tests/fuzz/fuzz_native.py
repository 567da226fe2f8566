"""The functions in C against those in Python, on messages at random and near misses: they do the same. Also
what is wrong or calls back, given to them: see :mod:`native_arguments` and :mod:`native_callbacks`.

Where they were not built, both are the Python ones, and only their own assertions are tried.
"""

import socket
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from shared.protocol import limits
from shared.protocol.frames import RULES, RULES_FOR_CUTTING, Frame, FrameType, MessageKind, TunnelRole, encode
from shared.speedups import body_path, header_collector, native, out_path, session_frames, websocket_frames
from tests.fuzz.fuzz_frames import spoil
from tests.fuzz.native_arguments import arguments
from tests.fuzz.native_callbacks import callbacks
from tests.fuzz.native_reads import reads
from tests.shared.speedups.out_paths import EVENT, OutPaths, Slotted, Turns, chunk

_BODY, _UNWANTED, _RESET, _OTHER = object(), object(), object(), object()
_FACTS = ("open", "waiting", "fresh", "last", "pieces", "sent_bytes", "taken_bytes", "unsaid_bytes")
_LONG = b"x" * 16_000 + b"\n\n"
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
        self.session = _counted(counts, random.choice((0, 50, 10_000, 1 << 20)))
        self.paths = []
        self.ours, self.theirs = socket.socketpair()
        buffered_bytes = random.choice((0, 0, 5))
        self.streams: dict[int, Any] = {}
        for number in range(1, 6):
            flow = SimpleNamespace(write_paused=random.random() < 0.1)
            path = implementation.BodyPath(self._write, flow)
            path.open = random.random() < 0.8
            path.step_bytes = 30
            path.buffered_bytes = lambda: buffered_bytes
            if number == 1 and not flow.write_paused:
                path.descriptor = self.ours.fileno()
            self.paths.append(path)
            self.streams[number] = SimpleNamespace(
                peer=random.choice((_BODY, _BODY, _BODY, _OTHER)),
                local=random.choice((_OTHER, _OTHER, _OTHER, _UNWANTED, _RESET)),
                path=random.choice((path, path, None)),
                credit=_counted(counts, random.choice((20, 5_000, 1 << 20))),
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
            self._later,
        )
        if self._later and len(self._later) > 1:
            due = self._write_bodies(self._later)
        facts = self._facts()
        received = [stream.credit.received for stream in self.streams.values()]
        indexes = [self.paths.index(path) for path in due]
        return end, indexes, facts, received, self.session.received, self.events, self.written

    def call(self, number: int, piece: bytes) -> object:
        """The same after a piece that is given to a path by a call."""
        path = self.paths[number]
        taken = path.take(piece)
        path.flush()
        return taken, path.last, self._facts(), self.written

    def _facts(self) -> object:
        self.read()
        return [[getattr(path, name) for name in _FACTS] for path in self.paths]

    def _write(self, data: bytes) -> None:
        self.read()
        self.written += data

    def read(self) -> None:
        """What came over the socket was written before what comes now."""
        try:
            while True:
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
    some = (*_PIECES, *[_LONG] * 6) if random.random() < 0.02 else _PIECES
    pieces = [encode(FrameType.DATA, random.randint(1, 6), random.choice(some)) for _ in range(6)]
    messages = [spoil(random, b"".join(random.sample(pieces, random.randint(1, 6)))) for _ in range(3)]
    seed, start = random.getrandbits(32), random.choice((0, 0, 0, 1, 9))
    ours, reference = _Table(native or body_path, seed), _Table(body_path, seed)
    try:
        for message in messages:
            at = min(start, len(message))
            assert ours.receive(message, at) == reference.receive(message, at)
            number, piece = random.randrange(5), random.choice(_PIECES)
            assert ours.call(number, piece) == reference.call(number, piece)
    finally:
        ours.close()
        reference.close()


def _messages(random: Random) -> None:
    masked = random.random() < 0.5
    sizes = (0, 1, 125, 126, 300, 65_535, 65_536) if random.random() < 0.01 else (0, 1, 125, 126, 300)
    messages = [random.randbytes(random.choice(sizes)) for _ in range(random.randint(0, 4))]
    masks = random.randbytes(4 * len(messages)) if masked else b""
    ours = native or websocket_frames
    wire = ours.frame_messages(messages, masks)
    assert wire == websocket_frames.frame_messages(messages, masks)
    assert ours.cut_messages(wire, 0, masked and bool(messages), max(sizes)) == (messages, len(wire))
    spoiled = (
        random.randbytes(random.randrange(20))
        if random.random() < 0.1 or len(wire) < 9
        else spoil(random, wire)
    )
    start, most_bytes = random.randrange(len(spoiled) + 1), random.choice((0, 200, 1 << 20))
    for at in (0, start):
        found = ours.cut_messages(spoiled, at, masked, most_bytes)
        assert found == websocket_frames.cut_messages(spoiled, at, masked, most_bytes)


def _frames(random: Random) -> None:
    pieces: list[bytes] = []
    for frame_type in random.choices(tuple(RULES), k=random.randrange(5)):
        rule = RULES[frame_type]
        size_bytes = min(rule.most_bytes, rule.least_bytes + random.choice((0, 0, 5, 300)))
        pieces.append(encode(frame_type, int(bool(rule.on_stream)), random.randbytes(size_bytes)))
    whole = b"".join(pieces)
    message = spoil(random, whole) if whole and random.random() < 0.7 else whole
    rules = RULES_FOR_CUTTING[random.choice(list(TunnelRole))][random.choice(list(MessageKind))]
    ours = native or session_frames
    for start in (0, random.randrange(len(message) + 1)):
        found = ours.cut_frames(message, start, rules, Frame, FrameType.DATA)
        assert found == session_frames.cut_frames(message, start, rules, Frame, FrameType.DATA)


def _chunks(random: Random) -> None:
    pieces = random.choices((EVENT, b"half", b'{"usage"}\n\n', b"\n\n", b"x" * 60 + b"\n\n"), k=6)
    wire = b"".join(map(chunk, pieces))
    if random.random() < 0.5:
        wire = spoil(random, wire)
    cuts = sorted(random.choices(range(len(wire) + 1), k=random.randrange(5)))
    kind = random.choice((SimpleNamespace, Slotted))
    both = [OutPaths(native or out_path, kind=kind), OutPaths(out_path, kind=kind)]
    for each in both:
        each.reader.follow(each.path, b"head", 4)
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        for each in both:
            each.receive(wire[begin:end])
        assert both[0].facts() == both[1].facts()
    piece, closed_first = random.choice(pieces), random.random() < 0.5
    for each in both:
        if closed_first:
            each.reader.close()
        each.path.take(piece)
        each.receive(wire)
        each.reader.close()
        each.receive(wire)
    assert both[0].facts() == both[1].facts()


def _turns(random: Random) -> None:
    def yes() -> bool:
        return random.random() < 0.3

    sizes, limits_of_credit = (0, 10, 300, 900), (5, 400, 10_000)
    kinds = [
        (random.choice(sizes), random.choice(limits_of_credit), yes(), yes(), yes() and yes())
        for _ in range(random.randrange(6))
    ]
    kind = random.choice((SimpleNamespace, Slotted))
    both = [Turns(native or out_path, kinds, kind), Turns(out_path, kinds, kind)]
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


COMPARED = (_bodies, _frames, _chunks, _turns, _fields, _messages, reads)
"""Each compares some functions with those in Python."""


def fuzz(random: Random, inputs: int) -> int:
    for _ in range(inputs):
        random.choice((*COMPARED, _messages, _messages, arguments, callbacks))(random)
    return inputs
