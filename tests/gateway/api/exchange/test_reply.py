import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.exchange.reply import COMMENT, Reply
from gateway.api.server.answer_cycle import AnswerCycle
from gateway.api.server.response_writers import UNDRAINED_BYTES
from gateway.domain.errors import BadRequest, EngineError
from shared.protocol.routes import Dialect

TICK_S = 0.001


class Client:
    """An ASGI ``send`` that keeps everything; while ``open`` is cleared its socket is full."""

    def __init__(self) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.news = asyncio.Event()

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        await self.open.wait()
        self.sent.append(message)
        self.news.set()

    @property
    def head(self) -> tuple[int, dict[bytes, bytes]]:
        return self.sent[0]["status"], dict(self.sent[0]["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.sent) < count:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
def client() -> Client:
    return Client()


def reply_to(client: Client, dialect: Dialect = Dialect.OPENAI, *, closing: bool = False) -> Reply:
    return Reply(client, "req_1", dialect, closing=closing)


async def test_every_answer_names_the_request(client: Client) -> None:
    await reply_to(client).whole(200, b"text/plain", b"hello")
    assert client.head == (
        200,
        {b"content-type": b"text/plain", b"content-length": b"5", b"x-request-id": b"req_1"},
    )
    assert client.sent[1] == {"type": "http.response.body", "body": b"hello", "more_body": False}


async def test_anthropic_clients_find_the_id_where_they_look(client: Client) -> None:
    await reply_to(client, Dialect.ANTHROPIC).fail(BadRequest("no"))
    assert client.head[1][b"request-id"] == b"req_1"


async def test_a_closing_gateway_asks_clients_to_connect_anew(client: Client) -> None:
    await reply_to(client, closing=True).whole(200, b"text/plain", b"")
    assert client.head[1][b"connection"] == b"close"


async def test_events_must_not_be_held_back(client: Client) -> None:
    await reply_to(client).start(200, [], event_stream=True)
    assert client.head[1][b"x-accel-buffering"] == b"no"
    assert client.head[1][b"cache-control"] == b"no-cache"


async def test_before_the_head_an_error_is_a_status(client: Client) -> None:
    await reply_to(client).fail(BadRequest("no"))
    assert client.head[0] == 400
    assert b'"message":"no"' in client.content
    assert client.sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    ("last", "gap"),
    [(b"data: 1\n\n", b""), (b"data: 1\r\n\r\n", b""), (b'data: {"ha', b"\n\n"), (b"", b"\n\n")],
)
async def test_a_stream_ends_with_its_error_as_an_event_of_its_own(
    client: Client, last: bytes, gap: bytes
) -> None:
    reply = reply_to(client)
    await reply.start(200, [], event_stream=True)
    await reply.write(last)
    await reply.fail(EngineError("died"))
    assert client.content.startswith(last + gap + b'data: {"error":{"message":"died"')
    assert client.sent[-1]["more_body"] is False


async def test_any_other_answer_that_breaks_stays_unended(client: Client) -> None:
    reply = reply_to(client)
    await reply.start(200, [(b"content-length", b"100")])
    await reply.write(b"half")
    await reply.fail(EngineError("died"))
    assert client.content == b"half"
    assert client.sent[-1]["more_body"] is True


async def test_after_the_end_nothing_is_said(client: Client) -> None:
    reply = reply_to(client)
    await reply.whole(200, b"text/plain", b"x")
    await reply.fail(EngineError("late"))
    assert len(client.sent) == 2


async def test_a_stream_that_waits_gets_comments_and_then_its_events(client: Client) -> None:
    reply = reply_to(client)
    reply.keep_alive(TICK_S)
    await client.until(4)
    await reply.settle()
    assert client.head[0] == 200
    assert client.head[1][b"content-type"].startswith(b"text/event-stream")
    assert reply.started
    before = len(client.sent)
    await reply.write(b"data: 1\n\n")
    await reply.end()
    assert client.content == COMMENT * (before - 1) + b"data: 1\n\n"
    assert reply.first_byte_s is not None


async def test_what_is_waited_for_is_said_early_and_as_it_is_by_then(client: Client) -> None:
    reply, notes = (
        reply_to(client),
        iter(["loading, 2 s left", "loading, 1 s left"]),
    )
    reply.keep_alive(2 * TICK_S, lambda: next(notes, None), early_s=TICK_S)
    await client.until(4)
    await reply.settle()
    assert client.content.startswith(b": loading, 2 s left\n\n: loading, 1 s left\n\n: waiting\n\n")


async def test_nothing_is_said_early_where_there_is_nothing_to_say(client: Client) -> None:
    reply = reply_to(client)
    reply.keep_alive(60, lambda: None, early_s=0.0)
    for _ in range(3):
        await asyncio.sleep(TICK_S)
    await reply.fail(BadRequest("no"))
    assert client.head[0] == 400


async def test_an_error_after_comments_is_an_event(client: Client) -> None:
    reply = reply_to(client)
    reply.keep_alive(TICK_S)
    await client.until(2)
    await reply.fail(EngineError("died"))
    assert client.head[0] == 200
    assert b'\n\ndata: {"error"' in client.content


async def test_a_quick_error_keeps_its_status(client: Client) -> None:
    reply = reply_to(client)
    reply.keep_alive(60)
    await reply.fail(BadRequest("no"))
    assert client.head[0] == 400


async def test_a_comment_that_is_being_written_is_let_finish(client: Client) -> None:
    client.open.clear()
    reply = reply_to(client)
    reply.keep_alive(TICK_S)
    async with asyncio.timeout(60):
        while not reply.started:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
    settling = asyncio.create_task(reply.settle())
    await asyncio.sleep(0)
    assert not settling.done()
    client.open.set()
    await settling
    await reply.write(b"data: 1\n\n")
    assert client.content == COMMENT + b"data: 1\n\n"


async def test_after_a_long_write_room_in_the_socket_is_waited_for(client: Client) -> None:
    reply = reply_to(client)
    await reply.start(200, [])
    await reply.write(b"x" * UNDRAINED_BYTES)
    assert len(client.sent) == 2
    await reply.write(b"x" * (UNDRAINED_BYTES + 1))
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": True}


async def test_what_went_out_is_counted(client: Client) -> None:
    reply = reply_to(client)
    await reply.start(200, [])
    assert reply.first_byte_s is None
    await reply.write(b"abc")
    await reply.end(b"de")
    assert (reply.bytes_out(), reply.status, reply.ended) == (5, 200, True)
    assert reply.first_byte_s is not None


async def test_an_event_stream_is_sent_whole_and_its_source_is_closed(client: Client) -> None:
    closed = False

    async def pieces() -> AsyncGenerator[bytes]:
        nonlocal closed
        try:
            yield b"data: 1\n\n"
            yield b"data: 2\n\n"
        finally:
            closed = True

    reply = reply_to(client)
    await reply.send_events(pieces())
    status, headers = client.head
    assert (status, headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-cache", b"no")
    assert client.content == b"data: 1\n\ndata: 2\n\n"
    assert (reply.event_stream, reply.ended, closed) == (True, True, True)


async def test_what_comes_before_the_first_event_can_be_refused_with_a_status(client: Client) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        raise BadRequest("There are no such events.")
        yield b""

    reply = reply_to(client)
    with pytest.raises(BadRequest):
        await reply.send_events(pieces())
    assert (reply.started, client.sent) == (False, [])


async def test_an_event_stream_without_events_has_a_head_and_further_headers(client: Client) -> None:
    reply = reply_to(client)
    await reply.start_events([(b"x-job", b"7")])
    await reply.end()
    assert client.head[1][b"x-job"] == b"7"
    assert client.content == b""


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    def is_closing(self) -> bool:
        return False

    def on_response_complete(self) -> None: ...
    def close_in_time(self) -> None: ...

    def close(self) -> None: ...
    def pause_reading(self) -> None: ...


def cycle_on(wire: Wire) -> AnswerCycle:
    return AnswerCycle(
        {"type": "http", "method": "POST", "http_version": "1.1"},
        {},
        wire,
        FlowControl(wire),
        asyncio.get_running_loop(),
        [(b"date", b"now")],
        expects_continue=False,
        keep_alive=True,
        connection=wire,
    )


HEADERS = [(b"content-length", b"5"), (b"content-type", b"application/x-ndjson")]


async def test_an_answer_in_one_call_is_what_its_head_and_its_end_would_be(client: Client) -> None:
    wires, replies = (Wire(), Wire()), []
    for wire in wires:
        reply = Reply(client, "req_1", Dialect.ANTHROPIC, closing=True, cycle=cycle_on(wire))
        reply.more, reply.latest = [(b"vary", b"origin")], lambda: [(b"x-ratelimit-remaining-requests", b"9")]
        replies.append(reply)
    whole, parts = replies
    assert whole.send_whole(201, HEADERS, b"hello")
    await parts.start(201, HEADERS, body_follows=True)
    await parts.end(b"hello")
    assert wires[0].written == wires[1].written
    for reply in replies:
        assert (reply.started, reply.ended, reply.status, reply.bytes_out()) == (True, True, 201, 5)
        assert reply.first_byte_s is not None


async def test_an_answer_in_one_call_waits_for_nobody(client: Client) -> None:
    wire = Wire()
    full, gone = cycle_on(wire), cycle_on(wire)
    full.flow.pause_writing()
    gone.disconnected = True
    for cycle in (full, gone, None):
        reply = Reply(client, "req_1", Dialect.OPENAI, cycle=cycle)
        assert not reply.send_whole(200, HEADERS, b"hello")
        assert not reply.started
    assert not wire.written
