"""A process knows which jobs are surely its own, and ends those that are not."""

import asyncio
from collections.abc import Collection

import pytest

from gateway.domain.jobs import JobLease, JobNote, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.leases import RunEnd, RunningJob, RunningJobs
from shared.protocol.progress import Preview, Progress
from tests.support.clock import ManualClock

PICTURE = Preview("image/png", b"picture")


def running(job_id: str, model: str = "m", deadline_s: float | None = None) -> RunningJob:
    new = NewJob(job_id, "t", "k", model, "/v1/completions", ObjectSlice("b"), deadline_s=deadline_s)
    return RunningJob(JobRecord(1, new, JobState.RUNNING, 0.0, lease=JobLease("p", 1, 1)))


def ends(*jobs: RunningJob) -> list[RunEnd | None]:
    return [each.end for each in jobs]


def test_jobs_end_when_the_store_was_not_asked_for_a_lease() -> None:
    clock = ManualClock()
    jobs, one = RunningJobs(clock, 30.0), running("one")
    clock.advance(1000.0)
    jobs.add(one, clock())
    clock.advance(30.0)
    jobs.stop_overdue()
    assert ends(one) == [None]
    jobs.renewed(clock())
    clock.advance(30.5)
    jobs.stop_overdue()
    assert ends(one) == [RunEnd.LOST]
    assert one.given_up


async def test_time_is_kept_while_nobody_renews() -> None:
    """As when a call of the store hangs: others may run the job once its lease is over."""
    clock = ManualClock()
    jobs, one, late = RunningJobs(clock, 30.0), running("one"), running("late", deadline_s=5.0)
    jobs.add(one, clock())
    jobs.add(late, clock())
    keeping = asyncio.create_task(jobs.keep_time(lambda: 5.0, 0.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert ends(one, late) == [None, RunEnd.EXPIRED]
    clock.advance(30.5)
    for _ in range(3):
        await asyncio.sleep(0)
    assert ends(one) == [RunEnd.LOST]
    keeping.cancel()
    await asyncio.wait([keeping])


def test_the_first_reason_counts_unless_the_job_is_lost() -> None:
    one = running("one")
    one.stop(RunEnd.CANCELLED)
    one.stop(RunEnd.STOPPED)
    assert ends(one) == [RunEnd.CANCELLED]
    assert not one.given_up
    one.stop(RunEnd.LOST)
    assert ends(one) == [RunEnd.LOST]


def test_deadlines_end_runs() -> None:
    jobs, soon, never = RunningJobs(ManualClock(), 30.0), running("soon", deadline_s=5.0), running("never")
    jobs.add(soon, 0.0)
    jobs.add(never, 0.0)
    jobs.stop_expired(4.9)
    assert ends(soon) == [None]
    jobs.stop_expired(5.0)
    assert ends(soon, never) == [RunEnd.EXPIRED, None]


async def test_what_is_not_answered_yet_takes_room_in_the_queue() -> None:
    jobs, one, two = RunningJobs(ManualClock(), 30.0), running("one"), running("two", "other")
    jobs.add(one, 0.0)
    jobs.add(two, 0.0)
    assert jobs.pending("m") == 1
    one.answering = True
    assert jobs.pending("m") == 0
    none = asyncio.create_task(jobs.wait_none())
    await asyncio.sleep(0)
    jobs.remove(one)
    assert set(jobs.leases) == {"two"}
    jobs.remove(two)
    async with asyncio.timeout(30):
        await none


async def test_how_far_an_engine_is_is_noted_once_and_again_where_that_failed() -> None:
    jobs, one, silent = RunningJobs(ManualClock(), 30.0), running("one"), running("silent")
    jobs.add(one, 0.0)
    jobs.add(silent, 0.0)
    noted: list[Progress] = []
    over: list[str] = []

    def note(notes: Collection[JobNote], those_over: Collection[str]) -> None:
        assert all((each.job_id, each.lease) == ("one", one.lease) for each in notes)
        noted.extend(each.progress for each in notes)
        over.extend(those_over)

    def fail(*said: object) -> None:
        raise OSError("no store")

    one.tell(Progress(0.25))
    one.tell(Progress(0.5, "step 5", PICTURE))
    with pytest.raises(OSError, match="no store"):
        await jobs.note_progress(fail)
    for _ in range(2):
        await jobs.note_progress(note)
    one.tell(Progress(0.75))
    await jobs.note_progress(note)
    assert noted == [Progress(0.5, "step 5", PICTURE), Progress(0.75)], "a preview is noted once"
    for each in (one, silent):
        jobs.remove(each)
    assert (len(jobs), jobs.is_busy) == (0, True)
    with pytest.raises(OSError, match="no store"):
        await jobs.note_progress(fail)
    await jobs.note_progress(note)
    assert (over, jobs.is_busy) == (["one"], False)


async def test_a_flood_of_progress_is_noted_once_and_a_job_that_runs_again_keeps_its_preview() -> None:
    jobs, first = RunningJobs(ManualClock(), 30.0), running("one")
    jobs.add(first, 0.0)
    told: list[tuple[Collection[JobNote], Collection[str]]] = []

    def note(notes: Collection[JobNote], over: Collection[str]) -> None:
        told.append((notes, over))

    for step in range(10_000):
        first.tell(Progress(step / 10_000, "", PICTURE if step == 7 else None))
    await jobs.note_progress(note)
    ((notes, _),) = told
    assert [each.progress for each in notes] == [Progress(0.9999, "", PICTURE)]
    jobs.remove(first)
    jobs.add(running("one"), 0.0)
    await jobs.note_progress(note)
    assert len(told) == 1
