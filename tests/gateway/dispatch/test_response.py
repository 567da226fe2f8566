"""A response whose reader has a sink: over real sessions joined in memory."""

import asyncio
from pathlib import Path

import pytest

from gateway.dispatch.recovery import AnswerRecord, RecordBudget
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.response_buffers import UnreadBudget
from gateway.dispatch.response_stream import HOLD_BACK_BYTES, READ_BYTES, Ending, NoStream
from gateway.domain.errors import StreamBroken
from shared.protocol.credit import GATEWAY_WINDOWS
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import KIB, MIB
from shared.protocol.messages import ResponseHead, Trailers
from shared.speedups.body_path import STEP_BYTES
from tests.gateway.dispatch.response_buffers.behaviour.workers import HeldWorker, space
from tests.gateway.fleet.fleet import EngineStream, Fleet, deployment

HEAD = ResponseHead(200, (("content-type", "text/plain"),))
PIECE = b"t" * 1000


class Sink:
    """Takes what it is offered while it is open."""

    def __init__(self) -> None:
        self.taken = b""
        self.open = True

    def __call__(self, data: bytes) -> bool:
        if self.open:
            self.taken += data
        return self.open


def begun() -> tuple[Fleet, EngineStream, EngineResponse]:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    fleet.settle()
    return fleet, agent.streams[0], client.response


async def reading(response: EngineResponse, sink: Sink) -> "asyncio.Task[list[bytes]]":
    task = asyncio.ensure_future(response.next_chunks(sink))
    await asyncio.sleep(0)
    return task


def test_credit_steps_hold_up_no_window() -> None:
    assert GATEWAY_WINDOWS.left_bytes >= 2 * STEP_BYTES


async def test_what_a_sink_takes_is_consumed_and_wakes_nobody() -> None:
    fleet, engine, response = begun()
    sink = Sink()
    task = await reading(response, sink)
    for _ in range(2000):
        assert engine.stream.send_data(PIECE)
        fleet.settle()
    assert sink.taken == 2000 * PIECE
    await asyncio.sleep(0)
    assert not task.done()
    assert not response.behind
    engine.stream.end(Trailers())
    fleet.settle()
    assert await task == []
    fleet.assert_quiet()


async def test_what_a_sink_refuses_waits_for_the_reader_and_so_does_all_that_follows() -> None:
    fleet, engine, response = begun()
    sink = Sink()
    task = await reading(response, sink)
    engine.stream.send_data(b"one")
    fleet.settle()
    sink.open = False
    assert not response.behind
    engine.stream.send_data(b"two")
    fleet.settle()
    sink.open = True
    engine.stream.send_data(b"three")
    fleet.settle()
    assert (sink.taken, await task) == (b"one", [b"two", b"three"])
    response.consumed(8)
    task = await reading(response, sink)
    engine.stream.send_data(b"four")
    engine.stream.end(Trailers())
    fleet.settle()
    assert (sink.taken, await task) == (b"onefour", [])
    fleet.assert_quiet()


async def test_nothing_is_offered_once_the_reader_gave_up() -> None:
    fleet, engine, response = begun()
    sink = Sink()
    task = await reading(response, sink)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.stream.send_data(b"late")
    fleet.settle()
    assert sink.taken == b""
    assert await response.next_chunks() == [b"late"]
    response.abort()
    fleet.settle()
    engine.confirm()
    fleet.assert_quiet()


async def test_a_break_wakes_the_reader_of_a_sink() -> None:
    fleet, engine, response = begun()
    sink = Sink()
    task = await reading(response, sink)
    engine.stream.send_data(b"half")
    fleet.settle()
    engine.stream.reset(ErrorCode.ENGINE_FAILED)
    fleet.settle()
    with pytest.raises(StreamBroken):
        await task
    assert sink.taken == b"half"
    fleet.assert_quiet()


async def test_a_body_that_is_all_there_is_taken_in_one_piece() -> None:
    fleet, engine, response = begun()
    for piece in (b"one", b"two"):
        engine.stream.send_data(piece)
    fleet.settle()
    assert response.take_whole() is None, "its end has not come"
    engine.stream.end(Trailers())
    fleet.settle()
    assert response.take_whole() == b"onetwo"
    response.consumed(6)
    assert await response.next_chunks() == []
    fleet.settle()
    fleet.assert_quiet()


def kept_back() -> tuple[Fleet, EngineResponse]:
    """An answer that its client hears of when all of it is there."""
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(streaming=False))
    agent.streams[0].stream.send_head(ResponseHead(200, (("content-type", "application/json"),)))
    agent.streams[0].stream.send_data(b"whole")
    fleet.settle()
    agent.streams[0].stream.end(Trailers())
    fleet.settle()
    return fleet, client.response


async def test_what_waits_as_one_piece_comes_before_what_follows_it() -> None:
    fleet, engine, response = begun()
    for number in range(3):
        assert engine.stream.send_data(b"%d" % number)
        fleet.settle()
    assert b"".join(await response.next_chunks()) == b"012"
    response.consumed(3)
    engine.stream.send_data(b"3")
    fleet.settle()
    assert await response.next_chunks() == [b"3"]


async def test_no_memory_is_counted_for_an_answer_that_its_reader_takes_whole() -> None:
    fleet, response = kept_back()
    assert response.take_whole() == b"whole"
    assert fleet.dispatcher.unread.used_bytes == 0
    response.consumed(5)
    fleet.assert_quiet()


async def test_memory_holds_an_answer_whose_reader_begins_on_it() -> None:
    fleet, response = kept_back()
    assert await response.next_chunks() == [b"whole"]
    assert fleet.dispatcher.unread.used_bytes == 5
    assert not any(session.endpoint.session.held_bytes for session in fleet.registry.sessions)
    response.consumed(5)
    assert await response.next_chunks() == []
    fleet.assert_quiet()


async def test_an_answer_that_nobody_takes_holds_nothing() -> None:
    fleet, response = kept_back()
    response.abort()
    fleet.assert_quiet()


async def test_a_body_without_bytes_is_whole_when_it_ends() -> None:
    fleet, engine, response = begun()
    engine.stream.end(Trailers())
    fleet.settle()
    assert response.take_whole() == b""
    fleet.assert_quiet()


async def test_a_long_body_is_not_taken_whole() -> None:
    fleet, engine, response = begun()
    for _ in range(READ_BYTES // len(PIECE) + 1):
        engine.stream.send_data(PIECE)
    engine.stream.end(Trailers())
    fleet.settle()
    assert response.take_whole() is None
    read_bytes = 0
    while chunks := await response.next_chunks():
        read_bytes += sum(map(len, chunks))
        response.consumed(sum(map(len, chunks)))
    assert read_bytes > READ_BYTES
    fleet.assert_quiet()


async def test_a_body_that_broke_is_not_whole() -> None:
    fleet, engine, response = begun()
    engine.stream.send_data(b"half")
    engine.stream.reset(ErrorCode.ENGINE_FAILED, "it crashed")
    fleet.settle()
    assert response.take_whole() is None
    response.abort()
    fleet.settle()
    fleet.assert_quiet()


class CountedStream(NoStream):
    """Knows how much of it was said to be consumed."""

    consumed_bytes = 0

    def consumed(self, size_bytes: int) -> None:
        self.consumed_bytes += size_bytes


class HeldUp:
    """Owns a response: whether its engine waits for the reader."""

    held = False

    def reader_done(self, ending: Ending) -> None: ...
    def much_came(self) -> None: ...

    def held_up(self, held_up: bool) -> None:
        self.held = held_up


class Dropping:
    """A splicer that passes on events and makes nothing of comments."""

    def feed(self, data: bytes) -> bytes:
        return b"" if data.startswith(b":") else data

    def finish(self) -> bytes:
        return b""


def response_to(stream: CountedStream, owner: HeldUp, unread_bytes: int = 0) -> EngineResponse:
    record = AnswerRecord("chat", RecordBudget())
    unread = UnreadBudget(unread_bytes)
    return EngineResponse(HEAD, stream, "a", "a/d", "", 0.0, 1, owner, record, unread=unread)


async def test_memory_that_is_got_while_the_last_is_taken_is_given_back() -> None:
    """What a reader takes gives memory back, for which its own answer may be the first to wait."""
    stream, owner, event = CountedStream(), HeldUp(), b"data: " + b"x" * 39_992 + b"\n\n"
    response = response_to(stream, owner, unread_bytes=128 * KIB)
    response.feed(event)
    assert 0 < stream.consumed_bytes < len(event) - HOLD_BACK_BYTES
    assert owner.held
    response.end(None)
    assert await response.next_chunks() == [event]
    response.consumed(len(event))
    assert await response.next_chunks() == []
    assert (response._buffer._budget.used_bytes, stream.consumed_bytes) == (0, len(event))
    assert not owner.held


async def test_a_joined_stream_of_which_little_is_to_be_read_has_credit() -> None:
    stream, owner = CountedStream(), HeldUp()
    response = response_to(CountedStream(), owner)
    response.go_on(stream, Dropping())  # type: ignore[arg-type]
    event = b"data: 1\n\n"
    response.feed(event)
    response.feed(b":" + b"x" * 16_000 + b"\n\n")
    assert (stream.consumed_bytes, response.behind) == (16_003, False)
    assert await response.next_chunks() == [event]
    response.consumed(len(event))
    assert stream.consumed_bytes == 16_003 + len(event)


async def test_an_engine_that_goes_on_is_not_held_up_by_what_came_of_another() -> None:
    owner = HeldUp()
    response = response_to(CountedStream(), owner)
    response.feed(b"data: " + b"x" * HOLD_BACK_BYTES + b"\n\n")
    assert owner.held
    response.go_on(CountedStream(), Dropping())  # type: ignore[arg-type]
    assert (response.behind, owner.held) == (False, False)


async def test_an_engine_waits_for_no_reader_that_has_much_in_hand_while_the_file_has_room(
    tmp_path: Path,
) -> None:
    stream, owner, worker = CountedStream(), HeldUp(), HeldWorker()
    response = response_to(stream, owner)
    response._buffer._budget.spill_to(space(tmp_path, MIB, worker=worker))
    first, second = (b"data: " + letter * 30_000 + b"\n\n" for letter in (b"x", b"y"))
    response.feed(first)
    assert await response.next_chunks() == [first], "while it is being written, and its client reads nothing"
    worker.catch_up()
    response.feed(second)
    worker.catch_up()
    assert (stream.consumed_bytes, owner.held) == (len(first) + len(second), False)
    response.consumed(len(first))
    response.abort()
    worker.catch_up()
    assert (response._buffer._budget.spilled_bytes, response._buffer._budget.used_bytes) == (0, 0)
