"""What is written down behind requests' backs: at once, again when it failed, never on the event loop."""

import asyncio
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from gateway.quota.usage import UsageLedger
from gateway.runtime.background_writer import BackgroundWriter, BackgroundWriterSettings
from gateway.storage import Account, Amount, Store, UsageGrouping
from gateway.storage.backup import Backup
from gateway.storage.errors import StateUnwritable
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.storage.fillers import full_database


class Book:
    """A store that can fail, and says who wrote."""

    def __init__(self) -> None:
        self.served: list[tuple[str, ...]] = []
        self.full = False
        self.threads: set[int] = set()
        self.used: list[Mapping[Account, Amount]] = []
        self.batches: list[int] = []

    def add(self, amounts: Mapping[Account, Amount], batch: int) -> None:
        self.threads.add(threading.get_ident())
        if self.full:
            raise StateUnwritable("no room")
        self.batches.append(batch)
        self.used.append(amounts)

    def note(self, first_s: Mapping[str, float], served: Collection[str], wall_s: float, most: int) -> None:
        self.threads.add(threading.get_ident())
        if self.full:
            raise StateUnwritable("no room")
        self.served.append(tuple(served))


def keeper_of(fleet: Fleet, book: Book, ledger: UsageLedger | None = None) -> BackgroundWriter:
    ledger, settings = ledger or UsageLedger(lambda: 5.0), BackgroundWriterSettings(tick_s=3600.0)
    index, clock = fleet.registry.index, fleet.loop.time
    return BackgroundWriter(index, book.note, ledger, book.add, settings, clock=clock, wall=lambda: 5.0)


async def test_a_model_is_written_down_once_and_again_after_an_hour() -> None:
    fleet, book = Fleet(), Book()
    keeper = keeper_of(fleet, book)
    fleet.registry.index.learn("known", 1.0)
    fleet.connect("a", deployment())
    await keeper.write()
    await keeper.write()
    assert book.served == [("m",)]
    fleet.advance(3600.0)
    await keeper.write()
    assert book.served == [("m",), ("m",)]
    assert threading.get_ident() not in book.threads


async def test_a_model_that_comes_back_is_written_down_again_if_that_was_long_ago() -> None:
    fleet, book = Fleet(), Book()
    keeper = keeper_of(fleet, book)
    stays = fleet.connect("a", deployment("stays"))
    leaves = fleet.connect("b", deployment("leaves"))
    await keeper.write()
    leaves.serve()
    fleet.settle()
    fleet.advance(1800.0)
    await keeper.write()
    leaves.serve(deployment("leaves"))
    fleet.settle()
    await keeper.write()
    leaves.serve()
    fleet.advance(1799.0)
    await keeper.write()
    assert book.served == [("stays", "leaves")]
    fleet.advance(1.0)
    await keeper.write()
    await keeper.write()
    assert book.served[1:] == [("stays",)]
    fleet.advance(600.0)
    leaves.serve(deployment("leaves"))
    fleet.settle()
    await keeper.write()
    await keeper.write()
    assert book.served[2:] == [("leaves",)]
    stays.serve()
    leaves.serve()
    fleet.settle()
    await keeper.write()
    fleet.advance(4000.0)
    fleet.connect("c", deployment("new"))
    await keeper.write()
    assert book.served[3:] == [("new",)]


async def test_what_a_full_disk_did_not_take_is_written_later_and_complained_about_once() -> None:
    fleet, book = Fleet(), Book()
    keeper = keeper_of(fleet, book)
    fleet.connect("a", deployment())
    book.full = True
    with capture_logs() as logs:
        await keeper.write()
        await keeper.write()
    assert [line["event"] for line in logs] == ["state_not_written"]
    book.full = False
    with capture_logs() as logs:
        await keeper.write()
        await keeper.write()
    assert book.served == [("m",)]
    assert [line["event"] for line in logs] == ["state_written_again"]


async def test_usage_that_was_not_taken_is_written_as_it_was_before_what_came_since() -> None:
    fleet, book, ledger = Fleet(), Book(), UsageLedger(lambda: 5.0)
    keeper = keeper_of(fleet, book, ledger)
    book.full = True
    ledger.finished(fleet.request(), None)
    await keeper.write()
    ledger.finished(fleet.request(), None)
    book.full = False
    await keeper.write()
    await keeper.write()
    assert [[amount.requests for amount in used.values()] for used in book.used] == [[1], [1]]
    assert book.batches == [1, 2]
    assert threading.get_ident() not in book.threads


async def test_a_keeper_that_is_told_to_stop_writes_the_last_usage_or_says_how_much_is_lost() -> None:
    for full, events in ((False, []), (True, ["state_not_written", "usage_lost"])):
        fleet, book, ledger = Fleet(), Book(), UsageLedger(lambda: 5.0)
        keeper = keeper_of(fleet, book, ledger)
        book.full = full
        ledger.finished(fleet.request(), None)
        keeper.stop()
        with capture_logs() as logs:
            await keeper.run()
        assert [line["event"] for line in logs] == events
        assert len(book.used) == (0 if full else 1)


async def test_usage_that_a_full_disk_did_not_take_is_in_the_store_once_there_is_room(tmp_path: Path) -> None:
    fleet, book, ledger = Fleet(), Book(), UsageLedger(lambda: 5.0)
    with Store.open(tmp_path) as store:
        keeper = BackgroundWriter(
            fleet.registry.index, book.note, ledger, store.usage.add, clock=fleet.loop.time
        )
        with full_database(store), capture_logs() as logs:
            for number in range(2000):
                ledger.finished(replace(fleet.request(), model=f"{'m' * 200}{number}"), None)
            await keeper.write()
            await keeper.write()
            assert store.usage.totals(UsageGrouping.KEY) == ()
        assert ["is full" in line["error"] for line in logs] == [True]
        await keeper.write()
        assert [total.amount.requests for total in store.usage.totals(UsageGrouping.KEY)] == [2000]


class Copies(Backup):
    """A backup that can fail."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.full = self.deleted = False

    def keep(self, now_s: float) -> None:
        self.asked.append(now_s)
        if self.full:
            raise StateUnwritable("no room")

    def last(self) -> None:
        self.keep(float("inf"))


async def test_a_backup_that_cannot_be_made_is_complained_about_and_tried_again_later() -> None:
    fleet, copies = Fleet(), Copies()
    index, clock, book = fleet.registry.index, fleet.loop.time, Book()
    settings = BackgroundWriterSettings(backup_look_s=2.0, backup_retry_s=600.0)
    keeper = BackgroundWriter(index, book.note, UsageLedger(), book.add, settings, backup=copies, clock=clock)
    began_s, copies.full = fleet.loop.now_s, True
    with capture_logs() as logs:
        await keeper.back_up()
        await keeper.back_up()
        fleet.advance(600.0)
        copies.full = False
        await keeper.back_up()
        await keeper.back_up()
        fleet.advance(2.0)
        copies.deleted = True
        await keeper.back_up()
        await keeper.back_up()
    assert copies.asked == [began_s, began_s + 600.0, *[began_s + 602.0] * 2]
    assert [line["event"] for line in logs] == ["state_not_backed_up"]


@pytest.mark.parametrize("full", [False, True])
async def test_a_keeper_that_stops_sees_to_the_backup_after_its_last_write(full: bool) -> None:
    fleet, copies, book = Fleet(), Copies(), Book()
    copies.full = full
    keeper = BackgroundWriter(fleet.registry.index, book.note, UsageLedger(), book.add, backup=copies)
    keeper.stop()
    with capture_logs() as logs:
        await keeper.run()
    assert copies.asked == [float("inf")]
    assert [line["event"] for line in logs] == (["state_not_backed_up"] if full else [])


class SlowCopies(Backup):
    """A backup that takes until it is let go."""

    def __init__(self) -> None:
        self.begun, self.over, self.deleted = threading.Event(), threading.Event(), False

    def keep(self, now_s: float) -> None:
        self.begun.set()
        self.over.wait(60)

    def last(self) -> None:
        assert self.over.is_set(), "one copies at a time"


async def test_usage_is_written_while_a_backup_takes_its_time() -> None:
    fleet, copies, book, ledger = Fleet(), SlowCopies(), Book(), UsageLedger(lambda: 5.0)
    written = asyncio.Event()
    loop = asyncio.get_running_loop()

    def added(amounts: Mapping[Account, Amount], batch: int) -> None:
        book.add(amounts, batch)
        loop.call_soon_threadsafe(written.set)

    settings = BackgroundWriterSettings(tick_s=0.001)
    keeper = BackgroundWriter(fleet.registry.index, book.note, ledger, added, settings, backup=copies)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(keeper.run())
        await asyncio.to_thread(copies.begun.wait, 60)
        ledger.finished(fleet.request(), None)
        await written.wait()
        keeper.stop()
        await asyncio.sleep(0)
        assert not running.done(), "it ends with the backup"
        copies.over.set()
    assert len(book.used) == 1


async def test_a_running_keeper_writes_at_once_and_ends_when_told() -> None:
    fleet, book = Fleet(), Book()
    keeper = keeper_of(fleet, book)
    running = asyncio.create_task(keeper.run())
    await asyncio.sleep(0)
    fleet.connect("a", deployment())
    async with asyncio.timeout(60):
        while not book.served:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        keeper.stop()
        await running
    assert book.served == [("m",)]
