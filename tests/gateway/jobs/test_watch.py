"""All who wait for jobs share one look at the store."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.watch import JobWatch
from gateway.storage.errors import StateBusy, UnknownRecord

INTERVAL_S = 0.005


class Table:
    """Jobs that change when a test says so."""

    def __init__(self, number: int = 1) -> None:
        self.jobs = {each: job(each) for each in (f"job-{at}" for at in range(number))}
        self.looks: list[int] = []
        self.fails = 0

    def read(self, ids: Collection[str]) -> dict[str, JobRecord]:
        self.looks.append(len(ids))
        if self.fails:
            self.fails -= 1
            raise StateBusy("busy")
        return {each: self.jobs[each] for each in ids if each in self.jobs}

    def move(self, job_id: str, state: JobState) -> None:
        outcome = JobOutcome(state) if state.is_final else None
        self.jobs[job_id] = replace(self.jobs[job_id], state=state, outcome=outcome)


def job(job_id: str) -> JobRecord:
    return JobRecord(1, NewJob(job_id, "t", "k", "m", "/p", ObjectSlice("o")), JobState.QUEUED, 1.0)


@pytest.fixture
def table() -> Table:
    return Table(50)


@pytest.fixture
def watch(table: Table) -> JobWatch:
    return JobWatch(table.read, INTERVAL_S)


async def test_a_change_is_told(watch: JobWatch, table: Table) -> None:
    waiting = asyncio.create_task(watch.changed(table.jobs["job-0"]))
    table.move("job-0", JobState.RUNNING)
    async with asyncio.timeout(60):
        assert (await waiting).state is JobState.RUNNING


async def test_one_look_serves_all(watch: JobWatch, table: Table) -> None:
    waiting = [asyncio.create_task(watch.changed(each)) for each in list(table.jobs.values()) * 2]
    await asyncio.sleep(0)
    for job_id in table.jobs:
        table.move(job_id, JobState.RUNNING)
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert set(table.looks) == {50}


async def test_the_end_is_waited_for_over_other_changes(watch: JobWatch, table: Table) -> None:
    waiting = asyncio.create_task(watch.ended(table.jobs["job-0"], 20.0))
    for state in (JobState.RUNNING, JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED):
        table.move("job-0", state)
        await asyncio.sleep(2 * INTERVAL_S)
    assert (await waiting).state is JobState.SUCCEEDED


async def test_who_waits_long_enough_gets_it_as_it_is(watch: JobWatch, table: Table) -> None:
    assert await watch.ended(table.jobs["job-0"], 0.0) == table.jobs["job-0"]
    ended = replace(table.jobs["job-0"], state=JobState.FAILED)
    assert await watch.ended(ended, 20.0) is ended


async def test_one_that_is_gone_is_unknown(watch: JobWatch, table: Table) -> None:
    known = table.jobs.pop("job-0")
    with pytest.raises(UnknownRecord):
        await watch.ended(known, 20.0)


async def test_a_store_that_fails_is_asked_again(watch: JobWatch, table: Table) -> None:
    table.fails = 2
    known = table.jobs["job-0"]
    table.move("job-0", JobState.SUCCEEDED)
    assert (await watch.ended(known, 20.0)).state is JobState.SUCCEEDED
    assert len(table.looks) >= 3


async def test_nobody_looks_when_nobody_waits(watch: JobWatch, table: Table) -> None:
    waiting = asyncio.create_task(watch.changed(table.jobs["job-0"]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(60):
        while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110
            await asyncio.sleep(INTERVAL_S)
    assert len(table.looks) <= 1
