"""``Dispatcher.run`` and uploads: what awaits, and what is cancelled with it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.dispatch.response import EngineResponse
from gateway.domain.errors import BodyTooLarge, EngineError, ModelNotFound, StreamBroken
from gateway.domain.request import RequestBody
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment

HEAD = ResponseHead(200, ())
MIB = 1024 * 1024


async def turns(fleet: Fleet, count: int = 20) -> None:
    """Let tasks and sessions alternate until all is still."""
    for _ in range(count):
        await asyncio.sleep(0)
        fleet.settle()


def start(fleet: Fleet, body: RequestBody | None = None) -> "asyncio.Task[EngineResponse]":
    return asyncio.get_running_loop().create_task(fleet.dispatcher.run(fleet.request(body=body)))


async def finish(fleet: Fleet, agent: FakeAgent, running: "asyncio.Task[EngineResponse]") -> None:
    """Answer the agent's last stream and read the answer to its end."""
    stream = agent.streams[-1].stream
    stream.send_head(HEAD)
    stream.send_data(b"done")
    stream.end()
    await turns(fleet)
    response = await running
    assert await response.next_chunks() == [b"done"]
    response.consumed(4)
    assert await response.next_chunks() == []
    await turns(fleet)


class Rest:
    """The rest of a client's body, given piece by piece."""

    def __init__(self, *pieces: bytes, error: Exception | None = None, hold: bool = False) -> None:
        self.pieces = pieces
        self.error = error
        self.gate = asyncio.Event()
        self.given = 0
        self.cancelled = False
        if not hold:
            self.gate.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.given += 1
            yield piece
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error


def body(rest: Rest, prefix: bytes = b"start") -> RequestBody:
    return RequestBody(prefix, rest.__aiter__())


async def test_the_answer_is_returned_with_its_head() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    assert not running.done()
    await finish(fleet, agent, running)
    fleet.assert_quiet()


async def test_what_admission_says_is_raised() -> None:
    fleet = Fleet()
    with pytest.raises(ModelNotFound):
        await fleet.dispatcher.run(fleet.request())


async def test_cancelling_the_task_while_it_waits_leaves_nothing_behind() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(slots=0))
    running = start(fleet)
    await turns(fleet)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    fleet.assert_quiet()


async def test_cancelling_the_task_while_the_engine_works_stops_the_engine() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    running.cancel()
    await turns(fleet)
    assert agent.streams[0].reset_code is ErrorCode.CANCELLED
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_cancelling_in_the_turn_in_which_the_head_comes_stops_the_engine_too() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    agent.streams[0].stream.send_head(HEAD)
    fleet.settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    fleet.settle()
    assert agent.streams[0].reset_code is ErrorCode.CANCELLED
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_cancelling_in_the_turn_in_which_an_error_comes_is_quiet() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    agent.streams[0].stream.reset(ErrorCode.ENGINE_FAILED)
    fleet.settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    fleet.assert_quiet()


async def test_a_reader_is_woken_once_for_a_batch() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    stream = agent.streams[0].stream
    stream.send_head(HEAD)
    await turns(fleet)
    response = await running
    reading = asyncio.ensure_future(response.next_chunks())
    await turns(fleet)
    for _ in range(5):
        stream.send_data(b"t")
        fleet.settle()
    assert await reading == [b"t"] * 5
    response.abort()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_cancelling_a_read_loses_nothing() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    agent.streams[0].stream.send_head(HEAD)
    await turns(fleet)
    response = await running
    reading = asyncio.ensure_future(response.next_chunks())
    await turns(fleet)
    agent.streams[0].stream.send_data(b"t")
    fleet.settle()
    reading.cancel()
    await turns(fleet)
    assert await response.next_chunks() == [b"t"]
    response.abort()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.assert_quiet()


# --- Uploads ---


async def test_a_body_with_a_rest_goes_up_whole() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    rest = Rest(b"b" * 100_000, b"", b"c" * 100_000)
    running = start(fleet, body(rest, b"a" * MIB))
    await turns(fleet, 100)
    assert agent.streams[0].body == b"a" * MIB + b"b" * 100_000 + b"c" * 100_000
    assert agent.streams[0].body_ended
    await finish(fleet, agent, running)
    fleet.assert_quiet()


async def test_the_rest_is_read_no_faster_than_the_agent_takes_it() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    agent.takes_bodies = False
    rest = Rest(*[b"x" * 65_536] * 100)
    running = start(fleet, body(rest))
    await turns(fleet, 200)
    assert len(agent.streams[0].body) <= 256 * 1024
    assert rest.given <= 8
    running.cancel()
    await turns(fleet)
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_a_large_body_waits_with_its_rest_until_the_agent_takes_the_start() -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    one.takes_bodies = False
    rest = Rest(b"rest")
    running = start(fleet, body(rest, b"x" * MIB))
    await turns(fleet)
    assert rest.given == 0
    one.streams[0].stream.reset(ErrorCode.REFUSED)
    await turns(fleet, 100)
    assert two.streams[0].body == b"x" * MIB + b"rest"
    await finish(fleet, two, running)
    fleet.advance(1.0)
    fleet.assert_quiet()


async def test_a_body_whose_rest_was_begun_is_not_given_to_another() -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    running = start(fleet, body(Rest(b"more", hold=True)))
    await turns(fleet)
    assert one.streams[0].body == b"startmore"
    fleet.cut(one)
    with pytest.raises(EngineError):
        await running
    assert not two.streams
    await turns(fleet)
    fleet.assert_quiet()


async def test_a_client_that_fails_to_deliver_the_rest_is_told_and_the_engine_stopped() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet, body(Rest(b"more", error=BodyTooLarge("too large"))))
    await turns(fleet)
    with pytest.raises(BodyTooLarge):
        await running
    assert agent.streams[0].reset_code is ErrorCode.CANCELLED
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_a_rest_that_fails_after_the_head_breaks_the_response() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    rest = Rest(b"more", error=BodyTooLarge("too large"), hold=True)
    running = start(fleet, body(rest))
    await turns(fleet)
    agent.streams[0].stream.send_head(HEAD)
    await turns(fleet)
    response = await running
    rest.gate.set()
    await turns(fleet)
    with pytest.raises(StreamBroken):
        await response.next_chunks()
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_the_upload_stops_when_the_answer_is_complete() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    rest = Rest(b"more", hold=True)
    running = start(fleet, body(rest))
    await turns(fleet)
    await finish(fleet, agent, running)
    assert rest.cancelled
    fleet.assert_quiet()


async def test_closing_ends_every_upload() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    rest = Rest(b"more", hold=True)
    running = start(fleet, body(rest))
    await turns(fleet)
    await fleet.dispatcher.close()
    assert rest.cancelled
    with pytest.raises(Exception, match="shutting down"):
        await running
    fleet.settle()
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_waiting_for_idle_ends_with_the_last_stream() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running = start(fleet)
    await turns(fleet)
    idle = asyncio.ensure_future(fleet.dispatcher.wait_idle())
    await turns(fleet)
    running.cancel()
    await turns(fleet)
    assert not idle.done(), "the agent has not confirmed"
    agent.streams[0].confirm()
    await turns(fleet)
    await asyncio.wait_for(idle, 60)
    fleet.assert_quiet()
