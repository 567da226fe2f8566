"""Streams, connections and what they are given, for one of the implementations of ``out_path``."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

BODY, RESET, OTHER = object(), object(), object()
MOST_BYTES = 100
EVENT = b"data: 1\n\n"


class Slotted:
    """Keeps its attributes in slots, as a stream's outbox and credit do."""

    __slots__ = (
        *("chunks", "credit", "end", "head", "interactive", "limit", "pending_bytes", "queued", "sent"),
        *("stream_id", "waiting"),
    )

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


@dataclass
class OutPaths:
    """One stream's path, the reader of chunks that gives to it, and all that can be seen of both."""

    implementation: Any
    ready: deque[Any] = field(default_factory=deque)
    woken: int = 0
    ordinary: list[bytes] = field(default_factory=list)
    unread: list[bytes] = field(default_factory=list)
    now_s: float = 0.0
    kind: Callable[..., Any] = SimpleNamespace

    def __post_init__(self) -> None:
        self.out = self.kind(
            pending_bytes=0,
            waiting=False,
            interactive=True,
            chunks=[],
            queued=False,
            head=None,
            credit=self.kind(sent=0, limit=10_000),
        )
        self.stream = SimpleNamespace(local=BODY, peer=OTHER, out=self.out)
        self.session = SimpleNamespace(closed=False)
        states = (BODY, RESET)
        self.path = self.implementation.OutPath(
            self.stream, self.session, self, self.ready, states, MOST_BYTES
        )
        self.path.open = True
        self.reader = self.implementation.ChunkReader(self.ordinary.append, self.now, self.unread)

    def wake(self) -> None:
        self.woken += 1

    def now(self) -> float:
        self.now_s += 1
        return self.now_s

    def receive(self, data: bytes) -> None:
        self.reader(data)

    def facts(self) -> object:
        """All that can be seen."""
        out, reader = self.out, self.reader
        return (
            (list(out.chunks), out.pending_bytes, out.queued, len(self.ready), self.woken),
            (self.ordinary, reader.pieces, reader.heard_s, reader.path is None),
        )


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Turns:
    """Streams that wait for their turns, for one of the implementations."""

    def __init__(
        self,
        implementation: Any,
        kinds: list[tuple[int, int, bool, bool, bool]],
        kind: Callable[..., Any] = SimpleNamespace,
    ) -> None:
        """Of each stream: how many bytes it has, what its credit is, whether it has a head and an end, and
        whether its writer waits."""
        self._take = implementation.take_turns
        self.session = SimpleNamespace(sent=0, limit=2_000)
        self.pieces: list[bytes] = []
        self.ended: list[int] = []
        self.streams = [
            kind(
                stream_id=number,
                credit=kind(sent=0, limit=limit),
                chunks=[bytes(size)] if size else [],
                pending_bytes=size,
                head=b"head" if head else None,
                end=b"end" if end else None,
                waiting=waiting,
                queued=True,
            )
            for number, (size, limit, head, end, waiting) in enumerate(kinds, 1)
        ]
        self.ready = deque(self.streams)

    def take(self, left_bytes: int, most_bytes: int) -> object:
        """All that can be seen then."""
        left = self._take(self.ready, self.pieces, self.ended, self.session, left_bytes, most_bytes, 2)
        facts = [
            (s.credit.sent, list(s.chunks), s.pending_bytes, s.head, s.end, s.queued) for s in self.streams
        ]
        return left, b"".join(self.pieces), self.ended, self.session.sent, facts, len(self.ready)
