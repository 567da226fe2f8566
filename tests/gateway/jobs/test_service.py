"""Requests become jobs: their bodies first, then their rows; and nothing stays of what fails."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from gateway.domain.errors import Forbidden
from gateway.domain.jobs import JobEstimate, JobOutcome, JobState, NewJob, ObjectSlice
from gateway.domain.request import Principal, Request, Tier
from gateway.domain.scopes import limited
from gateway.jobs.service import DEADLINE_S, KEYS_KEPT_S, JobDraft, JobService, JobTerms
from gateway.pipeline.job_requests import JobRequestReader
from gateway.storage import Store
from gateway.storage.errors import StateUnreachable, UnknownRecord
from gateway.storage.jobs import IdempotencyConflict, JobBounds, JobClaim, ResultsFull, TooManyJobs
from gateway.storage.objects import ObjectStore

PRINCIPAL = Principal("k", "key", "t")
CHAT = "/v1/chat/completions"
BODY = b'{"model": "m",  "messages": [], "stream": true}'
NOW_S = 1_800_000_000.0


class KnownSpeeds:
    """Every request takes two seconds and costs a half; four run at once."""

    def estimate(self, request: Request) -> JobEstimate:
        return JobEstimate(2.0, 0.5)

    def slots(self, model: str) -> int:
        return 4


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore.in_directory(tmp_path / "objects")


@pytest.fixture
def jobs(store: Store, objects: ObjectStore) -> JobService:
    async def opened() -> ObjectStore:
        return objects

    reader = JobRequestReader(lambda: 100.0)
    return JobService(store.jobs, opened, reader, KnownSpeeds(), JobBounds(queued=5), wall=lambda: NOW_S)


async def drafted(jobs: JobService, number: int = 1) -> Sequence[NewJob]:
    return [await jobs.prepare(PRINCIPAL, JobDraft(CHAT), BODY) for _ in range(number)]


async def submit(jobs: JobService, number: int = 1, key: str | None = None) -> tuple[str, ...]:
    made = await drafted(jobs, number)
    return await jobs.submit("t", made, {job.id: BODY for job in made}, key=key, fingerprint=lambda: b"f")


async def test_a_job_is_what_its_request_says(jobs: JobService, objects: ObjectStore) -> None:
    terms = JobTerms(
        Tier.STANDARD, NOW_S + 60, "batch-1", "line 1", "https://example.com/hook", {"color": "blue"}
    )
    headers = [("X-Custom", "1"), ("Authorization", "Bearer secret"), ("Prefer", "respond-async")]
    new = await jobs.prepare(PRINCIPAL, JobDraft(CHAT, headers, terms), BODY)
    assert await jobs.submit("t", [new], {new.id: BODY}) == (new.id,)
    job = await jobs.get(new.id, "t")
    assert (job.new, job.state) == (new, JobState.QUEUED)
    assert (new.model, new.path, new.tier, new.deadline_s) == ("m", CHAT, "standard", NOW_S + 60)
    assert (new.group, new.custom_id, new.webhook) == ("batch-1", "line 1", "https://example.com/hook")
    assert (new.predicted_s, new.predicted_cost, new.metadata) == (2.0, 0.5, {"color": "blue"})
    assert new.headers == (("x-custom", "1"),), "credentials are not kept"
    assert await objects.read_bytes(new.body.name, 1000) == BODY, "as its client wrote it"


async def test_what_is_not_said_is_batch_with_a_deadline(jobs: JobService) -> None:
    (new,) = await drafted(jobs)
    assert (new.tier, new.deadline_s) == ("batch", NOW_S + DEADLINE_S)


async def test_a_body_that_lies_in_a_file_is_not_written_again(
    jobs: JobService, objects: ObjectStore
) -> None:
    at = ObjectSlice("files/file-1", 10, 10 + len(BODY))
    new = await jobs.prepare(PRINCIPAL, JobDraft(CHAT), BODY, at)
    await jobs.submit("t", [new])
    assert (await jobs.get(new.id, "t")).new.body == at
    assert await objects.names("jobs") == []


async def test_what_a_key_may_not_ask_for_is_no_job(jobs: JobService) -> None:
    scoped = Principal("k", "key", "t", scopes=limited(models=["other"]))
    with pytest.raises(Forbidden):
        await jobs.prepare(scoped, JobDraft(CHAT), BODY)


async def test_the_same_key_makes_nothing_twice(jobs: JobService, objects: ObjectStore) -> None:
    first = await submit(jobs, 2, key="once")
    assert await submit(jobs, 2, key="once") == first
    assert await objects.names("jobs") == sorted(f"jobs/{job_id}/body" for job_id in first)
    (other,) = await drafted(jobs)
    with pytest.raises(IdempotencyConflict):
        await jobs.submit("t", [other], {other.id: BODY}, key="once", fingerprint=lambda: b"another")
    assert len(await objects.names("jobs")) == 2


async def test_keys_are_forgotten_after_a_day(jobs: JobService) -> None:
    first = await submit(jobs, key="once")
    await jobs.forget_keys()
    assert await submit(jobs, key="once") == first
    jobs.wall = lambda: NOW_S + KEYS_KEPT_S + 1
    await jobs.forget_keys()
    assert await submit(jobs, key="once") != first


class NotedRuns:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def wake(self) -> None:
        self.told.append("wake")

    def cancel(self, job_id: str) -> None:
        self.told.append(job_id)

    def cancel_group(self, group: str) -> None:
        self.told.append(group)


async def test_who_runs_jobs_here_learns_of_them_at_once(store: Store, objects: ObjectStore) -> None:
    async def opened() -> ObjectStore:
        return objects

    runs = NotedRuns()
    reader = JobRequestReader(lambda: 100.0)
    bounds = JobBounds()
    jobs = JobService(
        store.jobs, opened, reader, KnownSpeeds(), bounds, lambda: NOW_S, runs=runs, kept_s=50.0
    )
    (job_id,) = await submit(jobs)
    cancelled = await jobs.cancel(job_id, "t")
    assert runs.told == ["wake", job_id]
    assert cancelled.kept_until_s == NOW_S + 50.0


async def test_a_tenant_whose_results_are_too_many_submits_nothing(
    store: Store, objects: ObjectStore
) -> None:
    async def opened() -> ObjectStore:
        return objects

    def made() -> JobService:
        bounds = JobBounds(result_bytes=100)
        reader = JobRequestReader(lambda: 100.0)
        return JobService(store.jobs, opened, reader, KnownSpeeds(), bounds, lambda: NOW_S)

    jobs = made()
    before = await submit(jobs, key="once")
    (running,) = store.job_claims.claim(JobClaim("p", 1, "m", 1, 30.0), NOW_S)
    assert running.lease is not None
    outcome = JobOutcome(JobState.SUCCEEDED, 200, (), "jobs/x/result/1-1", 100)
    assert store.job_claims.publish(running.id, running.lease, outcome, NOW_S, NOW_S + 9)
    jobs = made()
    with pytest.raises(ResultsFull, match="100 bytes"):
        await submit(jobs)
    assert await objects.names("jobs") == [f"jobs/{before[0]}/body"]
    assert await submit(jobs, key="once") == before, "it was submitted before"
    await jobs.kept.check("another tenant")


async def test_too_many_are_refused_together(jobs: JobService, objects: ObjectStore) -> None:
    await submit(jobs, 4)
    with pytest.raises(TooManyJobs):
        await submit(jobs, 2)
    assert len(await objects.names("jobs")) == 4


async def test_of_bodies_that_do_not_come_whole_nothing_stays(jobs: JobService, objects: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"{"
        raise ConnectionResetError

    made = await drafted(jobs, 2)
    with pytest.raises(ConnectionResetError):
        await jobs.submit("t", made, {made[0].id: BODY, made[1].id: broken()})
    assert await objects.names("jobs") == []
    assert await jobs.list("t") == ()


async def test_bodies_stay_where_their_rows_may_be_there(
    jobs: JobService, objects: ObjectStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submitted(*_: object) -> None:
        raise StateUnreachable("the server went away")

    monkeypatch.setattr(store.jobs, "submit", submitted)
    with pytest.raises(StateUnreachable):
        await submit(jobs)
    assert len(await objects.names("jobs")) == 1


async def test_a_submission_that_is_given_up_is_whole_or_nothing(
    jobs: JobService, objects: ObjectStore
) -> None:
    made = await drafted(jobs, 3)
    for turns in range(12):
        task = asyncio.create_task(jobs.submit("t", made, {job.id: BODY for job in made}, key=str(turns)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rows = {job.id for job in await jobs.list("t")}
        assert {name.split("/")[1] for name in await objects.names("jobs")} == rows
        assert len(rows) in (0, 3)
        if rows:
            return


async def test_several_are_found_in_their_order(jobs: JobService) -> None:
    ids = await submit(jobs, 3)
    found = await jobs.get_many([*reversed(ids), "job-none"], "t")
    assert [job.id for job in found] == list(reversed(ids))
    assert await jobs.get_many(ids, "other") == ()


async def test_a_job_is_cancelled_by_its_tenant_alone(jobs: JobService) -> None:
    (job_id,) = await submit(jobs)
    with pytest.raises(UnknownRecord):
        await jobs.cancel(job_id, "other")
    assert (await jobs.cancel(job_id, "t")).state is JobState.CANCELLED


async def test_a_list_may_be_of_one_key(jobs: JobService) -> None:
    (job_id,) = await submit(jobs)
    assert [job.id for job in await jobs.list("t", key_id="k")] == [job_id]
    assert await jobs.list("t", key_id="k2") == ()
