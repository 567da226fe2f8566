"""Answers that engines finish before their clients have read them, and clients that read too slowly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.response_buffers import ChunkQueue
from gateway.dispatch.response_buffers.chunks import BLOCK_BYTES, PIECES
from gateway.dispatch.slow_readers import SETTLE_S, STEP_BYTES, WINDOW_S
from gateway.domain.errors import QueueTimeout, ReadTooSlowly, StreamBroken
from gateway.domain.request import Principal, Tier
from gateway.pipeline.relay import as_request_error
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import MIB, STREAM_WINDOW_FLOOR_BYTES
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.dispatch.response_buffers.behaviour.workers import used_by_key
from tests.gateway.fleet.fleet import Client, EngineStream, Fleet, deployment

PLAIN = ResponseHead(200, (("content-type", "text/plain"),))
PIECE = bytes(range(256)) * 16
LONG = 3 * MIB // len(PIECE)
OTHER = Principal("k2", "other", "others")
ORDINARY = 100_000
"""What a phone reads in a second."""


def writes(fleet: Fleet, engine: EngineStream, pieces: int) -> int:
    """The engine writes until it has written so many pieces or has to wait; how many it has written."""
    for number in range(pieces):
        if not engine.ready:
            return number
        engine.ready = engine.stream.send_data(PIECE)
        fleet.settle()
    return pieces


def writes_all(fleet: Fleet, engine: EngineStream, pieces: int = LONG) -> None:
    engine.stream.send_head(PLAIN)
    assert writes(fleet, engine, pieces) == pieces
    engine.stream.end(Trailers())
    fleet.settle()


async def reads(client: Client, size_bytes: int) -> int:
    """What the client takes: pieces until it has so much."""
    taken = 0
    while taken < size_bytes:
        size = sum(map(len, await client.response.next_chunks()))
        client.response.consumed(size)
        taken += size
    return taken


async def reads_all(client: Client) -> bytes:
    body = b""
    while chunks := await client.response.next_chunks():
        body += b"".join(chunks)
        client.response.consumed(sum(map(len, chunks)))
    return body


async def test_a_slot_is_free_when_the_engine_is_done_whatever_the_client_has_read() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1))
    slow, next_one = fleet.submit(), fleet.submit()
    writes_all(fleet, agent.streams[0])
    assert len(agent.streams) == 2, "the next request got the slot"
    assert agent.streams[0].closed
    assert fleet.dispatcher.unread.used_bytes > 0
    assert await reads_all(slow) == PIECE * LONG
    assert fleet.dispatcher.unread.used_bytes == 0
    writes_all(fleet, agent.streams[1], 1)
    await reads_all(next_one)
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
    engine.stream.send_head(PLAIN)
    written = writes(fleet, engine, 4 * LONG)
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
    for each in (client, small):
        each.response.abort()
    fleet.settle()
    engine.confirm()
    assert fleet.dispatcher.unread.used_bytes == 0
    fleet.assert_quiet()


async def test_one_keys_unread_answers_take_no_memory_of_anothers() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=8 * MIB))
    agent = fleet.connect("a", deployment(slots=20))
    greedy = [fleet.submit() for _ in range(16)]
    for engine in agent.streams:
        engine.stream.send_head(PLAIN)
        writes(fleet, engine, LONG)
    unread = fleet.dispatcher.unread
    assert used_by_key(unread._memory, "k") <= 2 * MIB
    other = fleet.submit(fleet.request(principal=OTHER))
    writes_all(fleet, agent.streams[16], 128)
    assert agent.streams[16].closed
    assert used_by_key(unread._memory, OTHER.key_id) <= MIB
    for client in (*greedy, other):
        client.response.abort()
    fleet.settle()
    for engine in agent.open_streams:
        engine.confirm()
    assert (unread.used_bytes, unread._waiting) == (0, {})
    fleet.assert_quiet()


async def test_an_engine_that_waited_for_memory_goes_on_when_others_have_read() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=8 * MIB))
    agent = fleet.connect("a", deployment(slots=20))
    clients = [fleet.submit() for _ in range(8)]
    for engine in agent.streams:
        engine.stream.send_head(PLAIN)
        writes(fleet, engine, LONG)
    last = agent.streams[-1]
    assert not last.ready
    for client in clients[:-1]:
        client.response.abort()
    fleet.settle()
    assert last.ready, "nobody reads it, and there is room for it now"
    clients[-1].response.abort()
    fleet.settle()
    for engine in agent.open_streams:
        engine.confirm()
    fleet.assert_quiet()


def test_nothing_is_read_ahead_while_the_machine_is_short_of_memory() -> None:
    fleet = Fleet()
    fleet.dispatcher.unread.roomy = lambda: False
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(PLAIN)
    assert writes(fleet, agent.streams[0], LONG) < LONG
    assert fleet.dispatcher.unread.used_bytes == 0
    client.response.abort()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_a_finished_answer_wakes_no_tunnel() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    writes_all(fleet, agent.streams[0], 1)
    await reads_all(client)
    fleet.settle()
    woken: list[bool] = []
    fleet.session(agent).endpoint.wake = lambda: woken.append(True)
    client.response.abort()
    assert woken == []
    fleet.assert_quiet()


# --- While others wait ---


def blocked(**settings: float) -> tuple[Fleet, EngineStream, Client]:
    """The one slot is taken by an engine that waits for its reader."""
    fleet = Fleet(
        settings=DispatchSettings(unread_bytes=0, **settings),  # type: ignore[arg-type]
        queue=QueueSettings(max_wait_s=60),
    )
    agent = fleet.connect("a", deployment(slots=1))
    client = fleet.submit()
    agent.streams[0].stream.send_head(PLAIN)
    assert writes(fleet, agent.streams[0], LONG) < LONG
    return fleet, agent.streams[0], client


async def second(fleet: Fleet, engine: EngineStream, client: Client, size_bytes: int) -> None:
    """A second in whose end so much is read, and the engine writes as much as it can."""
    fleet.advance(1.0)
    if engine.reset_code is None and size_bytes:
        await reads(client, size_bytes)
        fleet.settle()
        writes(fleet, engine, 1000)


def wait(fleet: Fleet, seconds: float) -> None:
    for _ in range(int(seconds)):
        fleet.advance(1.0)


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
    assert await reads_all(waiting) == PIECE
    with pytest.raises(StreamBroken) as broken:
        await reads_all(client)
    assert isinstance(as_request_error(broken.value), ReadTooSlowly)
    client.response.abort()
    assert len(fleet.dispatcher.slow_readers) == 0
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
    client.response.abort()
    fleet.settle()
    engine.confirm()
    fleet.assert_quiet()


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
    client.response.abort()
    waiting.cancel()
    fleet.settle()
    for stream in fleet.agents[0].open_streams:
        stream.confirm()
    fleet.assert_quiet()


async def test_a_slow_reader_may_be_slow_while_nobody_waits() -> None:
    fleet, engine, client = blocked()
    wait(fleet, 200)
    assert engine.reset_code is None
    assert not client.response.taken_bytes
    waiting = fleet.submit(fleet.request(principal=OTHER))
    wait(fleet, WINDOW_S + 2)
    assert engine.reset_code is ErrorCode.CANCELLED
    engine.confirm()
    fleet.settle()
    client.response.abort()
    waiting.cancel()
    fleet.settle()
    for stream in fleet.agents[0].open_streams:
        stream.confirm()
    fleet.assert_quiet()


def test_no_more_slow_readers_are_ended_than_requests_wait() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    agent = fleet.connect("a", deployment(slots=4))
    clients = [fleet.submit() for _ in range(4)]
    for engine in agent.streams:
        engine.stream.send_head(PLAIN)
        writes(fleet, engine, LONG)
    waiting = fleet.submit()
    wait(fleet, WINDOW_S + 5)
    ended = [each for each in agent.streams if each.reset_code is not None]
    assert len(ended) == 1, "its engine has not let go, and it is waited for"
    ended[0].confirm()
    fleet.settle()
    assert len(agent.streams) == 5
    waiting.cancel()
    for client in clients:
        client.response.abort()
    fleet.settle()
    for stream in agent.open_streams:
        stream.confirm()
    fleet.assert_quiet()


def test_nobody_is_ended_where_the_least_rate_is_none() -> None:
    fleet, engine, client = blocked(least_read_bytes_s=0, held_up_s=0)
    waiting = fleet.submit(fleet.request(principal=OTHER))
    wait(fleet, 62)
    assert engine.reset_code is None
    assert isinstance(waiting.error, QueueTimeout)
    client.response.abort()
    fleet.settle()
    engine.confirm()
    fleet.assert_quiet()


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
        await reads_all(client)
    client.response.abort()
    waiting.cancel()
    engine.confirm()
    fleet.settle()
    for stream in fleet.agents[0].open_streams:
        stream.confirm()
    fleet.assert_quiet()


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
    client.response.abort()
    waiting.cancel()
    fleet.settle()
    for stream in fleet.agents[0].open_streams:
        stream.confirm()
    fleet.assert_quiet()


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
    client.response.abort()
    waiting.cancel()
    fleet.settle()
    for stream in fleet.agents[0].open_streams:
        stream.confirm()
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
    client.response.abort()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.assert_quiet()


# --- The queue ---


@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=30), st.integers(1, 100_000))
def test_chunks_come_out_in_order_and_in_steps(pieces: list[bytes], most_bytes: int) -> None:
    queue, out = ChunkQueue(), b""
    for piece in pieces:
        queue.put(piece)
    while taken := queue.take(most_bytes):
        size_bytes = sum(map(len, taken))
        assert size_bytes <= max(most_bytes, len(taken[0])) or size_bytes < BLOCK_BYTES
        out += b"".join(taken)
    assert out == b"".join(pieces)
    assert not queue


def test_single_bytes_that_wait_are_joined() -> None:
    queue = ChunkQueue()
    for _ in range(10 * PIECES):
        queue.put(b"x")
    assert len(queue.take(1 << 20)) == 10
