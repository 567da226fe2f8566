"""Who may have how much of the file, and what happens when it cannot be used."""

import asyncio
from pathlib import Path
from typing import Any

import structlog.testing

from gateway.dispatch.response_buffers.file import BLOCK_BYTES, PAYLOAD_BYTES, Extent, SpillFile
from gateway.dispatch.response_buffers.space import REST_S, SpillSpace, Threads
from shared.protocol.limits import MIB
from tests.gateway.dispatch.response_buffers.behaviour.workers import Opened, space
from tests.support.clock import ManualClock


def allocated(there: SpillSpace, size_bytes: int, key: str = "k") -> tuple[SpillFile, list[Extent]]:
    found = there.allocate(key, "t", 0, size_bytes)
    assert found is not None
    return found


def test_the_file_is_made_when_needed_and_closed_when_nothing_is_in_it(tmp_path: Path) -> None:
    opened = Opened()
    there = space(tmp_path, MIB, opened=opened)
    assert opened.files == []
    file, extents = allocated(there, 5 * PAYLOAD_BYTES)
    there.write(file, extents, [b"x" * 5 * PAYLOAD_BYTES], lambda written: None)
    assert (opened.open, there.used_bytes) == (1, 5 * BLOCK_BYTES)
    there.free("k", "t", file, extents)
    assert (len(opened.files), opened.open, there.used_bytes) == (1, 0, 0)
    file, extents = allocated(there, 1)
    there.write(file, extents, [b"x"], lambda written: None)
    assert (len(opened.files), opened.open) == (2, 1)
    there.free("k", "t", file, extents)


def test_what_was_given_back_is_used_again_before_the_file_grows(tmp_path: Path) -> None:
    there = space(tmp_path, MIB)
    file, first = allocated(there, 2 * PAYLOAD_BYTES)
    _, second = allocated(there, PAYLOAD_BYTES)
    there.free("k", "t", file, first)
    _, third = allocated(there, 3 * PAYLOAD_BYTES)
    assert [block for each in third for block in each.blocks] == [0, 1, 3]
    serials = [
        each.serial + number for each in (*first, *second, *third) for number in range(len(each.blocks))
    ]
    assert len(set(serials)) == 6, "no number is used twice"


def test_it_gives_no_more_than_a_key_may_have(tmp_path: Path) -> None:
    there = space(tmp_path, 64 * BLOCK_BYTES)
    assert there.allocate("k", "t", 0, 9 * PAYLOAD_BYTES) is None, "one answer has half of a quarter"
    allocated(there, 8 * PAYLOAD_BYTES)
    assert there.allocate("k", "t", 8 * BLOCK_BYTES, 1) is None
    allocated(there, 4 * PAYLOAD_BYTES)
    allocated(there, 5 * PAYLOAD_BYTES, key="another")


def test_after_a_failure_it_is_left_alone_for_a_while_and_said_once(tmp_path: Path) -> None:
    clock, opened, told = ManualClock(), Opened(), list[bool]()
    there = space(tmp_path, MIB, opened=opened, clock=lambda: clock.now_s)
    opened.broken_for = "write"
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            file, extents = allocated(there, 1)
            there.write(file, extents, [b"x"], told.append)
            there.free("k", "t", file, extents)
            assert there.allocate("k", "t", 0, 1) is None
            clock.advance(REST_S)
        opened.broken_for = ""
        file, extents = allocated(there, 1)
        there.write(file, extents, [b"x"], told.append)
        there.free("k", "t", file, extents)
    assert told == [False, False, True]
    assert [line["event"] for line in logs] == ["unread_not_spilled", "unread_spilled_again"]
    assert there.used_bytes == 0


def test_a_directory_that_is_not_there_is_such_a_failure(tmp_path: Path) -> None:
    there, told = space(tmp_path / "missing", MIB), list[bool]()
    file, extents = allocated(there, 1)
    there.write(file, extents, [b"x"], told.append)
    there.free("k", "t", file, extents)
    assert told == [False]
    assert there.allocate("k", "t", 0, 1) is None


async def test_threads_tell_on_the_event_loop_what_came_of_it() -> None:
    threads, loop = Threads(), asyncio.get_running_loop()

    async def outcome(work: Any) -> tuple[Any, Exception | None]:
        future: asyncio.Future[tuple[Any, Exception | None]] = loop.create_future()
        threads.run(work, lambda result, error: future.set_result((result, error)))
        return await future

    def fails() -> None:
        raise OSError("no disk")

    assert await outcome(lambda: 7) == (7, None)
    assert isinstance((await outcome(fails))[1], OSError)
    threads.close()
    assert isinstance((await outcome(lambda: 7))[1], OSError)
