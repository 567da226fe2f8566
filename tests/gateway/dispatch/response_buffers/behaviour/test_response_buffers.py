"""Answers that engines finish before their clients have read them."""

import asyncio
from dataclasses import replace

import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from shared.protocol.credit import GATEWAY_WINDOWS
from shared.protocol.limits import MIB, STREAM_WINDOW_FLOOR_BYTES
from tests.gateway.dispatch.answers import leave, read_to_end
from tests.gateway.dispatch.long_answers import LONG, OTHER, PIECE, PLAIN, begins, reads, writes_all
from tests.gateway.dispatch.response_buffers.behaviour.workers import used_by_key
from tests.gateway.fleet.fleet import Fleet, deployment


async def test_a_slot_is_free_when_the_engine_is_done_whatever_the_client_has_read() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1))
    slow, next_one = fleet.submit(), fleet.submit()
    writes_all(fleet, agent.streams[0])
    assert len(agent.streams) == 2, "the next request got the slot"
    assert agent.streams[0].closed
    assert fleet.dispatcher.unread.used_bytes > 0
    assert await read_to_end(slow) == PIECE * LONG
    assert fleet.dispatcher.unread.used_bytes == 0
    writes_all(fleet, agent.streams[1], 1)
    await read_to_end(next_one)
    fleet.assert_quiet()


async def test_an_answer_left_to_itself_takes_no_window_of_the_session() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    client = fleet.submit()
    writes_all(fleet, agent.streams[0])
    assert fleet.session(agent).endpoint.session.held_bytes == 0
    client.response.abort()
    assert fleet.dispatcher.unread.used_bytes == 0
    fleet.assert_quiet()


async def test_what_is_unread_is_bounded_and_then_credit_holds_the_engine_back() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=4 * MIB))
    agent = fleet.connect("a", deployment(slots=2))
    client, small = fleet.submit(), fleet.submit()
    engine = agent.streams[0]
    written = begins(fleet, engine, 4 * LONG)
    used = fleet.dispatcher.unread.used_bytes
    assert written < 4 * LONG
    assert used <= 4 * MIB // 4 // 2, "one answer has half of its key's"
    assert client.response.behind
    held = fleet.session(agent).endpoint.session.held_bytes
    writes_all(fleet, agent.streams[1], 16)  # the key's other answers have room
    assert agent.streams[1].closed
    await reads(client, 2 * held)
    fleet.settle()
    assert engine.ready, "it goes on as the client reads"
    leave(fleet, client, small)


async def test_one_keys_unread_answers_take_no_memory_of_anothers() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=8 * MIB))
    agent = fleet.connect("a", deployment(slots=20))
    greedy = [fleet.submit() for _ in range(16)]
    for engine in agent.streams:
        begins(fleet, engine)
    unread = fleet.dispatcher.unread
    assert used_by_key(unread._memory, "k") <= 2 * MIB
    other = fleet.submit(fleet.request(principal=OTHER))
    writes_all(fleet, agent.streams[16], 128)
    assert agent.streams[16].closed
    assert used_by_key(unread._memory, OTHER.key_id) <= MIB
    leave(fleet, *greedy, other)


async def test_an_engine_that_waited_for_memory_goes_on_when_others_have_read() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=8 * MIB))
    agent = fleet.connect("a", deployment(slots=20))
    clients = [fleet.submit() for _ in range(8)]
    for engine in agent.streams:
        begins(fleet, engine)
    last = agent.streams[-1]
    assert not last.ready
    for client in clients[:-1]:
        client.response.abort()
    fleet.settle()
    assert last.ready, "nobody reads it, and there is room for it now"
    leave(fleet, clients[-1])


def test_nothing_is_read_ahead_while_the_machine_is_short_of_memory() -> None:
    fleet = Fleet()
    fleet.dispatcher.unread.roomy = lambda: False
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    assert begins(fleet, agent.streams[0]) < LONG
    assert fleet.dispatcher.unread.used_bytes == 0
    leave(fleet, client)


async def test_a_finished_answer_wakes_no_tunnel() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    writes_all(fleet, agent.streams[0], 1)
    await read_to_end(client)
    fleet.settle()
    woken: list[bool] = []
    fleet.session(agent).endpoint.wake = lambda: woken.append(True)
    client.response.abort()
    assert woken == []
    fleet.assert_quiet()


def test_what_holds_nobody_back_is_below_half_the_smallest_window() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(PLAIN)
    agent.streams[0].stream.send_data(b"x" * (STREAM_WINDOW_FLOOR_BYTES // 2 - 1))
    fleet.settle()
    assert not client.response.behind
    agent.streams[0].stream.send_data(b"x")
    fleet.settle()
    assert client.response.behind
    leave(fleet, client)


class StoppingClient:
    """A sink that takes all that comes until it is told to stop."""

    stopped = False

    def __call__(self, data: bytes) -> bool:
        return not self.stopped


@pytest.mark.parametrize("read_bytes", range(1000, 34_000, 3000))
@pytest.mark.parametrize("window", [STREAM_WINDOW_FLOOR_BYTES, 18_000, 22_000, 28_000, 48_000])
async def test_a_client_may_stop_anywhere_in_a_slow_answer_and_its_engine_finishes(
    window: int, read_bytes: int
) -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1), windows=replace(GATEWAY_WINDOWS, initial=window))
    client, sink = fleet.submit(), StoppingClient()
    engine = agent.streams[0]
    engine.stream.send_head(PLAIN)
    fleet.settle()
    reader = asyncio.ensure_future(client.response.next_chunks(sink))
    await asyncio.sleep(0)
    for written in range(0, 3 * 48_000, 200):
        sink.stopped = written >= read_bytes
        fleet.session(agent).endpoint.session.rtt_s = 0.001  # it is slow beside that
        assert engine.ready, (written, client.response.behind)
        engine.ready = engine.stream.send_data(b"x" * 200)
        fleet.advance(0.05)
    engine.stream.end()
    fleet.settle()
    assert engine.closed, "its slot is free"
    assert client.response.attempts == 1
    await reader
    leave(fleet, client)
