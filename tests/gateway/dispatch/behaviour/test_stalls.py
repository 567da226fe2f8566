"""Engines that fall silent in the middle of an answer, judged by the answer's own rhythm."""

import asyncio
from collections.abc import AsyncIterator

import orjson

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.errors import DeadlineExceeded
from gateway.domain.request import RequestBody
from gateway.domain.slices import run_at_once
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers
from tests.gateway.dispatch.answers import quiet, read_to_end
from tests.gateway.dispatch.recovery import engines
from tests.gateway.dispatch.recovery.engines import Style
from tests.gateway.dispatch.streamed_answers import BODY, HEAD, MODEL, able, ask
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend

EVENTS = list(engines.chat_events(MODEL, orjson.loads(BODY), Style()))


def speaking(gap_s: float, events: int = 6, **settings: float) -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """Two agents, the first of which has said so many events, so long apart; all was read."""
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, **settings))  # type: ignore[arg-type]
    one, two = fleet.connect("a", able()), fleet.connect("b", able())
    client = ask(fleet)
    one.streams[0].stream.send_head(HEAD)
    for event in EVENTS[:events]:
        say(fleet, one.streams[0], event)
        fleet.advance(gap_s)
    return fleet, one, two, client


def say(fleet: Fleet, stream: EngineStream, data: bytes) -> None:
    stream.stream.send_data(data)
    fleet.settle()


async def keep_up(client: Client) -> bytes:
    """Read what is there."""
    chunks = await client.response.next_chunks()
    client.response.consumed(sum(map(len, chunks)))
    return b"".join(chunks)


def wait(fleet: Fleet, seconds: int) -> None:
    """Time passes second by second, so that a peer can answer when it is asked whether it is there."""
    for _ in range(seconds):
        fleet.advance(1.0)


async def test_an_answer_that_stalls_goes_on_elsewhere() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10)
    got = await keep_up(client)
    wait(fleet, 9)
    assert not two.streams
    wait(fleet, 12)
    assert one.streams[0].reset_code is ErrorCode.ENGINE_TIMEOUT
    data = engines.chat(MODEL, orjson.loads(two.streams[0].body), Style())
    two.streams[0].stream.send_head(HEAD)
    two.streams[0].stream.send_data(data)
    two.streams[0].stream.end(Trailers())
    fleet.settle()
    got += await read_to_end(client)
    assert got.count(b"[DONE]") == 1
    quiet(fleet)


async def test_a_slow_rhythm_is_no_stall() -> None:
    fleet, one, two, client = speaking(3.0, stall_s=10)
    await keep_up(client)
    wait(fleet, 40)
    assert not two.streams
    assert one.streams[0].reset_code is None
    client.response.abort()
    fleet.settle()
    quiet(fleet)


async def test_an_engine_that_has_to_wait_for_the_reader_does_not_stall() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10, unread_bytes=0)
    while one.streams[0].stream.send_data(EVENTS[5]):
        fleet.settle()
    wait(fleet, 60)
    assert not two.streams
    assert one.streams[0].reset_code is None
    client.response.abort()
    fleet.settle()
    quiet(fleet)


async def test_an_engine_that_stalls_while_its_reader_is_slow_stalls_all_the_same() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10)
    wait(fleet, 30)
    assert one.streams[0].reset_code is ErrorCode.ENGINE_TIMEOUT
    assert len(two.streams) == 1
    client.response.abort()
    fleet.settle()
    for agent in (one, two):
        agent.streams[0].confirm()
    quiet(fleet)


async def test_a_tunnel_that_is_away_is_no_stall() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10)
    fleet.cut(two)
    await keep_up(client)
    suspend(fleet, one)
    wait(fleet, 25)
    resume(fleet, one)
    wait(fleet, 9)
    assert one.streams[0].reset_code is None
    (deployment,) = fleet.session(one).deployments.values()
    assert deployment.healthy
    say(fleet, one.streams[0], b"".join(EVENTS[6:]))
    one.streams[0].stream.end(Trailers())
    fleet.settle()
    await read_to_end(client)
    quiet(fleet)


async def test_where_nobody_else_can_a_stalled_answer_may_still_come() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10, idle_s=60)
    fleet.cut(two)
    got = await keep_up(client)
    wait(fleet, 30)
    (deployment,) = fleet.session(one).deployments.values()
    assert not deployment.healthy, "it gets nothing new"
    assert one.streams[0].reset_code is None
    say(fleet, one.streams[0], b"".join(EVENTS[6:]))
    one.streams[0].stream.end(Trailers())
    fleet.settle()
    assert got + await read_to_end(client) == b"".join(EVENTS)
    assert deployment.healthy, "it has shown that it is not dead"
    quiet(fleet)


async def test_a_stall_is_one_on_a_tunnel_with_nothing_else_to_carry_too() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10)
    await keep_up(client)
    for _ in range(150):  # its answers to our questions are never older than the last step
        fleet.advance(0.1)
    assert one.streams[0].reset_code is ErrorCode.ENGINE_TIMEOUT
    assert len(two.streams) == 1
    client.response.abort()
    fleet.settle()
    quiet(fleet)


async def test_silence_for_as_long_as_may_be_ends_an_attempt() -> None:
    fleet, one, two, client = speaking(0.1, stall_s=10, idle_s=30)
    fleet.cut(two)
    await keep_up(client)
    wait(fleet, 34)
    assert one.streams[0].reset_code is ErrorCode.ENGINE_TIMEOUT
    one.streams[0].confirm()
    wait(fleet, 70)
    assert len(one.streams) == 2, "its own engine is asked to go on, once it may be tried again"
    assert orjson.loads(one.streams[1].body)["continue_final_message"]
    client.response.abort()
    fleet.settle()
    quiet(fleet)


async def test_before_it_has_a_rhythm_an_answer_has_its_time() -> None:
    fleet, one, two, client = speaking(0.1, events=1, stall_s=10, idle_s=100)
    await keep_up(client)
    wait(fleet, 60)
    assert not two.streams
    say(fleet, one.streams[0], b"".join(EVENTS[1:]))
    one.streams[0].stream.end(Trailers())
    fleet.settle()
    await read_to_end(client)
    quiet(fleet)


async def test_a_silence_on_an_engines_own_paths_is_no_fault() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, first_byte_s=30, idle_s=40))
    agent = fleet.connect("a", deployment(slots=16, routes=("any", "chat")))
    talking = [fleet.submit(fleet.request(route="any")) for _ in range(6)]
    for stream, client in zip(agent.streams, talking, strict=True):
        stream.stream.send_head(HEAD)
        for _ in range(6):
            say(fleet, stream, b"data: x\n\n")
            await keep_up(client)
    polling = [fleet.submit(fleet.request(route="any", streaming=False)) for _ in range(6)]
    wait(fleet, 60)
    assert all(client.settled for client in polling)
    assert all(stream.reset_code is not None for stream in agent.streams)
    assert run_at_once(fleet.dispatcher.health.figures()) == {("m", "closed"): 1}


async def test_a_client_that_was_slow_to_send_is_no_fault_of_the_engine() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, first_byte_s=30))
    fleet.connect("a", deployment(slots=16, routes=("audio",)))

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    clients = [
        fleet.submit(fleet.request(route="audio", streaming=False, body=RequestBody(b"x", slow(), 100)))
        for _ in range(6)
    ]
    await asyncio.sleep(0)
    wait(fleet, 35)
    assert all(isinstance(client.error, DeadlineExceeded) for client in clients)
    assert run_at_once(fleet.dispatcher.health.figures()) == {("m", "closed"): 1}
    await fleet.dispatcher.close()
