"""What is in memory is as fresh as the store, and the event loop's thread does not read it."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from gateway.auth.refresher import StoreRefresher
from gateway.storage.changes import ChangeCounter
from gateway.storage.errors import StateBusy, StateUnreachable
from tests.support.clock import ManualClock


class Shelf:
    """A store: a version, a value, and readings that wait for the test."""

    def __init__(self) -> None:
        self.version = 1
        self.value = "first"
        self.taken = ""
        self.readers: list[int] = []
        self.broken = False
        self.begun = threading.Semaphore(0)
        self.free = threading.Semaphore(0)

    def data_version(self) -> int:
        return self.version

    def change(self, value: str) -> None:
        self.version += 1
        self.value = value

    def read(self) -> Callable[[], None]:
        self.readers.append(threading.get_ident())
        value, broken = self.value, self.broken
        self.begun.release()
        assert self.free.acquire(timeout=30)
        if broken:
            raise StateBusy("stuck")

        def take() -> None:
            self.taken = value

        return take

    async def until_read(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=30)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def fresh(shelf: Shelf) -> StoreRefresher:
    fresh = StoreRefresher(ChangeCounter(shelf.data_version), "reads")
    fresh.add(shelf.read)
    shelf.free.release()
    fresh.refresh_here()
    assert shelf.begun.acquire(timeout=0)
    return fresh


async def test_what_nobody_changed_is_not_read(shelf: Shelf, fresh: StoreRefresher) -> None:
    await fresh.refresh()
    assert len(shelf.readers) == 1
    assert shelf.taken == "first"


async def test_it_is_read_in_a_thread_and_taken_up_before_anybody_goes_on(
    shelf: Shelf, fresh: StoreRefresher
) -> None:
    shelf.change("second")
    shelf.free.release()
    await fresh.refresh()
    assert shelf.taken == "second"
    assert shelf.readers[-1] != threading.get_ident()
    assert fresh.is_fresh()


async def test_a_crowd_is_served_by_one_reading(shelf: Shelf, fresh: StoreRefresher) -> None:
    shelf.change("second")
    crowd = [asyncio.ensure_future(fresh.refresh()) for _ in range(50)]
    await shelf.until_read()
    shelf.free.release()
    await asyncio.gather(*crowd)
    assert len(shelf.readers) == 2


async def test_what_was_changed_while_it_was_read_counts_for_who_came_after(
    shelf: Shelf, fresh: StoreRefresher
) -> None:
    shelf.change("second")
    early = asyncio.ensure_future(fresh.refresh())
    await shelf.until_read()
    shelf.change("third")
    late = asyncio.ensure_future(fresh.refresh())
    shelf.free.release()
    await early
    assert not late.done()
    shelf.free.release()
    await late
    assert shelf.taken == "third"
    assert len(shelf.readers) == 3


async def test_who_leaves_takes_the_reading_from_nobody_else(shelf: Shelf, fresh: StoreRefresher) -> None:
    shelf.change("second")
    first, second = (asyncio.ensure_future(fresh.refresh()) for _ in range(2))
    await shelf.until_read()
    first.cancel()
    shelf.free.release()
    await second
    assert first.cancelled()
    assert shelf.taken == "second"


async def test_a_store_that_fails_is_told_to_everybody_and_asked_again(
    shelf: Shelf, fresh: StoreRefresher
) -> None:
    shelf.change("second")
    shelf.broken = True
    shelf.free.release(2)  # who came during the first reading tries once more
    crowd = [asyncio.ensure_future(fresh.refresh()) for _ in range(3)]
    for each in crowd:
        with pytest.raises(StateBusy):
            await each
    assert isinstance(fresh.error, StateBusy)
    assert (shelf.taken, len(shelf.readers)) == ("first", 3)
    shelf.broken = False
    shelf.free.release()
    await fresh.refresh()
    assert shelf.taken == "second"
    assert fresh.error is None


async def test_nothing_is_taken_up_when_one_part_could_not_be_read(
    shelf: Shelf, fresh: StoreRefresher
) -> None:
    def fail() -> Callable[[], None]:
        raise StateBusy("stuck")

    fresh.add(fail)
    shelf.change("second")
    shelf.free.release()
    with pytest.raises(StateBusy):
        await fresh.refresh()
    assert shelf.taken == "first"


async def test_one_thread_reads_and_is_gone_at_the_end(shelf: Shelf, fresh: StoreRefresher) -> None:
    shelf.change("second")
    shelf.free.release()
    await fresh.refresh()
    fresh.close()
    (thread,) = fresh._threads._threads
    thread.join(30)
    assert not thread.is_alive()


def _look_once(at_most_s: float, stopping: threading.Event) -> None:
    stopping.wait()


class LostShelf:
    """A store that is lost just when it is read."""

    def __init__(self) -> None:
        self.version, self.there = 1, True

    def data_version(self) -> int:
        if not self.there:
            raise StateUnreachable("no answer")
        return self.version

    def read(self) -> Callable[[], None]:
        self.there = self.version == 1
        if not self.there:
            raise StateUnreachable("no answer")
        return lambda: None


async def test_a_store_that_is_lost_while_it_is_read_leaves_what_is_known_for_as_long_as_that_is_good() -> (
    None
):
    shelf, clock = LostShelf(), ManualClock(1000.0)
    changes = ChangeCounter(shelf.data_version, clock, stale_s=60.0, wait=_look_once)
    fresh = StoreRefresher(changes, "reads")
    fresh.add(shelf.read)
    fresh.refresh_here()
    changes.start_polling()
    try:
        shelf.version = 2
        clock.advance(1.0)
        await fresh.refresh()
        assert not shelf.there
        clock.advance(61.0)
        with pytest.raises(StateUnreachable):
            await fresh.refresh()
    finally:
        changes.close()
