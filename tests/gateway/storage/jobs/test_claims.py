"""A job is one process's at a time, tenants get their turns, and only its last runner publishes."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.jobs import JobLease, JobNote, JobOutcome, JobRecord, JobState
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.jobs import JobClaim
from gateway.storage.webhooks.outbox import DeliveryClaim
from shared.protocol.progress import Preview, Progress
from tests.gateway.storage.jobs.desk import DONE, KEPT_S, LEASE_S, NOW_S, JobDesk

PICTURE = Preview("image/png", b"picture")


def test_jobs_are_claimed_in_the_order_of_submission_and_once(desk: JobDesk) -> None:
    ids = desk.submit(5)
    first, second = desk.claim("a", 2), desk.claim("b", 10)
    assert tuple(job.id for job in (*first, *second)) == ids
    assert {(job.state, job.attempts, job.started_s) for job in first} == {(JobState.RUNNING, 1, NOW_S)}
    assert first[0].lease == JobLease("a", 1, 1)
    assert desk.claim("a", 10) == ()
    assert desk.claim("a", 0) == ()


def test_only_jobs_of_the_model_are_claimed(desk: JobDesk) -> None:
    desk.submit(1, model="m")
    (other,) = desk.submit(1, model="n")
    assert [job.id for job in desk.claim("a", 10, "n")] == [other]


def test_tenants_take_turns_by_weight_and_cost(desk: JobDesk) -> None:
    desk.submit(100, "large")
    desk.submit(30, "small")
    desk.submit(30, "heavy", predicted_s=2.0)
    taken = Counter(job.new.tenant for job in desk.claim("a", 50, weights={"small": 2.0}))
    assert taken["small"] == 2 * taken["large"] == pytest.approx(4 * taken["heavy"], abs=4)
    assert sum(taken.values()) == 50


def test_turns_go_on_from_claim_to_claim(desk: JobDesk) -> None:
    desk.submit(40, "a")
    desk.submit(40, "b")
    taken = Counter(job.new.tenant for _ in range(20) for job in desk.claim("p", 1))
    assert taken == {"a": 10, "b": 10}


def test_who_comes_late_has_no_turns_to_make_up_for(desk: JobDesk) -> None:
    desk.submit(60, "early")
    desk.claim("p", 20)
    desk.submit(60, "late")
    taken = Counter(job.new.tenant for job in desk.claim("p", 20))
    assert taken == {"early": 10, "late": 10}


def test_who_comes_again_has_no_turns_to_make_up_for(desk: JobDesk) -> None:
    desk.submit(1, "again")
    desk.submit(90, "steady")
    for _ in range(31):
        for job in desk.claim("p", 1):
            desk.publish(job)
    desk.submit(60, "again")
    taken = Counter(job.new.tenant for job in desk.claim("p", 20))
    assert taken == {"steady": 10, "again": 10}


def test_who_could_not_have_turns_has_none_to_make_up_for_nor_who_comes_then(desk: JobDesk) -> None:
    desk.submit(60, "waits")
    desk.submit(60, "later", not_before_s=NOW_S + 60)
    desk.submit(90, "steady")
    for _ in range(30):
        assert [job.new.tenant for job in desk.claim("p", 1, waiting_tenants=frozenset({"waits"}))] == [
            "steady"
        ]
    desk.submit(60, "new")
    taken = Counter(job.new.tenant for job in desk.claim("p", 40, now_s=NOW_S + 60))
    assert taken == pytest.approx(dict.fromkeys(("waits", "later", "steady", "new"), 10), abs=1)


def test_tenants_that_wait_have_no_turns(desk: JobDesk) -> None:
    desk.submit(3, "waits")
    others = desk.submit(2, "other")
    claim = JobClaim("p", 1, "m", 10, LEASE_S, waiting_tenants=frozenset({"waits", "unknown"}))
    assert tuple(job.id for job in desk.claims.claim(claim, NOW_S)) == others
    assert len(desk.claim("p", 10)) == 3


def test_a_job_waits_until_its_time_and_holds_up_nobody(desk: JobDesk) -> None:
    (later,) = desk.submit(1, not_before_s=NOW_S + 10)
    (now,) = desk.submit(1)
    assert [job.id for job in desk.claim("a", 10)] == [now]
    assert [job.id for job in desk.claim("a", 10, now_s=NOW_S + 10)] == [later]


def test_a_job_whose_deadline_is_over_is_not_begun_and_expires(desk: JobDesk) -> None:
    (late,) = desk.submit(1, deadline_s=NOW_S)
    assert desk.claim("a", 1) == ()
    assert desk.sweep(NOW_S) == 1
    assert desk.state(late) is JobState.EXPIRED
    assert desk.jobs.get(late).kept_until_s == KEPT_S


def test_what_is_published_is_shown_and_published_once(desk: JobDesk, running: JobRecord) -> None:
    assert desk.publish(running)
    job = desk.jobs.get(running.id)
    assert (job.state, job.outcome, job.finished_s) == (JobState.SUCCEEDED, DONE, NOW_S + 5)
    assert not desk.publish(running, JobOutcome(JobState.FAILED))
    assert desk.jobs.get(running.id) == job


def test_a_lease_that_is_renewed_stays_and_one_that_is_not_ends(desk: JobDesk, running: JobRecord) -> None:
    assert running.lease is not None
    desk.clock.now += LEASE_S - 1
    assert desk.claims.renew({running.id: running.lease}, LEASE_S).lost == frozenset()
    desk.clock.now += LEASE_S - 1
    assert desk.sweep() == 0
    desk.clock.now += 2
    assert desk.sweep() == 1
    assert desk.state(running.id) is JobState.QUEUED
    assert desk.claims.renew({running.id: running.lease}, LEASE_S).lost == {running.id}


def test_of_a_runner_whose_lease_is_over_nothing_counts(desk: JobDesk, running: JobRecord) -> None:
    desk.clock.now += LEASE_S + 1
    desk.sweep()
    (again,) = desk.claim("a", 1)
    assert again.attempts == 2
    assert running.lease is not None
    assert not desk.publish(running)
    assert not desk.claims.give_back(running.id, running.lease, NOW_S)
    assert not desk.claims.note_progress([JobNote(running.id, running.lease, Progress(0.5, "", PICTURE))])
    assert desk.jobs.preview(running.id) is None
    assert desk.state(running.id) is JobState.RUNNING
    assert desk.publish(again)


def test_a_lease_from_before_the_clock_was_set_back_is_over(desk: JobDesk, running: JobRecord) -> None:
    desk.clock.now -= 500
    assert desk.sweep() == 1
    assert desk.state(running.id) is JobState.QUEUED


def test_a_job_that_is_given_back_is_queued_again(desk: JobDesk, running: JobRecord) -> None:
    assert running.lease is not None
    assert desk.claims.give_back(running.id, running.lease, NOW_S + 5)
    assert desk.claim("a", 1) == ()
    (second,) = desk.claim("a", 1, now_s=NOW_S + 5)
    assert second.attempts == 2
    assert second.lease is not None
    assert desk.claims.give_back(second.id, second.lease, NOW_S, counts=False)
    (third,) = desk.claim("a", 1)
    assert third.attempts == 2


def test_who_runs_a_job_learns_that_it_is_to_end(desk: JobDesk, running: JobRecord) -> None:
    assert running.lease is not None
    desk.jobs.cancel(running.id, NOW_S, KEPT_S)
    assert desk.claims.renew({running.id: running.lease}, LEASE_S).cancelling == {running.id}
    assert desk.publish(running, JobOutcome(JobState.CANCELLED))


def test_a_job_that_was_to_end_is_not_begun_again(desk: JobDesk, running: JobRecord) -> None:
    desk.jobs.cancel(running.id, NOW_S, KEPT_S)
    desk.clock.now += LEASE_S + 1
    desk.sweep()
    assert desk.state(running.id) is JobState.CANCELLED


def test_progress_is_noted(desk: JobDesk, running: JobRecord) -> None:
    assert running.lease is not None
    note = JobNote(running.id, running.lease, Progress(0.25, "step 5 of 20"))
    assert desk.claims.note_progress([note]) == {running.id}
    job = desk.jobs.get(running.id)
    assert (job.progress, job.progress_text, job.previews) == (0.25, "step 5 of 20", 0)
    stranger = replace(note, lease=replace(running.lease, process="b"))
    assert desk.claims.note_progress([stranger]) == frozenset()


def test_progress_of_many_jobs_is_noted_in_one_transaction(desk: JobDesk) -> None:
    desk.submit(50)
    jobs = desk.claim("a", 50)
    notes = [JobNote(job.id, job.lease, Progress(0.5)) for job in jobs if job.lease is not None]
    assert len(desk.claims.note_progress([*notes, replace(notes[0], job_id="gone")])) == 50
    assert {desk.jobs.get(job.id).progress for job in jobs} == {0.5}


def test_processes_that_claim_at_once_share_the_jobs(
    desk: JobDesk, state_dir: Path, any_address: StoreAddress | None
) -> None:
    for tenant in ("x", "y", "z"):
        desk.submit(40, tenant)
    found: dict[str, list[str]] = {name: [] for name in "abcd"}
    errors: list[BaseException] = []
    together = threading.Barrier(len(found))

    def work(process: str) -> None:
        try:
            with Store.open(state_dir, address=any_address) as store:
                own = JobDesk(store, desk.clock)
                together.wait()
                for _ in range(1000):
                    if errors or not own.jobs.count().get(JobState.QUEUED, 0):
                        break
                    for job in own.claim(process, 3):
                        found[process].append(job.id)
                        assert own.publish(job)
        except BaseException as error:
            together.abort()
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    done = [job for jobs in found.values() for job in jobs]
    assert len(done) == len(set(done)) == 120
    assert desk.jobs.count() == {JobState.SUCCEEDED: 120}


def test_what_is_looked_for_in_vain_takes_no_lock(
    desk: JobDesk, running: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job runs and one waits, and each has time left. Every process looks every few seconds."""
    desk.submit(1, deadline_s=NOW_S + 10)
    outbox = desk.store.webhooks
    for name in ("write", "write_concurrently"):
        monkeypatch.setattr(type(desk.store.database), name, None)
    assert desk.sweep() == 0
    assert desk.claims.waiting(NOW_S) == {"m": 1}
    assert outbox.claim(DeliveryClaim(10, LEASE_S, 5, 5), NOW_S) == ()


def test_a_lease_of_a_clock_that_was_set_back_is_swept(desk: JobDesk, running: JobRecord) -> None:
    desk.clock.now -= 1
    assert desk.sweep() == 1
    assert desk.state(running.id) is JobState.QUEUED
