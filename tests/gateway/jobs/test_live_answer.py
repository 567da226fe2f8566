"""What an engine writes is there at once for who passes it on, and no more of it is held than is bounded."""

import asyncio

from gateway.domain.jobs import JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.live_answer import LiveAnswer

JOB = JobRecord(
    1, NewJob("job-1", "t", "k", "m", "/v1/completions", ObjectSlice("body")), JobState.RUNNING, 0.0
)
ended: list[LiveAnswer] = []


def live_answer() -> LiveAnswer:
    return LiveAnswer(JOB, ended.append, 10)


async def test_bytes_are_there_behind_what_was_read() -> None:
    live = live_answer()
    live.begin(2, 100)
    live.append(b"abc")
    assert (live.since, live.after(100), live.after(102), live.after(103)) == (2, b"abc", b"c", b"")
    live.append(b"d")
    assert live.after(103) == b"d"
    assert live.after(102) is None, "it was read, and is in the store"


async def test_what_is_too_much_is_in_the_store_only() -> None:
    live = live_answer()
    live.begin(1, 0)
    live.append(b"x" * 8)
    live.append(b"y" * 3)
    assert live.after(0) is None
    live.append(b"z")
    assert (live.after(10), live.after(11)) == (None, b"z")


async def test_its_reader_wakes_once_for_what_came_together() -> None:
    live = live_answer()
    waiting = asyncio.create_task(live.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    live.begin(1, 0)
    live.append(b"a")
    await waiting
    waiting = asyncio.create_task(live.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    live.end()
    await waiting
    assert live.ended
    assert ended.pop() is live


async def test_nothing_is_held_for_nobody() -> None:
    live = live_answer()
    live.begin(1, 0)
    live.decline()
    live.append(b"a")
    assert live.after(0) == b""
