"""Answers that memory has no room for: engines are done with them all the same."""

import os
from pathlib import Path

import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.slow_readers import SETTLE_S, WINDOW_S
from gateway.domain.errors import EngineError, StreamBroken
from gateway.domain.request import Principal, Tier
from gateway.pipeline.relay import as_request_error
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import MIB
from shared.protocol.messages import Trailers
from tests.gateway.dispatch.answers import leave, let_go, read, read_to_end
from tests.gateway.dispatch.long_answers import (
    LONG,
    OTHER,
    PIECE,
    PLAIN,
    begins,
    reads,
    wait,
    writes,
    writes_all,
)
from tests.gateway.dispatch.response_buffers.behaviour.workers import HeldWorker, Opened, space
from tests.gateway.fleet.fleet import Fleet, deployment

READERS = 8
DISK_BYTES = 16 * READERS * 3 * MIB


def spilling(
    directory: Path,
    slots: int = READERS,
    *,
    unread_bytes: int = 0,
    disk_bytes: int = DISK_BYTES,
    worker: HeldWorker | None = None,
    opened: Opened | None = None,
) -> Fleet:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=unread_bytes))
    clock = fleet.dispatcher.timers.time
    fleet.dispatcher.unread.spill_to(space(directory, disk_bytes, worker=worker, clock=clock, opened=opened))
    fleet.connect("a", deployment(slots=slots))
    return fleet


async def test_slots_are_free_when_engines_are_done_though_memory_has_no_room(tmp_path: Path) -> None:
    opened = Opened()
    fleet = spilling(tmp_path, unread_bytes=MIB, opened=opened)
    agent = fleet.agents[0]
    clients = [fleet.submit() for _ in range(READERS)]
    waiting = fleet.submit(fleet.request(principal=OTHER, tier=Tier.REALTIME))
    for engine in agent.streams[:READERS]:
        writes_all(fleet, engine)
    assert len(agent.streams) == READERS + 1, "the other tenant's request has a slot, and no time has passed"
    unread = fleet.dispatcher.unread
    assert unread.used_bytes <= MIB // 2
    assert unread.spilled_bytes >= (READERS - 1) * 3 * MIB
    assert fleet.session(agent).endpoint.session.held_bytes < READERS * 16 * 1024
    assert os.listdir(tmp_path) == [], "the file has no name"
    writes_all(fleet, agent.streams[READERS], 1)
    assert await read_to_end(waiting) == PIECE
    for client in clients:
        assert await read_to_end(client) == PIECE * LONG
    assert (len(opened.files), opened.open) == (1, 0)
    fleet.assert_quiet()


async def test_what_comes_while_the_file_is_read_is_behind_it(tmp_path: Path) -> None:
    worker = HeldWorker()
    fleet = spilling(tmp_path, 1, worker=worker)
    client, engine = fleet.submit(), fleet.agents[0].streams[0]
    engine.stream.send_head(PLAIN)
    fleet.settle()
    sent = got = b""
    for turn in range(60):
        while engine.ready and len(sent) - len(got) < MIB // 2:
            piece = os.urandom(16_384)
            sent += piece
            engine.ready = engine.stream.send_data(piece)
            fleet.settle()
        if turn % 3:
            worker.step()
        if client.response._buffer:
            worker.at_once = True
            got += await read(client)
            worker.at_once = False
        fleet.settle()
    assert sent.startswith(got)
    assert fleet.dispatcher.unread.spilled_bytes
    engine.stream.end(Trailers())
    worker.at_once = True
    worker.catch_up()
    fleet.settle()
    assert got + await read_to_end(client) == sent
    fleet.assert_quiet()


def test_a_reader_that_leaves_takes_nothing_of_the_file_with_it(tmp_path: Path) -> None:
    opened, worker = Opened(), HeldWorker()
    fleet = spilling(tmp_path, worker=worker, opened=opened)
    clients = [fleet.submit() for _ in range(READERS)]
    engines = list(fleet.agents[0].streams)
    for number, engine in enumerate(engines):
        engine.stream.send_head(PLAIN)
        for _ in range(40):
            writes(fleet, engine, 8)
            if number % 2:
                worker.step()
    assert fleet.dispatcher.unread.spilled_bytes
    for client in clients:
        client.response.abort()
    fleet.settle()
    let_go(fleet)
    worker.catch_up()
    assert (opened.open, fleet.dispatcher.unread.spilled_bytes) == (0, 0)
    fleet.assert_quiet()


@pytest.mark.parametrize("broken_for", ["write", "missing"])
async def test_a_disk_that_takes_nothing_leaves_engines_waiting_as_without_one(
    tmp_path: Path, broken_for: str
) -> None:
    opened = Opened()
    opened.broken_for = broken_for
    fleet = spilling(tmp_path / "missing" if broken_for == "missing" else tmp_path, 1, opened=opened)
    client, engine = fleet.submit(), fleet.agents[0].streams[0]
    written = begins(fleet, engine)
    assert written < LONG
    assert client.response._no_room
    assert client.response.behind
    assert fleet.dispatcher.unread.spilled_bytes == 0
    waiting = fleet.submit(fleet.request(principal=OTHER, tier=Tier.REALTIME))
    wait(fleet, SETTLE_S + WINDOW_S + 2)
    assert engine.reset_code is ErrorCode.CANCELLED, "a slow reader is ended, others wait"
    engine.confirm()
    fleet.settle()
    writes_all(fleet, fleet.agents[0].streams[1], 1)
    assert await read_to_end(waiting) == PIECE
    with pytest.raises(StreamBroken):
        await read_to_end(client)
    client.response.abort()
    fleet.assert_quiet()


async def test_what_cannot_be_read_back_breaks_its_answer_and_no_other(tmp_path: Path) -> None:
    opened = Opened()
    fleet = spilling(tmp_path, 2, opened=opened)
    client, other = fleet.submit(), fleet.submit()
    for engine in fleet.agents[0].streams:
        writes_all(fleet, engine)
    opened.broken_for = "read"
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    assert isinstance(as_request_error(broken.value), EngineError)
    client.response.abort()
    opened.broken_for = ""
    assert await read_to_end(other) == PIECE * LONG
    fleet.assert_quiet()


def test_a_key_takes_no_more_of_the_file_than_it_may(tmp_path: Path) -> None:
    fleet = spilling(tmp_path, 40, disk_bytes=16 * MIB)
    clients = [fleet.submit() for _ in range(16)]
    for engine in fleet.agents[0].streams:
        begins(fleet, engine)
    assert fleet.dispatcher.unread.spilled_bytes <= 4 * MIB
    tenants = [Principal(f"k{number}", "x", f"t{number}") for number in range(4)]
    for principal in tenants:
        clients += [fleet.submit(fleet.request(principal=principal)) for _ in range(4)]
    for engine in fleet.agents[0].streams[16:]:
        begins(fleet, engine)
    late = fleet.submit(fleet.request(principal=OTHER))
    writes_all(fleet, fleet.agents[0].streams[-1], MIB // 4 // len(PIECE))
    assert fleet.agents[0].streams[-1].closed, "five tenants leave room for one more"
    assert fleet.dispatcher.unread.spilled_bytes < 16 * MIB
    leave(fleet, *clients, late)


async def test_a_file_with_room_again_is_used_without_waiting_for_the_own_reader(tmp_path: Path) -> None:
    fleet = spilling(tmp_path, 20, disk_bytes=16 * MIB)
    clients = [fleet.submit() for _ in range(16)]
    for engine in fleet.agents[0].streams:
        begins(fleet, engine)
    last = fleet.agents[0].streams[-1]
    assert not last.ready
    for client in clients[:-1]:
        client.response.abort()
    fleet.settle()
    assert last.ready
    assert not clients[-1].response._no_room
    leave(fleet, clients[-1])


async def test_whoever_has_caught_up_is_answered_from_memory_again(tmp_path: Path) -> None:
    opened = Opened()
    fleet = spilling(tmp_path, 1, unread_bytes=64 * 1024, opened=opened)
    client, engine = fleet.submit(), fleet.agents[0].streams[0]
    assert begins(fleet, engine, 100) == 100
    await reads(client, 100 * len(PIECE))
    assert opened.open == 0
    assert writes(fleet, engine, 1) == 1
    assert await read(client) == PIECE
    assert len(opened.files) == 1
    engine.stream.end(Trailers())
    fleet.settle()
    assert await read_to_end(client) == b""
    fleet.assert_quiet()
