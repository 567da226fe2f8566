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
