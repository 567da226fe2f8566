"""Batches have one owner at a time, and every step is written once."""

from dataclasses import replace

import pytest

from gateway.domain.batches import BatchCounts, BatchError, BatchRecord, BatchState, NewBatch
from gateway.domain.files import FilePurpose, NewFile
from gateway.domain.jobs import JobOutcome, JobState, NewJob, ObjectSlice
from gateway.storage import Store
from gateway.storage.batches import BatchLost, UnfitFile
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.jobs import IdempotencyConflict, JobBounds, JobClaim, TooManyJobs
from gateway.storage.submissions import OnceKey

NOW_S = 1_800_000_000.0
NEW = NewBatch("batch_1", "t", "k", {"key_id": "k"}, "/v1/embeddings", "file-1", "24h", NOW_S, NOW_S + 86_400)
BOUNDS = JobBounds()


@pytest.fixture
def store(any_store: Store) -> Store:
    upload(any_store)
    return any_store


def upload(store: Store, name: str = "file-1", purpose: FilePurpose = FilePurpose.BATCH) -> None:
    file = NewFile(name, "t", "k", "a.jsonl", purpose, NOW_S)
    store.files.begin(file, 10, 1000)
    store.files.finish(file, 10, "ab" * 32)


def jobs(first: int, last: int) -> list[NewJob]:
    return [
        NewJob(NEW.line_id(n), "t", "k", "m", NEW.endpoint, ObjectSlice("files/file-1"), group=NEW.id)
        for n in range(first, last + 1)
    ]


def begun(store: Store, total: int = 4) -> BatchRecord:
    store.batches.create(NEW)
    (batch,) = store.batches.claim("p", 30.0, 9)
    return store.batches.begin(batch, total, "m", NOW_S)


def publish_nothing(connection: object) -> None:
    """Makes no file."""


def test_a_batch_is_what_was_asked_for(store: Store) -> None:
    new = replace(NEW, metadata={"a": "b"}, webhook="https://example.com", output_kept_s=3600.0)
    made = store.batches.create(new)
    assert (made.new, made.state, made.counts) == (new, BatchState.VALIDATING, BatchCounts())
    assert store.batches.get("batch_1", "t") == made
    assert store.batches.list("t") == (made,)
    for refused in (
        lambda: store.batches.get("batch_1", "u"),
        lambda: store.batches.list("u", after="batch_1"),
    ):
        with pytest.raises(UnknownRecord):
            refused()


def test_files_of_others_and_for_others_make_none(store: Store) -> None:
    upload(store, "file-2", FilePurpose.VISION)
    with pytest.raises(UnknownRecord):
        store.batches.create(replace(NEW, tenant="u"))
    with pytest.raises(UnfitFile, match="is for vision"):
        store.batches.create(replace(NEW, input_file_id="file-2"))


def test_an_idempotency_key_makes_one_batch(store: Store) -> None:
    once = OnceKey("t", "once", b"asked")
    made = store.batches.create(NEW, once)
    again = store.batches.create(replace(NEW, id="batch_2"), once)
    assert (again.id, made.id) == (NEW.id, NEW.id)
    with pytest.raises(IdempotencyConflict):
        store.batches.create(replace(NEW, id="batch_3"), replace(once, fingerprint=b"something else"))
    with pytest.raises(UnknownRecord):
        store.batches.create(replace(NEW, id="batch_4", input_file_id="file-9"), replace(once, key="bad"))
    assert store.batches.create(replace(NEW, id="batch_4"), replace(once, key="bad")).id == "batch_4"
    assert [batch.id for batch in store.batches.list("t")] == ["batch_4", NEW.id]


def test_a_batch_has_one_owner_until_its_lease_is_over(store: Store) -> None:
    assert not store.batches.any_open()
    store.batches.create(NEW)
    assert store.batches.any_open()
    (first,) = store.batches.claim("p", 30.0, 9)
    assert store.batches.claim("q", 30.0, 9) == ()
    store.batches.release(first, -1.0)
    (second,) = store.batches.claim("q", 30.0, 9)
    for step in (
        lambda: store.batches.renew(first, 30.0),
        lambda: store.batches.begin(first, 1, "m", NOW_S),
        lambda: store.batches.fail(first, [BatchError("c", "m")], NOW_S),
    ):
        with pytest.raises(BatchLost):
            step()
    store.batches.release(first, -1.0)
    assert store.batches.claim("p", 30.0, 9) == (), "what was another's is not given back"
    store.batches.renew(second, 30.0)
    store.batches.fail(second, [BatchError("empty_file", "It is empty.")], NOW_S)
    found = store.batches.get("batch_1")
    assert (found.state, found.errors[0]["code"]) == (BatchState.FAILED, "empty_file")
    assert not store.batches.any_open()
    with pytest.raises(BatchLost):
        store.batches.begin(second, 1, "m", NOW_S)


def test_one_that_only_waits_for_its_jobs_is_not_taken_up_before_its_window_is_over(store: Store) -> None:
    batch = begun(store)
    after = store.batches.submit(batch, jobs(1, 2), 100, BOUNDS, 30.0, NOW_S)
    store.batches.release(after, -1.0)
    (again,) = store.batches.claim("q", 30.0, 9)
    assert again.submitted == 2, "lines are to become jobs"
    store.batches.submit(again, jobs(3, 4), 200, BOUNDS, 30.0, NOW_S)
    store.batches.release(again, -1.0)
    assert store.batches.claim("q", 30.0, 9) == ()
    (late,) = store.batches.claim("q", 30.0, 9, NEW.expires_s)
    store.batches.release(late, -1.0)
    store.jobs.cancel_group(NEW.id, NOW_S, NOW_S + 1)
    (ended,) = store.batches.claim("q", 30.0, 9)
    assert not store.batches.waits(ended)


def test_a_process_that_starts_again_ends_its_own_leases(store: Store) -> None:
    store.batches.create(NEW)
    (before,) = store.batches.claim("p", 30.0, 9)
    assert store.batches.end_leases_of("q") == 0
    assert store.batches.claim("p", 30.0, 9) == (), "it is still held"
    assert store.batches.end_leases_of("p") == 1
    assert store.batches.end_leases_of("p") == 0, "nobody holds it any more"
    with pytest.raises(BatchLost):
        store.batches.renew(before, 30.0)
    (after,) = store.batches.claim("q", 30.0, 9)
    assert after.id == before.id


def test_lines_become_jobs_with_the_note_of_it_or_not_at_all(store: Store) -> None:
    batch = begun(store)
    after = store.batches.submit(batch, jobs(1, 2), 100, BOUNDS, 30.0, NOW_S)
    assert (after.submitted, after.read_bytes, after.is_submitted) == (2, 100, False)
    with pytest.raises(BatchLost):
        store.batches.submit(batch, jobs(1, 2), 100, BOUNDS, 30.0, NOW_S)
    with pytest.raises(TooManyJobs):
        store.batches.submit(after, jobs(3, 4), 200, JobBounds(queued=3), 30.0, NOW_S)
    assert store.jobs.count(group=NEW.id) == {JobState.QUEUED: 2}
    assert store.batches.submit(after, jobs(3, 4), 200, None, 30.0, NOW_S).is_submitted
    assert store.batches.waits(after)
    store.jobs.cancel_group(NEW.id, NOW_S, NOW_S + 1)
    assert not store.batches.waits(after)
    assert store.batches.get(NEW.id).counts == BatchCounts(4, 0, 4)


def test_jobs_stay_until_their_batch_has_ended(store: Store) -> None:
    batch = store.batches.submit(begun(store, 1), jobs(1, 1), 100, BOUNDS, 30.0, NOW_S)
    store.jobs.cancel_group(NEW.id, NOW_S, NOW_S + 1)
    assert store.jobs.remove_kept(NOW_S + 2, 9) == ()
    batch = store.batches.begin_finalizing(batch, NOW_S)
    ended = (BatchCounts(1, 0, 1), {"total_tokens": 0}, (None, None), publish_nothing, NOW_S)
    store.batches.finish(batch, BatchState.COMPLETED, *ended)
    found = store.batches.get(NEW.id)
    assert (found.state, found.counts, found.usage) == (BatchState.COMPLETED, ended[0], ended[1])
    with pytest.raises(BatchLost):
        store.batches.finish(batch, BatchState.COMPLETED, *ended)
    assert len(store.jobs.remove_kept(NOW_S + 2, 9)) == 1


def failed_line(store: Store) -> tuple[BatchRecord, str]:
    """A batch of one line, whose job has failed, and the job's id."""
    batch = store.batches.submit(begun(store, 1), jobs(1, 1), 100, BOUNDS, 30.0, NOW_S)
    (job,) = store.job_claims.claim(JobClaim("p", 1, "m", 1, 30.0), NOW_S)
    assert job.lease is not None
    store.job_claims.publish(job.id, job.lease, JobOutcome(JobState.FAILED), NOW_S, NOW_S + 60)
    return batch, job.id


def test_a_line_that_failed_is_not_tried_again_while_its_batch_is_written(store: Store) -> None:
    batch, line = failed_line(store)
    batch = store.batches.begin_finalizing(batch, NOW_S)
    with pytest.raises(RecordError, match="just ending"):
        store.jobs.retry(line, "t")
    counts = BatchCounts(1, 0, 1)
    store.batches.finish(batch, BatchState.COMPLETED, counts, {}, (None, None), publish_nothing, NOW_S)
    assert store.jobs.retry(line, "t").state is JobState.QUEUED


def test_a_batch_of_which_a_line_is_tried_again_does_not_end(store: Store) -> None:
    batch, line = failed_line(store)
    assert not store.batches.waits(batch)
    store.jobs.retry(line, "t")
    with pytest.raises(BatchLost):
        store.batches.begin_finalizing(batch, NOW_S)
    assert store.batches.get(NEW.id).state is BatchState.IN_PROGRESS
    store.jobs.cancel(line, NOW_S, NOW_S + 60)
    assert store.batches.begin_finalizing(batch, NOW_S).state is BatchState.FINALIZING


def test_the_bytes_of_a_file_stay_until_its_batch_has_ended(store: Store) -> None:
    batch = begun(store)
    assert not store.files.delete("file-1", "t")
    assert store.files.removable(NOW_S + 10**9, 9) == ()
    store.batches.cancel(NEW.id, "t", NOW_S)
    counts = BatchCounts(4, 0, 4)
    store.batches.finish(batch, BatchState.CANCELLED, counts, {}, (None, None), publish_nothing, NOW_S)
    assert store.files.removable(NOW_S, 9) == ("file-1",)
