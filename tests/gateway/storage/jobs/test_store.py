"""Jobs are submitted together or not at all, shown to their tenants, cancelled and tried again."""

import pytest

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, ObjectSlice
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.job_notices import JobEvent, JobNotice
from gateway.storage.jobs import IdempotencyConflict, JobBounds, QueuedWork, Submission, TooManyJobs
from gateway.storage.jobs.store import UNPREDICTED_S
from tests.gateway.storage.jobs.desk import KEPT_S, NOW_S, JobDesk

FAILED = JobOutcome(JobState.FAILED, 400, error={"code": "bad", "message": "no"})


def test_a_job_is_what_was_submitted(desk: JobDesk) -> None:
    new = desk.new(
        headers=(("x-a", "1"), ("x-a", "2")),
        tier="standard",
        deadline_s=NOW_S + 9,
        not_before_s=NOW_S + 1,
        group="batch-1",
        custom_id="line \N{SNOWMAN}",
        webhook="https://example.com/hook",
        predicted_s=1.5,
        predicted_cost=0.25,
        metadata={"color": "blue"},
    )
    desk.jobs.submit(Submission("t", (new,)), JobBounds(), NOW_S)
    job = desk.jobs.get(new.id)
    assert job == JobRecord(job.number, new, JobState.QUEUED, NOW_S)


def test_a_body_may_be_a_part_of_an_object(desk: JobDesk) -> None:
    new = desk.new()
    part = type(new)(new.id, "t", "k", "m", "/v1/embeddings", ObjectSlice("files/f", 2**33, 2**33 + 7))
    desk.jobs.submit(Submission("t", (part,)), JobBounds(), NOW_S)
    assert desk.jobs.get(new.id).new.body == ObjectSlice("files/f", 2**33, 2**33 + 7)


def test_a_tenant_sees_its_own(desk: JobDesk) -> None:
    (mine,), (other,) = desk.submit(1, "a"), desk.submit(1, "b")
    assert desk.jobs.get(mine, "a").id == mine
    with pytest.raises(UnknownRecord):
        desk.jobs.get(other, "a")
    with pytest.raises(UnknownRecord):
        desk.jobs.cancel(other, NOW_S, KEPT_S, "a")
    assert [job.id for job in desk.jobs.list(tenant="a")] == [mine]


def test_several_are_found_at_once(desk: JobDesk) -> None:
    ids, (other,) = desk.submit(3, "a"), desk.submit(1, "b")
    assert desk.jobs.get_many([*ids[1:], other, "job-none"], "a").keys() == set(ids[1:])


def test_a_list_may_be_of_one_key(desk: JobDesk) -> None:
    ids = desk.submit(2)
    assert [job.id for job in desk.jobs.list(tenant="t", key_id="k")] == list(reversed(ids))
    assert desk.jobs.list(tenant="t", key_id="k2") == ()


def test_a_list_may_be_of_ids_that_begin_alike(desk: JobDesk) -> None:
    ids = desk.submit(3)
    assert [job.id for job in desk.jobs.list(prefix=ids[1])] == [ids[1]]
    assert len(desk.jobs.list(prefix=ids[0][:3])) == 3
    assert desk.jobs.list(prefix="%") == ()


def test_work_ahead_is_that_of_the_model_before_a_job(desk: JobDesk) -> None:
    first = desk.submit(2, predicted_s=5.0)
    (running,) = desk.claim("a", 1)
    assert running.id == first[0]
    desk.submit(1, "other")
    desk.submit(1, model="other", predicted_s=100.0)
    (last,) = desk.submit(1, predicted_s=7.0)
    numbers = [desk.jobs.get(each).number for each in (*first, last)]
    work = desk.jobs.ahead("m", numbers, NOW_S + 2)
    assert work == QueuedWork({numbers[1]: 0.0, numbers[2]: 5.0 + UNPREDICTED_S}, 1, 3.0)
    late = desk.jobs.ahead("m", numbers[2:], NOW_S + 60)
    assert late == QueuedWork({numbers[2]: 5.0 + UNPREDICTED_S}, 1, 0.0)
    assert desk.jobs.ahead("none", [1], NOW_S) == QueuedWork({}, 0, 0.0)


def test_work_ahead_of_jobs_far_apart_counts_all_that_waits_before_each(desk: JobDesk) -> None:
    ids = [job_id for seconds in (1.0, 2.0, 4.0, 8.0, 16.0) for job_id in desk.submit(1, predicted_s=seconds)]
    numbers = [desk.jobs.get(each).number for each in ids]
    work = desk.jobs.ahead("m", (numbers[1], numbers[4]), NOW_S)
    assert work.before_s == {numbers[1]: 1.0, numbers[4]: 15.0}
    assert desk.jobs.ahead("m", numbers[3:4], NOW_S).before_s == {numbers[3]: 7.0}


def test_lists_have_pages_in_both_orders(desk: JobDesk) -> None:
    ids = desk.submit(7)
    assert [job.id for job in desk.jobs.list(tenant="t", limit=3)] == list(ids[:3:-1])
    assert [job.id for job in desk.jobs.list(tenant="t", after=ids[4], limit=3)] == list(ids[3:0:-1])
    oldest = desk.jobs.list(tenant="t", after=ids[4], limit=3, newest_first=False)
    assert [job.id for job in oldest] == list(ids[5:])
    with pytest.raises(UnknownRecord):
        desk.jobs.list(tenant="t", after="job-none")


def test_jobs_are_counted_and_listed_by_group_and_state(desk: JobDesk) -> None:
    desk.submit(2, group="g")
    desk.submit(3, group="h")
    desk.claim("a", 1)
    assert desk.jobs.count(group="g") == {JobState.QUEUED: 1, JobState.RUNNING: 1}
    assert desk.jobs.count(tenant="t") == {JobState.QUEUED: 4, JobState.RUNNING: 1}
    assert desk.jobs.count(tenant="u") == {}
    assert len(desk.jobs.list(group="g", states=(JobState.RUNNING,))) == 1


def test_all_are_submitted_or_none(desk: JobDesk) -> None:
    desk.submit(2)
    jobs = tuple(desk.new() for _ in range(3))
    with pytest.raises(TooManyJobs, match="has 2 jobs in the queue and may have 4"):
        desk.jobs.submit(Submission("t", jobs), JobBounds(queued=4), NOW_S)
    assert desk.jobs.count(tenant="t") == {JobState.QUEUED: 2}
    desk.jobs.submit(Submission("t", jobs[:2]), JobBounds(queued=4), NOW_S)
    desk.jobs.submit(Submission("u", (desk.new("u"),)), JobBounds(queued=1), NOW_S)


def test_the_same_key_and_body_make_the_same_jobs_once(desk: JobDesk) -> None:
    jobs = (desk.new(), desk.new())
    first = desk.jobs.submit(Submission("t", jobs, "key", b"1"), JobBounds(), NOW_S)
    again = Submission("t", (desk.new(), desk.new()), "key", b"1")
    assert desk.jobs.submit(again, JobBounds(queued=0), NOW_S) == first
    with pytest.raises(IdempotencyConflict):
        desk.jobs.submit(Submission("t", jobs, "key", b"2"), JobBounds(), NOW_S)
    assert desk.jobs.count(tenant="t") == {JobState.QUEUED: 2}
    other = (desk.new("u"),)
    assert desk.jobs.submit(Submission("u", other, "key", b"2"), JobBounds(), NOW_S) == (other[0].id,)


def test_a_key_is_forgotten_after_its_time(desk: JobDesk) -> None:
    desk.jobs.submit(Submission("t", (desk.new(),), "key", b"1"), JobBounds(), NOW_S)
    desk.jobs.forget_submissions(NOW_S)
    with pytest.raises(IdempotencyConflict):
        desk.jobs.submit(Submission("t", (desk.new(),), "key", b"2"), JobBounds(), NOW_S)
    desk.jobs.forget_submissions(NOW_S + 1)
    desk.jobs.submit(Submission("t", (desk.new(),), "key", b"2"), JobBounds(), NOW_S)


def test_a_job_that_waits_is_cancelled_and_one_that_runs_is_asked_to_end(
    desk: JobDesk, running: JobRecord
) -> None:
    (waiting,) = desk.submit(1)
    cancelled = desk.jobs.cancel(waiting, NOW_S + 3, KEPT_S)
    assert (cancelled.state, cancelled.finished_s) == (JobState.CANCELLED, NOW_S + 3)
    asked = desk.jobs.cancel(running.id, NOW_S, KEPT_S)
    assert (asked.state, asked.cancelling) == (JobState.RUNNING, True)
    desk.publish(running)
    assert desk.jobs.cancel(running.id, NOW_S, KEPT_S).state is JobState.SUCCEEDED


def test_a_group_is_cancelled_as_a_whole(desk: JobDesk) -> None:
    desk.submit(3, group="g")
    (other,) = desk.submit(1)
    (running,) = desk.claim("a", 1)
    desk.jobs.cancel_group("g", NOW_S, KEPT_S)
    assert desk.jobs.count(group="g") == {JobState.CANCELLED: 2, JobState.RUNNING: 1}
    assert desk.jobs.get(running.id).cancelling
    assert desk.state(other) is JobState.QUEUED


def test_a_failed_job_is_tried_again_from_its_beginning(desk: JobDesk, running: JobRecord) -> None:
    with pytest.raises(RecordError, match="is running: only a failed job"):
        desk.jobs.retry(running.id)
    desk.publish(running, FAILED)
    failed = desk.jobs.get(running.id)
    assert failed.outcome == FAILED
    again = desk.jobs.retry(running.id)
    assert (again.state, again.attempts, again.outcome) == (JobState.QUEUED, 0, None)
    (job,) = desk.claim("b", 1)
    assert job.lease is not None
    assert running.lease is not None
    assert job.lease.generation > running.lease.generation


def test_what_was_kept_long_enough_goes(desk: JobDesk, running: JobRecord) -> None:
    desk.publish(running)
    desk.submit(1)
    assert desk.jobs.remove_kept(KEPT_S - 1, 10) == ()
    (gone,) = desk.jobs.remove_kept(KEPT_S, 10)
    assert (gone.id, gone.outcome and gone.outcome.result) == (running.id, "jobs/x/result")
    assert desk.jobs.count() == {JobState.QUEUED: 1}


def test_only_what_has_ended_is_removed_and_only_by_its_tenant(desk: JobDesk, running: JobRecord) -> None:
    tenant = running.new.tenant
    with pytest.raises(RecordError, match="ended"):
        desk.jobs.remove(running.id, tenant)
    desk.publish(running)
    with pytest.raises(UnknownRecord):
        desk.jobs.remove(running.id, "another")
    assert desk.jobs.remove(running.id, tenant).id == running.id
    with pytest.raises(UnknownRecord):
        desk.jobs.get(running.id)


def test_who_runs_jobs_is_told_of_those_that_wait_and_of_those_that_are_to_end(
    desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[JobNotice] = []
    monkeypatch.setattr(desk.store.database, "tell", lambda connection, notice: told.append(notice))
    first, _ = desk.submit(2, group="g")
    desk.jobs.submit(Submission("t", ()), JobBounds(), NOW_S)
    assert told == [JobNotice(JobEvent.QUEUED)], "once for all of them"
    (running,) = desk.claim("a", 1)
    desk.jobs.cancel(first, NOW_S, KEPT_S)
    desk.jobs.cancel_group("g", NOW_S, KEPT_S)
    assert told[1:] == [JobNotice(JobEvent.CANCELLED, first), JobNotice(JobEvent.GROUP_CANCELLED, "g")]
    desk.publish(running, FAILED)
    desk.jobs.cancel(first, NOW_S, KEPT_S)
    desk.jobs.cancel_group("g", NOW_S, KEPT_S)
    assert len(told) == 3, "nothing runs"
    desk.jobs.retry(first)
    assert told[3:] == [JobNotice(JobEvent.QUEUED)]
