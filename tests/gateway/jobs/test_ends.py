"""What a crash left of jobs in the object store is found and removed, and nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.domain.jobs import JobOutcome, JobState, NewJob, ObjectSlice
from gateway.jobs.ends import ORPHAN_AGE_S, JobEnds
from gateway.jobs.object_names import body_name, output_name, result_name
from gateway.jobs.objects import ObjectOpener
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, JobClaim, Submission
from gateway.storage.objects import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


async def test_bodies_without_jobs_and_what_is_left_of_runs_go(store: Store, tmp_path: Path) -> None:
    objects = ObjectStore.in_directory(tmp_path / "objects")
    now_s = time.time()
    new = [
        NewJob(name, "t", "k", "m", "/v1/completions", ObjectSlice(body_name(name)))
        for name in ("done", "waits")
    ]
    store.jobs.submit(Submission("t", tuple(new)), JobBounds(), now_s)
    (job,) = store.job_claims.claim(JobClaim("p", 1, "m", 1, 30.0), now_s)
    assert job.lease is not None
    result = result_name("done", 1, 2)
    outcome = JobOutcome(JobState.SUCCEEDED, 200, (), result, 1)
    assert store.job_claims.publish("done", job.lease, outcome, now_s, now_s + 1e6)
    kept = [body_name("done"), result, body_name("waits"), output_name("waits", 1, 1), "files/file-1"]
    left = [body_name("killed"), output_name("done", 1, 1), result_name("done", 1, 1)]
    for name in kept + left:
        await objects.put_bytes(name, b"x")

    def ends_at(at_s: float) -> JobEnds:
        opener = ObjectOpener(lambda: objects)
        return JobEnds(store.job_claims, store.jobs, opener, wall=lambda: at_s)

    assert await ends_at(now_s).remove_orphans() == 0, "a job may just be submitted"
    assert await ends_at(now_s + ORPHAN_AGE_S + 60.0).remove_orphans() == len(left)
    assert sorted([*await objects.names("jobs"), *await objects.names("files")]) == sorted(kept)
