"""What is to be said of a queue's job is noted with it, is one process's at a time, and goes once said."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from gateway.domain.queues import QueueOrigin, ReplyPlan
from gateway.storage import schema
from gateway.storage.jobs import IdempotencyConflict, JobBounds, Submission
from tests.gateway.storage.jobs.conftest import clock, desk
from tests.gateway.storage.jobs.desk import NOW_S, JobDesk

__all__ = ["clock", "desk"]

LEASE_S = 60.0


def submit(desk: JobDesk, message_id: str = "1", fingerprint: bytes = b"f", **given: object) -> str:
    origin = replace(QueueOrigin("orders", message_id, "answers"), **given)  # type: ignore[arg-type]
    submission = Submission("t", (desk.new(),), f"queue {message_id}", fingerprint, origin)
    (job_id,) = desk.jobs.submit(submission, JobBounds(), NOW_S)
    return job_id


def end(desk: JobDesk) -> None:
    for job in desk.claim("a", 10):
        desk.publish(job)


def test_a_message_that_comes_again_makes_no_second_job(desk: JobDesk) -> None:
    first = submit(desk)
    assert submit(desk) == first
    assert desk.store.queue_jobs.queued("orders") == 1
    with pytest.raises(IdempotencyConflict):
        submit(desk, fingerprint=b"other")


def test_only_jobs_of_the_queue_that_wait_count(desk: JobDesk) -> None:
    submit(desk)
    submit(desk, "2", source="others")
    desk.submit(1)
    store = desk.store.queue_jobs
    assert (store.queued("orders"), store.queued("others"), store.queued("none")) == (1, 1, 0)
    desk.claim("a", 10)
    assert store.queued("orders") == 0


def test_a_reply_is_due_when_the_job_has_ended_and_is_one_process_s(desk: JobDesk) -> None:
    job_id = submit(desk)
    store = desk.store.queue_jobs
    (job,) = desk.claim("a", 1)
    assert store.claim(["orders"], 5, LEASE_S, NOW_S) == (), "it runs, and is told at its end"
    desk.publish(job)
    assert store.claim(["others"], 5, LEASE_S, NOW_S) == ()
    assert store.claim(["orders"], 0, LEASE_S, NOW_S) == ()
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    assert (reply.job_id, reply.origin, reply.plan) == (
        job_id,
        QueueOrigin("orders", "1", "answers"),
        ReplyPlan(),
    )
    assert store.claim(["orders"], 5, LEASE_S, NOW_S) == ()
    desk.clock.now += LEASE_S + 1
    (again,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    assert not store.finish(reply), "it is another's by now"
    assert not store.note_plan(reply, ReplyPlan(1, 1, 0, 5, False), LEASE_S)
    assert store.finish(again)
    assert store.claim(["orders"], 5, LEASE_S, NOW_S) == ()


def test_answers_that_are_sent_while_they_are_written_are_due_at_once_and_go_on_where_they_were(
    desk: JobDesk,
) -> None:
    submit(desk, stream=True)
    store = desk.store.queue_jobs
    assert store.claim(["orders"], 5, LEASE_S, NOW_S) == (), "it waits"
    desk.claim("a", 1)
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    plan = ReplyPlan(3, 2, 100, 200, is_sent=False)
    assert store.note_plan(reply, plan, LEASE_S)
    store.note_failure(reply, NOW_S + 1, NOW_S)
    assert store.claim(["orders"], 5, LEASE_S, NOW_S) == (), "not yet"
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S + 1)
    assert reply.plan == plan
    store.release(reply, NOW_S)
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    assert reply.plan == replace(plan, is_sent=True), "all that there was has been sent"


def test_failures_are_counted_until_something_is_sent(desk: JobDesk) -> None:
    submit(desk)
    end(desk)
    store = desk.store.queue_jobs
    for failed in range(2):
        (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S + failed)
        assert (reply.attempts, reply.failing_since_s) == (failed, NOW_S if failed else None)
        store.note_failure(reply, NOW_S + failed + 1, NOW_S + failed)
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S + 2)
    assert store.note_plan(reply, ReplyPlan(1), LEASE_S)
    store.release(reply, NOW_S)
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S + 2)
    assert (reply.attempts, reply.failing_since_s) == (0, None)


def test_who_runs_a_job_takes_its_reply_over_whoever_has_it(desk: JobDesk) -> None:
    streamed, whole = submit(desk, "1", stream=True), submit(desk, "2")
    silent = submit(desk, "3", stream=True, reply_to=None)
    store = desk.store.queue_jobs
    desk.claim("a", 10)
    (before,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    ids = [streamed, whole, silent, "job-none"]
    assert store.take_over(ids, ["others"], LEASE_S) == ()
    assert store.take_over([], ["orders"], LEASE_S) == ()
    (taken,) = store.take_over(ids, ["orders"], LEASE_S)
    assert (taken.job_id, taken.generation) == (streamed, before.generation + 1)
    assert not store.note_plan(before, ReplyPlan(1), LEASE_S), "it is another's by now"
    assert store.claim(["orders"], 5, LEASE_S, NOW_S) == ()
    desk.clock.now += LEASE_S + 1
    assert len(store.claim(["orders"], 5, LEASE_S, NOW_S)) == 1


def test_a_process_that_was_killed_leaves_its_replies_to_anybody_at_its_next_start(desk: JobDesk) -> None:
    store = desk.store.queue_jobs
    streamed, _ = submit(desk, "1", stream=True), submit(desk, "2")
    (running, ended) = desk.claim("a", 10)
    desk.publish(ended)
    assert store.begin("a", "first") is None
    (live,) = store.take_over([streamed], ["orders"], LEASE_S, "a")
    (whole,) = store.claim(["orders"], 5, LEASE_S, NOW_S, "a")
    desk.publish(running)
    assert store.begin("b", "other") is None
    assert store.claim(["orders"], 5, LEASE_S, NOW_S, "b") == (), "it lives"
    assert store.begin("a", "second") == "first"
    assert not store.note_plan(live, ReplyPlan(1), LEASE_S), "what it still notes does not count"
    assert not store.finish(whole)
    found = store.claim(["orders"], 5, LEASE_S, NOW_S, "b")
    assert sorted(each.number for each in found) == sorted((whole.number, live.number))
    assert store.begin("a", "third") == "second"
    assert store.note_plan(found[1], ReplyPlan(1), LEASE_S), "that of another goes on"


def test_plans_of_several_are_noted_together_and_failures_still_count(desk: JobDesk) -> None:
    ids = [submit(desk, str(number), stream=True) for number in range(3)]
    store = desk.store.queue_jobs
    desk.claim("a", 10)
    taken = store.take_over(ids, ["orders"], LEASE_S)
    store.note_failure(taken[0], NOW_S + 1, NOW_S)
    (again,) = store.take_over([taken[0].job_id], ["orders"], LEASE_S)
    plan = ReplyPlan(100, 1, 30, 30, is_sent=False)
    lost = store.note_plans([(each, plan) for each in reversed(taken)], LEASE_S)
    assert lost == {taken[0].number}
    assert store.note_plans([(again, plan)], LEASE_S) == frozenset()
    desk.clock.now += LEASE_S + 1
    found = store.claim(["orders"], 5, LEASE_S, NOW_S + 1)
    assert [each.plan for each in found] == [plan] * 3
    assert [each.plan.sent_offset for each in found] == [30] * 3
    assert sorted(each.attempts for each in found) == [0, 0, 1]


def test_what_nobody_is_told_of_is_forgotten(desk: JobDesk) -> None:
    store = desk.store.queue_jobs
    submit(desk, "silent", reply_to=None)
    submit(desk, "told")
    assert store.forget(10) == 0, "they have not ended"
    end(desk)
    assert store.claim(["orders"], 5, LEASE_S, NOW_S)[0].origin.message_id == "told"
    assert store.forget(10) == 1
    desk.jobs.remove_kept(NOW_S + 10**9, 10)
    assert store.forget(10) == 1, "their jobs are no more"
    with desk.store.database.read() as connection:
        assert connection.execute(select(schema.queue_jobs)).all() == []


def test_who_has_the_reply_of_a_job_that_is_gone_changes_no_other_of_its_number(desk: JobDesk) -> None:
    store = desk.store.queue_jobs
    gone = submit(desk, "1")
    end(desk)
    (before,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    desk.jobs.remove(gone, "t")
    store.forget(10)
    submit(desk, "2")
    end(desk)
    (reply,) = store.claim(["orders"], 5, LEASE_S, NOW_S)
    plan = ReplyPlan(1, 0, 0, 5, is_sent=False)
    assert not store.note_plan(before, plan, LEASE_S)
    assert not store.finish(before)
    store.release(before, NOW_S + 60)
    assert store.note_plan(reply, plan, LEASE_S)
