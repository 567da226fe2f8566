"""Random answers from engines' agents to clients' sockets: what is sent, who sends it and who reads it."""

import random
import re
import socket
from collections import deque

from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import KIB
from shared.protocol.messages import Headers, ResponseHead, Trailers
from shared.protocol.stream_handler import _NoHandler
from tests.gateway.api.support import EVENTS

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-tl-test\r\n"
STREAM, ASK = b'{"model":"m","stream":true}', b'{"model":"m"}'
FILLER = b": filler "
"""Begins events of an engine that goes on, of which its joiner makes a few bytes."""


class Joiner:
    """Stands for a splicer: it holds an event until it is whole, and makes little of fillers."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        *events, self._held = (self._held + data).split(b"\n\n")
        return b"".join(b":\n\n" if each.startswith(FILLER) else each + b"\n\n" for each in events)

    def finish(self) -> bytes:
        return b""


class Plan:
    """What an answer is to be, and how it comes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kind = rng.choice(("events", "events", "events", "plain", "kept"))
        """Of events, or in one piece, which may be kept back until it is whole."""
        self.cut = rng.choice(("whole", "many", "parts", "mix", "seldom", "seldom", "seldom"))
        """How it is cut into pieces: event by event, many at once, in parts of them, or seldom so."""
        self.eager = rng.random() < 0.6
        """Its client reads all that is there after each step."""
        self.losses = 0
        """So many engines are lost before one writes it to its end."""
        self.events: list[bytes] = []
        self.headers: Headers = EVENTS
        size = rng.choice((0, 100, 500, 1500))
        for number in range(rng.choice((3, 40, 200, 500))):
            size_bytes = size or self._size()
            text = (b"%x" % number * size_bytes)[:size_bytes]
            self.events.append(b'data: {"n":%d,"p":"%s"}\n\n' % (number, text))
        if self.kind == "events":
            self.losses = rng.choice((0, 0, 0, 1, 2))
            return
        self.headers = (("content-type", "application/json"),)
        if rng.random() < 0.5:
            self.headers += (("content-length", str(len(self.body))),)

    @property
    def body(self) -> bytes:
        return b"".join(self.events)

    def _size(self) -> int:
        chance = self.rng.random()
        most = 60_000 if chance < 0.005 else 8_000 if chance < 0.03 else 200
        return self.rng.randrange(1, most)

    def pieces(self, start: int, *, again: bool) -> deque[bytes]:
        """What an engine sends from the event with this number on; ``again``: it goes on with an answer."""
        events = self.events[start:]
        if again and self.kind == "events":
            events = [each for event in events for each in (*self._filler(), event)]
        if self.kind != "events":
            return deque(self._parts(self.body, 20_000))
        found: deque[bytes] = deque()
        while events:
            how = self.rng.choice(("whole", "many", "parts")) if self.cut == "mix" else self.cut
            count = 1 if how in ("whole", "seldom") else self.rng.randrange(1, 40)
            data, events = b"".join(events[:count]), events[count:]
            if how == "parts" or (how == "seldom" and self.rng.random() < 0.06):
                found += self._parts(data, self.rng.choice((20, 400, 4_000)))
            else:
                found.append(data)
        return found

    def _filler(self) -> list[bytes]:
        if self.rng.random() > 0.1:
            return []
        return [FILLER + b"f" * self.rng.choice((10, 3_000, 20_000)) + b"\n\n"]

    def _parts(self, data: bytes, most: int) -> list[bytes]:
        found = []
        while data:
            size_bytes = self.rng.randrange(1, most)
            found.append(data[:size_bytes])
            data = data[size_bytes:]
        return found


class Engine(_NoHandler):
    """At an agent: writes one answer, or a part of it before it is lost."""

    def __init__(self, stream: Stream, plan: Plan, start: int, *, again: bool) -> None:
        self.over, self._ready, self._said = False, True, 0
        self.stream, self.pieces = stream, plan.pieces(start, again=again)
        self._trailers = Trailers() if plan.rng.random() < 0.5 else None
        self._lost_after: int | None = None
        if plan.losses:
            plan.losses -= 1
            self._lost_after = plan.rng.randrange(1, 60)
        stream.handler = self
        stream.send_head(ResponseHead(200, plan.headers))

    def speak(self, count: int) -> bool:
        """Send up to so many pieces. Whether there was anything to do."""
        begun = self._said
        while not self.over and self._ready and self._said < begun + count:
            if self._said == self._lost_after or (self._lost_after and not self.pieces):
                self.over = True
                self.stream.reset(ErrorCode.ENGINE_FAILED, "it crashed")
            elif not self.pieces:
                self.over = True
                self.stream.end(self._trailers)
            else:
                self._said += 1
                self._ready = self.stream.send_data(self.pieces.popleft())
        return self._said > begun

    def on_writable(self) -> None:
        self._ready = True

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        self.over = True
        self.stream.reset(code)

    def on_closed(self) -> None:
        self.over = True


class SocketClient:
    """A client with small buffers that reads when it is told to."""

    def __init__(self, plan: Plan, ours: socket.socket) -> None:
        self.plan, self.got, self.gone, self._socket = plan, b"", False, ours
        body = STREAM if plan.kind == "events" else ASK
        self._socket.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)

    def read(self, most_bytes: int) -> int:
        """How much there was."""
        before = len(self.got)
        try:
            while not self.gone and len(self.got) - before < most_bytes:
                data = self._socket.recv(min(64 * KIB, most_bytes))
                if not data:
                    break
                self.got += data
        except BlockingIOError:
            pass
        return len(self.got) - before

    def leave(self) -> None:
        self.gone = True
        self._socket.close()

    @property
    def answered(self) -> bool:
        """All of the answer is here."""
        head, _, body = self.got.partition(b"\r\n\r\n")
        if length := re.search(rb"content-length: (\d+)", head):
            return len(body) == int(length[1])
        return body.endswith(b"\r\n0\r\n\r\n")

    def events(self) -> bytes:
        """The body without its chunks' framing and comments."""
        head, _, body = self.got.partition(b"\r\n\r\n")
        if b"transfer-encoding" in head:
            framed, body = body, b""
            while framed:
                size, _, rest = framed.partition(b"\r\n")
                body, framed = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return re.sub(rb"(?:\A|(?<=\n\n)):[^\n]*\n\n", b"", body)
