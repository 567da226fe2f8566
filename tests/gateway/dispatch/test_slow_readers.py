"""Clients that read too slowly while others wait for the engine they hold up."""

import pytest

from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.slow_readers import SETTLE_S, STEP_BYTES, WINDOW_S
from gateway.domain.errors import QueueTimeout, ReadTooSlowly, StreamBroken
from gateway.domain.request import Tier
from gateway.pipeline.relay import as_request_error
from shared.protocol.errors import ErrorCode
from tests.gateway.dispatch.answers import leave, read_to_end
from tests.gateway.dispatch.long_answers import LONG, OTHER, PIECE, begins, reads, wait, writes, writes_all
from tests.gateway.fleet.fleet import Client, EngineStream, Fleet, deployment

ORDINARY = 100_000
"""What a phone reads in a second."""


def blocked(**settings: float) -> tuple[Fleet, EngineStream, Client]:
    """The one slot is taken by an engine that waits for its reader."""
    fleet = Fleet(
        settings=DispatchSettings(unread_bytes=0, **settings),  # type: ignore[arg-type]
        queue=QueueSettings(max_wait_s=60),
    )
    agent = fleet.connect("a", deployment(slots=1))
    client = fleet.submit()
    assert begins(fleet, agent.streams[0]) < LONG
    return fleet, agent.streams[0], client


async def second(fleet: Fleet, engine: EngineStream, client: Client, size_bytes: int) -> None:
    """A second in whose end so much is read, and the engine writes as much as it can."""
    fleet.advance(1.0)
    if engine.reset_code is None and size_bytes:
        await reads(client, size_bytes)
        fleet.settle()
        writes(fleet, engine, 1000)


async def test_a_reader_that_stands_still_loses_its_slot_to_who_waits() -> None:
    fleet, engine, client = blocked()
    waiting = fleet.submit(fleet.request(principal=OTHER, tier=Tier.REALTIME))
    await reads(client, 1)  # what kernels take at first says nothing
    wait(fleet, SETTLE_S + WINDOW_S - 2)
    assert engine.reset_code is None
    wait(fleet, 3)
    assert engine.reset_code is ErrorCode.CANCELLED
    engine.confirm()
    fleet.settle()
    writes_all(fleet, fleet.agents[0].streams[1], 1)
    assert await read_to_end(waiting) == PIECE
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    assert isinstance(as_request_error(broken.value), ReadTooSlowly)
    client.response.abort()
    assert len(fleet.dispatcher.slow_readers) == 0
    assert fleet.dispatcher.slow_readers.stalls == 1, "it waited once, however long"
    assert fleet.metrics.registry.get_sample_value("trunkline_credit_stalls_total", {"body": "answer"}) == 1
    fleet.assert_quiet()


async def test_a_reader_that_reads_fast_enough_keeps_its_slot() -> None:
    fleet, engine, client = blocked(held_up_s=0)
    waiting = fleet.submit(fleet.request(principal=OTHER))
    for _ in range(58):
        await second(fleet, engine, client, ORDINARY)
    assert engine.reset_code is None
    assert not waiting.settled
    wait(fleet, 3)
    assert isinstance(waiting.error, QueueTimeout)
    leave(fleet, client)


async def test_a_reader_whose_kernel_takes_an_answer_in_steps_is_not_taken_for_slow() -> None:
    fleet, engine, client = blocked(held_up_s=0)
    waiting = fleet.submit(fleet.request(principal=OTHER))
    for tick in range(290):
        fleet.advance(0.2)
        if tick % 5 == 4:  # 64 KiB a second
            await reads(client, STEP_BYTES)
            fleet.settle()
        writes(fleet, engine, 1000)
    assert engine.reset_code is None
    leave(fleet, client, waiting)


async def test_a_slow_reader_may_be_slow_while_nobody_waits() -> None:
    fleet, engine, client = blocked()
    wait(fleet, 200)
    assert engine.reset_code is None
    assert not client.response.taken_bytes
    waiting = fleet.submit(fleet.request(principal=OTHER))
    wait(fleet, WINDOW_S + 2)
    assert engine.reset_code is ErrorCode.CANCELLED
    engine.confirm()
    leave(fleet, client, waiting)


def test_no_more_slow_readers_are_ended_than_requests_wait() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    agent = fleet.connect("a", deployment(slots=4))
    clients = [fleet.submit() for _ in range(4)]
    for engine in agent.streams:
        begins(fleet, engine)
    waiting = fleet.submit()
    wait(fleet, WINDOW_S + 5)
    ended = [each for each in agent.streams if each.reset_code is not None]
    assert len(ended) == 1, "its engine has not let go, and it is waited for"
    ended[0].confirm()
    fleet.settle()
    assert len(agent.streams) == 5
    leave(fleet, *clients, waiting)


def test_nobody_is_ended_where_the_least_rate_is_none() -> None:
    fleet, engine, client = blocked(least_read_bytes_s=0, held_up_s=0)
    waiting = fleet.submit(fleet.request(principal=OTHER))
    wait(fleet, 62)
    assert engine.reset_code is None
    assert isinstance(waiting.error, QueueTimeout)
    leave(fleet, client)


async def test_nobody_keeps_others_waiting_for_long_by_reading_fast_enough() -> None:
    fleet, engine, client = blocked()
    for _ in range(40):  # nobody waits
        await second(fleet, engine, client, ORDINARY)
    waiting = fleet.submit(fleet.request(principal=OTHER))
    seconds = 0
    while engine.reset_code is None and seconds < 40:
        seconds += 1
        await second(fleet, engine, client, ORDINARY)
    assert engine.reset_code is ErrorCode.CANCELLED
    assert 29 <= seconds <= 32
    with pytest.raises(StreamBroken, match="was not read for 30 s as fast as it came"):
        await read_to_end(client)
    engine.confirm()
    leave(fleet, client, waiting)


async def test_a_reader_that_reads_in_steps_is_not_taken_for_another_each_time() -> None:
    """Each step lets the engine go on for a moment: the window in which it is measured goes on, too."""
    fleet, engine, client = blocked()
    waiting = fleet.submit(fleet.request(principal=OTHER))
    seconds = 0
    while engine.reset_code is None and seconds < 30:
        seconds += 1
        await second(fleet, engine, client, seconds % 2)  # 32 KiB a second
    assert engine.reset_code is ErrorCode.CANCELLED
    assert seconds <= SETTLE_S + WINDOW_S + 2
    engine.confirm()
    leave(fleet, client, waiting)


async def test_an_engine_that_was_let_go_is_held_up_anew() -> None:
    """What its reader took long ago, while the engine had nothing to say, is no rate of reading."""
    fleet, engine, client = blocked()
    while client.response._buffer:
        await reads(client, 1)
        fleet.settle()
    wait(fleet, 100)
    waiting = fleet.submit(fleet.request(principal=OTHER))
    assert fleet.dispatcher.slow_readers.held_up == 0
    writes(fleet, engine, 1000)
    wait(fleet, SETTLE_S + WINDOW_S - 2)
    assert engine.reset_code is None
    leave(fleet, client, waiting)
