"""One client, the engines that answer it, and the real server between, in either way of an answer's body."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.api.server.answer_cycle import CYCLE
from gateway.dispatch.recovery import AnswerRecord, RecordBudget
from gateway.dispatch.response import EngineResponse
from gateway.domain.request import Request
from gateway.pipeline.relay import Response
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Headers, ResponseHead
from shared.speedups import BodyPath, write_bodies
from tests.gateway.api.server.test_server import STREAM, Wire, wire
from tests.gateway.api.support import EVENTS, Surface, served

SOCKETS_BYTES = 64 * 1024 * 1024
"""More than the kernel's buffers of a loopback connection hold."""


class Engine:
    """The stream an answer comes from: what was granted, and whether it was given up."""

    def __init__(self) -> None:
        self.received_bytes = self.consumed_bytes = 0
        self.reset_code: ErrorCode | None = None
        self.path: BodyPath | None = None

    def take_path(self, path: BodyPath) -> None:
        self.path = path

    @property
    def held_bytes(self) -> int:
        return self.received_bytes - self.consumed_bytes

    def consumed(self, size_bytes: int) -> None:
        self.consumed_bytes += size_bytes
        assert self.consumed_bytes <= self.received_bytes

    def reset(self, code: ErrorCode, reason: str = "") -> None:
        self.reset_code = self.reset_code or code


class Upper:
    """A joiner by which one can tell what went through it."""

    def feed(self, data: bytes) -> bytes:
        return data.upper()

    def finish(self) -> bytes:
        return b"data: joined\n\n"


@dataclass
class Talk:
    """One client and the engines that answer it, over a real server."""

    client: Wire
    surface: Surface
    headers: Headers = EVENTS
    recorded: bool = True

    def __post_init__(self) -> None:
        self.engine = Engine()
        self.engines = [self.engine]
        self.got = b""
        self.sent: list[int] = []
        """Bytes that took the short way, by request."""
        self.surface.dispatcher.serve = self._serve

    async def _serve(self, request: Request) -> Response:
        self.record = AnswerRecord("chat", RecordBudget()) if self.recorded else None
        self.response = EngineResponse(
            ResponseHead(200, self.headers),
            self.engine,
            agent="gpu-1",
            deployment="gpu-1/d",
            version="",
            queue_s=0.0,
            attempts=1,
            record=self.record,
        )
        return self.response

    async def begin(self, request: bytes = STREAM, *, head: bytes | None = None) -> None:
        """Send a request, read the answer's head."""
        self.surface.dispatcher.arrived.clear()
        if head is None:
            self.client.post(request, b"x-request-id: r")
        else:
            self.client.send(head + request)
        async with asyncio.timeout(60):
            await self.surface.dispatcher.arrived.wait()
        self.got += await self.client.until(b"\r\n\r\n")

    async def say(self, *pieces: bytes) -> None:
        """The engine sends them, each in a turn of its own."""
        for piece in pieces:
            await self.say_together(piece)

    async def say_together(self, *pieces: bytes) -> None:
        """The engine sends them, and all come in one turn: as a session takes frames of one read."""
        later: list[BodyPath] = []
        for piece in pieces:
            self.engine.received_bytes += len(piece)
            path = self.engine.path
            if path is None or not path.take(piece):
                if path is not None:
                    path.open = False
                self.response.feed(piece)
            elif len(path.waiting) == 1:
                later.append(path)
        for path in write_bodies(later):
            assert path.on_unsaid is not None
            path.on_unsaid()
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def rest(self) -> None:
        """Read on until the server closes."""
        self.got += await self.client.rest()

    async def end(self, last: bytes = b"0\r\n\r\n") -> None:
        self.response.end(None)
        self.got += await self.client.until(last)

    def go_on_at_another(self) -> None:
        self.engine = Engine()
        self.engines.append(self.engine)
        if self.record is not None:
            self.record.break_off()
        self.response.go_on(self.engine, Upper())  # type: ignore[arg-type]


Scenario = Callable[[Talk], Awaitable[None]]


async def told(scenario: Scenario, *, direct: bool) -> Talk:
    surface = Surface()
    app, sent = surface.app, list[int]()

    async def watched(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        cycle = scope["extensions"][CYCLE]
        if not direct:
            del scope["extensions"]
        try:
            await app(scope, receive, send)
        finally:
            sent.append(0 if cycle.direct is None else cycle.direct.sent_bytes)

    surface.app = watched  # type: ignore[assignment]
    async with served(surface) as address, wire(address, SOCKETS_BYTES) as client:
        talk = Talk(client, surface)
        await scenario(talk)
        async with asyncio.timeout(60):
            await surface.lifecycle.wait_idle()
    talk.got = re.sub(rb"date: [^\r]*\r\n", b"", talk.got)
    talk.sent = sent
    return talk


async def both(scenario: Scenario) -> Talk:
    """Act out ``scenario`` in both ways; they must not differ. Gives the short one."""
    short, ordinary = await told(scenario, direct=True), await told(scenario, direct=False)
    assert short.got == ordinary.got
    assert not any(ordinary.sent)
    for one, other in zip(short.engines, ordinary.engines, strict=True):
        assert (one.received_bytes, one.reset_code) == (other.received_bytes, other.reset_code)
        assert one.consumed_bytes == other.consumed_bytes
    exchanges = [
        [(e.reply.bytes_out(), e.reply.status, s) for e, s, _ in t.surface.finished]
        for t in (short, ordinary)
    ]
    assert exchanges[0] == exchanges[1]
    return short


def events(count: int) -> list[bytes]:
    return [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number for number in range(count)]
