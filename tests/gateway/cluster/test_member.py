"""A process among those of its gateway, on each kind of store."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from sqlalchemy import Connection

from gateway.cluster.directory import ProcessDirectory
from gateway.cluster.member import ClusterMember
from gateway.cluster.ownership import LEADER
from gateway.cluster.placement_demands import PlacementDemands
from gateway.domain.running_clock import running_s
from gateway.storage import Store
from gateway.storage.errors import StateUnreachable
from gateway.storage.processes import ProcessRecord
from shared.protocol.peers import GatewayPeer
from tests.gateway.fleet.agent_house import eventually
from tests.support.clock import ManualClock

BEAT_S = 0.02


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def member(store: Store, name: str, incarnation: int = 1) -> ClusterMember:
    directory = ProcessDirectory(GatewayPeer(name, incarnation))
    record = ProcessRecord(name, incarnation, None, "host", "1", 0.0)
    made = ClusterMember(
        record, directory, store.processes, store.ownership, PlacementDemands(running_s), beat_s=BEAT_S
    )
    made.begin()
    return made


def there(each: ClusterMember) -> list[str]:
    return sorted(peer.process for peer in each.directory.peers_for("gpu-1"))


async def test_they_find_each_other_and_one_owns(store: Store) -> None:
    a, b = member(store, "a"), member(store, "b")
    assert (a.ownership.owns, b.ownership.owns) == (True, False)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in (a, b)]
        await eventually(lambda: there(a) == there(b) == ["a", "b"])
        a.stop()
        await running[0]
        await eventually(lambda: b.ownership.owns and there(b) == ["b"])
        assert b.ownership.epoch is not None
        assert a.ownership.epoch is not None
        assert b.ownership.epoch > a.ownership.epoch
        assert not a.ownership.owns
        b.stop()
    assert not store.processes.list().records
    lease = store.ownership.read(LEADER)
    assert lease is not None
    assert lease.owner is None


async def test_how_old_is_what_it_knows_of_the_others_is_told(store: Store) -> None:
    a = member(store, "a")
    clock = ManualClock(running_s())
    a._clock, a._reported_s = clock, clock.now_s
    clock.advance(7.5)
    assert a.known_s() == pytest.approx(7.5)  # of seconds since the machine began, which are rounded
    (age,) = a.figures()
    assert (age.name, list(age.values)) == ("processes_age_seconds", [()])
    assert age.values[()] == pytest.approx(7.5)
    a.begin()
    assert a.known_s() == 0.0
    a.stop()
    await a.run()


async def test_who_is_about_to_stop_lets_another_own_while_its_requests_end(store: Store) -> None:
    a, b = member(store, "a"), member(store, "b")
    async with asyncio.TaskGroup() as tasks:
        for each in (a, b):
            tasks.create_task(each.run())
        a.resign()
        assert not a.ownership.owns
        await eventually(lambda: b.ownership.owns)
        await eventually(lambda: there(b) == ["a", "b"])
        assert not a.ownership.owns
        for each in (a, b):
            each.stop()


async def test_while_the_store_is_away_the_last_known_are_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = member(store, "a"), member(store, "b")
    write: Callable[[], object] = store.database.write_concurrently

    @contextmanager
    def away() -> Iterator[Connection]:
        raise StateUnreachable("it is away")
        yield

    with structlog.testing.capture_logs() as logs:
        async with asyncio.TaskGroup() as tasks:
            for each in (a, b):
                tasks.create_task(each.run())
            await eventually(lambda: there(a) == ["a", "b"])
            monkeypatch.setattr(store.database, "write_concurrently", away)
            await eventually(lambda: sum(log["event"] == "processes_unknown" for log in logs) == 2)
            await asyncio.sleep(5 * BEAT_S)
            assert there(a) == there(b) == ["a", "b"]
            monkeypatch.setattr(store.database, "write_concurrently", write)
            await eventually(lambda: sum(log["event"] == "processes_known_again" for log in logs) == 2)
            for each in (a, b):
                each.stop()
    assert sum(log["event"] == "processes_unknown" for log in logs) == 2, "said once each"


async def test_two_processes_of_one_name_are_told_of_and_the_later_one_is_there(store: Store) -> None:
    with structlog.testing.capture_logs() as logs:
        earlier, later = member(store, "a", 1), member(store, "a", 2)
        async with asyncio.TaskGroup() as tasks:
            for each in (earlier, later):
                tasks.create_task(each.run())
            await eventually(lambda: any(log["event"] == "process_name_taken" for log in logs))
            assert later.ownership.owns
            assert not earlier.ownership.owns
            for each in (earlier, later):
                each.stop()
    assert [log["process"] for log in logs if log["event"] == "process_name_taken"] == ["a"]
