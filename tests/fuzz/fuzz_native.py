"""The functions in C against those in Python, on messages at random and near misses: they do the same.

Where they were not built, both are the Python ones, and only their own assertions are tried.
"""

from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from shared.protocol import limits
from shared.protocol.frames import FrameType, encode
from shared.speedups import body_path, native, websocket_frames
from tests.fuzz.fuzz_frames import spoil

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
        self.written: list[bytes] = []
        self.events: list[Came] = []
        self.session = SimpleNamespace(received=0, granted=random.choice((0, 50, 10_000)))
        self.paths = []
        self.streams: dict[int, Any] = {}
        for number in range(1, 6):
            flow = SimpleNamespace(write_paused=random.random() < 0.1)
            path = implementation.BodyPath(self.written.append, flow)
            path.open = random.random() < 0.8
            self.paths.append(path)
            self.streams[number] = SimpleNamespace(
                peer=random.choice((_BODY, _BODY, _BODY, _OTHER)),
                local=random.choice((_OTHER, _OTHER, _OTHER, _UNWANTED, _RESET)),
                path=random.choice((path, path, None)),
                credit=SimpleNamespace(received=0, granted=random.choice((20, 5_000))),
            )
        self._receive = implementation.receive_bodies

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
        )
        facts = [[getattr(path, name) for name in _FACTS] for path in self.paths]
        received = [stream.credit.received for stream in self.streams.values()]
        indexes = [self.paths.index(path) for path in due]
        return end, indexes, facts, received, self.session.received, self.events, self.written


def _bodies(random: Random) -> None:
    pieces = [encode(FrameType.DATA, random.randint(1, 6), random.choice(_PIECES)) for _ in range(6)]
    messages = [spoil(random, b"".join(random.sample(pieces, random.randint(1, 6)))) for _ in range(3)]
    seed, start = random.getrandbits(32), random.choice((0, 0, 0, 1, 9))
    ours, reference = _Table(native or body_path, seed), _Table(body_path, seed)
    for message in messages:
        at = min(start, len(message))
        assert ours.receive(message, at) == reference.receive(message, at)


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


def fuzz(random: Random, inputs: int) -> int:
    for _ in range(inputs):
        random.choice((_bodies, _messages, _messages, _messages))(random)
    return inputs
