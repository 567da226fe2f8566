"""The short way of an answer's body and the ordinary one: the same bytes, the same credit, the same ends."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from gateway.continuation import Record, RecordBudget
from gateway.domain import Request
from gateway.http.direct import EXTENSION
from gateway.relay import Response
from gateway.response import CREDIT_STEP_BYTES, EngineResponse
from shared.errors import ErrorCode
from shared.messages import Headers, ResponseHead
from tests.gateway.http.support import EVENTS, Surface, served
from tests.gateway.http.test_server import ASK, HEAD, STREAM, Wire, wire
from tests.gateway.test_memory import TIMES, cycles

MIB = 1024 * 1024
WINDOW_BYTES = 128 * 1024
SOCKETS_BYTES = 64 * MIB
"""More than the kernel's buffers of a loopback connection hold."""


class Engine:
    """The stream an answer comes from: what was granted, and whether it was given up."""

    def __init__(self) -> None:
        self.received_bytes = self.consumed_bytes = 0
        self.reset_code: ErrorCode | None = None

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
        self.record = Record("chat", RecordBudget()) if self.recorded else None
        self.response = EngineResponse(
            ResponseHead(200, self.headers),
            self.engine,  # type: ignore[arg-type]
            agent="gpu-1",
            deployment="gpu-1/d",
            queue_s=0.0,
            attempts=1,
            on_done=lambda ending: None,
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
        async with asyncio.timeout(5):
            await self.surface.dispatcher.arrived.wait()
        self.got += await self.client.until(b"\r\n\r\n")

    async def say(self, *pieces: bytes) -> None:
        """The engine sends them, each in a turn of its own."""
        for piece in pieces:
            self.engine.received_bytes += len(piece)
            self.response.feed(piece)
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
        short = scope["extensions"][EXTENSION]
        if not direct:
            del scope["extensions"]
        try:
            await app(scope, receive, send)
        finally:
            sent.append(short.sent_bytes)

    surface.app = watched  # type: ignore[assignment]
    async with served(surface) as address, wire(address, SOCKETS_BYTES) as client:
        talk = Talk(client, surface)
        await scenario(talk)
        async with asyncio.timeout(5):
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
        [(e.reply.bytes_out, e.reply.status, s) for e, s, _ in t.surface.finished] for t in (short, ordinary)
    ]
    assert exchanges[0] == exchanges[1]
    return short


def events(count: int) -> list[bytes]:
    return [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number for number in range(count)]


async def test_a_stream_of_events() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(500))
        await talk.say(b"data: [DONE]\n\n")
        await talk.end()

    talk = await both(scenario)
    assert talk.got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert talk.sent == [sum(map(len, events(500)[1:])) + len(b"data: [DONE]\n\n")]
    assert talk.engine.consumed_bytes == talk.engine.received_bytes > CREDIT_STEP_BYTES


async def test_events_that_come_in_pieces_are_passed_on_whole() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        whole = b"".join(events(30))
        await talk.say(*(whole[at : at + 31] for at in range(0, len(whole), 31)))
        await talk.end()

    assert any((await both(scenario)).sent)


async def test_what_was_held_back_of_an_event_is_dropped_when_it_breaks() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(3), b'data: {"ha')
        assert talk.record is not None
        talk.record.break_off()
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        talk.got += await talk.client.until(b"0\r\n\r\n")

    talk = await both(scenario)
    assert b'"ha' not in talk.got
    assert b'data: {"error":{"message":"The engine died."' in talk.got


async def test_an_error_becomes_an_event_of_its_own_whatever_came_before() -> None:
    async def scenario(talk: Talk) -> None:
        talk.recorded = False
        await talk.begin()
        await talk.say(*events(2), b'data: {"ha')
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        talk.got += await talk.client.until(b"0\r\n\r\n")

    talk = await both(scenario)
    assert b'data: {"ha\r\n' in talk.got
    assert b'\n\ndata: {"error":{"message":"The engine died."' in talk.got


async def test_an_answer_without_a_length_comes_in_chunks() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-type", "audio/mpeg"),), False
        await talk.begin(ASK)
        await talk.say(b"a" * 1000, b"b", b"c" * 70_000, b"d" * 1000)
        await talk.end()

    assert (await both(scenario)).sent == [1001]


async def test_an_answer_of_a_given_length_comes_as_it_is() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-length", "3000"),), False
        await talk.begin(ASK)
        await talk.say(b"a" * 1000, b"b" * 1000, b"c" * 1000)
        await talk.end(b"c" * 1000)
        await talk.begin(ASK)
        await talk.say(b"d" * 3000)
        await talk.end(b"d" * 3000)

    assert (await both(scenario)).sent == [2000, 0]


@pytest.mark.parametrize("length", ["30", "10"])
async def test_an_answer_of_another_length_than_announced_is_visibly_broken(length: str) -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-length", length),), False
        await talk.begin(ASK)
        await talk.say(b"a" * 8, b"b" * 8)
        talk.response.end(None)
        await talk.rest()

    talk = await both(scenario)
    assert talk.got.endswith(b"a" * 8 + (b"b" * 8 if length == "30" else b""))


async def test_an_answer_that_breaks_stays_unended() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (), False
        await talk.begin(ASK)
        await talk.say(b"half", b"of it")
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        await talk.rest()

    assert (await both(scenario)).got.endswith(b"5\r\nof it\r\n")


async def test_a_client_of_http_1_0_and_its_end() -> None:
    async def scenario(talk: Talk) -> None:
        head = (
            b"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer sk-tl-test\r\nx-request-id: r\r\n"
        )
        await talk.begin(STREAM, head=head + b"content-length: %d\r\n\r\n" % len(STREAM))
        await talk.say(*events(3))
        talk.response.end(None)
        await talk.rest()

    assert any((await both(scenario)).sent)


async def test_an_answer_to_head_has_no_body() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-length", "3000"),), False
        head = (
            HEAD.replace(b"POST /v1/chat/completions", b"HEAD /engines/m/page") + b"x-request-id: r\r\n\r\n"
        )
        await talk.begin(b"", head=head)
        await talk.say(b"a" * 1000, b"b" * 1000)
        talk.response.end(None)
        await talk.begin(b"", head=head)
        talk.response.end(None)

    assert not any((await both(scenario)).sent)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario(talk: Talk) -> None:
        talk.surface.dispatcher.arrived.clear()
        talk.client.post(STREAM, b"x-request-id: a")
        talk.client.post(STREAM, b"x-request-id: b")
        for _ in range(2):
            async with asyncio.timeout(5):
                await talk.surface.dispatcher.arrived.wait()
            talk.surface.dispatcher.arrived.clear()
            talk.got += await talk.client.until(b"\r\n\r\n")
            await talk.say(*events(5))
            await talk.end()

    talk = await both(scenario)
    assert talk.sent == [sum(map(len, events(5)[1:]))] * 2


async def test_a_client_that_pipelines_and_leaves_frees_the_engine() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(2))
        talk.client.post(STREAM, b"x-request-id: b")
        await talk.turn()
        talk.client.writer.transport.abort()
        async with asyncio.timeout(5):
            while talk.engine.reset_code is None:  # the socket is not read, so only writing shows it
                await talk.say(b"data: more\n\n")

    for direct in (True, False):
        assert (await told(scenario, direct=direct)).engine.reset_code is ErrorCode.CANCELLED


async def test_a_client_that_hangs_up_frees_the_engine() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(5))
        talk.client.writer.transport.abort()
        async with asyncio.timeout(5):
            while talk.engine.reset_code is None:
                await talk.turn()
        await talk.say(*events(2))

    talk = await both(scenario)
    assert talk.engine.reset_code is ErrorCode.CANCELLED
    assert talk.engine.consumed_bytes == talk.engine.received_bytes


@pytest.mark.parametrize("padding_bytes", [0, 300_000])
async def test_a_client_that_hangs_up_while_nothing_comes_frees_the_engine(padding_bytes: int) -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin(STREAM[:-1] + b',"p":"' + b"x" * padding_bytes + b'"}')
        talk.client.writer.transport.abort()
        async with asyncio.timeout(5):
            while talk.engine.reset_code is None:
                await talk.turn()

    assert (await both(scenario)).engine.reset_code is ErrorCode.CANCELLED


async def test_comments_and_events_of_our_own_come_in_between() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(2))
        talk.response.comment()
        await talk.turn()
        await talk.say(*events(2))
        talk.response.add(b"data: [DONE]\n\n")
        await talk.end()

    assert b"event" not in (await both(scenario)).got.partition(b"\r\n\r\n")[2]


async def test_another_engine_goes_on_in_the_middle() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(3), b'data: {"ha')
        talk.go_on_at_another()
        await talk.say(*events(3), b"data: x\n", b"\n")
        talk.response.flush_joined()
        talk.response.flush()
        await talk.end()

    talk = await both(scenario)
    assert talk.sent == [sum(map(len, events(3)[1:]))]
    assert b"DATA: X" in talk.got
    assert b"data: joined" in talk.got
    assert all(engine.consumed_bytes == engine.received_bytes for engine in talk.engines)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 492 + b"\n\n", b"x" * 16384])
async def test_a_client_that_stops_reading_stops_its_engine_and_loses_nothing(piece: bytes) -> None:
    async def scenario(talk: Talk) -> None:
        talk.recorded = piece.startswith(b"data")
        await talk.begin()
        await talk.say(piece, piece)
        talk.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while talk.engine.held_bytes + len(piece) <= WINDOW_BYTES:
            for _ in range(64):
                if talk.engine.held_bytes + len(piece) <= WINDOW_BYTES:
                    talk.engine.received_bytes += len(piece)
                    talk.response.feed(piece)
            await talk.turn()
            assert talk.engine.received_bytes < SOCKETS_BYTES
        talk.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        talk.response.end(None)
        body = await talk.client.until(b"\r\n0\r\n\r\n")
        assert talk.engine.consumed_bytes == talk.engine.received_bytes
        assert len(re.sub(rb"(?:\A|\r\n)[0-9a-f]+\r\n(?:\r\n\Z)?", b"", body)) == talk.engine.received_bytes

    for direct in (True, False):
        talk = await told(scenario, direct=direct)
        assert (talk.sent[0] > len(piece)) == direct


async def test_nothing_of_an_answer_stays_behind() -> None:
    async def scenario(talk: Talk) -> None:
        async def answer() -> None:
            await talk.begin()
            await talk.say(*events(3))
            await talk.end()
            await talk.turn()
            talk.surface.finished.clear()
            talk.surface.dispatcher.requests.clear()

        await answer()
        with cycles() as found:
            for _ in range(TIMES):
                await answer()
        assert not [name for name, count in found.items() if count >= TIMES]

    await told(scenario, direct=True)
