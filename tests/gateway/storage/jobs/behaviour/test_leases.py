"""What runners ask of the store beside claims: what waits, what is to end, what an earlier process left."""

from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.storage.jobs import JobClaim
from tests.gateway.storage.jobs.desk import KEPT_S, LEASE_S, NOW_S, JobDesk


def test_models_wait_whose_jobs_may_begin(desk: JobDesk) -> None:
    assert desk.claims.waiting(NOW_S) == {}
    desk.submit(2, "t", "m")
    desk.submit(1, "u", "m", not_before_s=NOW_S + 5)
    desk.submit(1, "t", "later", not_before_s=NOW_S + 5)
    desk.submit(1, "t", "taken")
    desk.claim("a", 1, "taken")
    assert desk.claims.waiting(NOW_S) == {"m": 2}
    assert desk.claims.waiting(NOW_S + 5) == {"m": 3, "later": 1}
    desk.claim("a", 2)
    assert desk.claims.waiting(NOW_S) == {}


def test_a_process_sees_which_of_its_jobs_are_to_end(desk: JobDesk) -> None:
    ids = desk.submit(4)
    desk.claim("a", 2)
    desk.claim("b", 1)
    for job_id in ids:
        desk.jobs.cancel(job_id, NOW_S, KEPT_S)
    assert desk.claims.cancelling("a", 1) == set(ids[:2])
    assert desk.claims.cancelling("b", 1) == {ids[2]}
    assert desk.claims.cancelling("a", 2) == frozenset()
    assert desk.state(ids[3]) is JobState.CANCELLED, "it waited"


def test_of_a_process_that_was_started_anew_the_earlier_one_counts_no_more(
    desk: JobDesk, running: JobRecord
) -> None:
    assert running.lease is not None
    (other,) = desk.submit(1)
    desk.claim("b", 1)
    assert desk.claims.end_leases_of("a", 2) == 1
    assert desk.claims.renew({running.id: running.lease}, LEASE_S).lost == {running.id}
    assert not desk.publish(running)
    assert desk.sweep() == 1
    assert (desk.state(running.id), desk.state(other)) == (JobState.QUEUED, JobState.RUNNING)
    claim = JobClaim("a", 2, "m", 1, LEASE_S)
    (again,) = desk.claims.claim(claim, NOW_S)
    assert (again.id, again.attempts) == (running.id, 2)
    assert desk.claims.end_leases_of("a", 2) == 0, "its own are none of an earlier one's"
    assert desk.publish(again)


def test_a_tenant_has_so_many_running_and_no_more(desk: JobDesk) -> None:
    desk.submit(5, "t", "m")
    desk.submit(5, "t", "n")
    desk.submit(5, "u", "m")
    first = desk.claim("a", 2, tenant_running=3)
    assert [job.new.tenant for job in first] == ["t", "u"]
    assert [job.new.tenant for job in desk.claim("b", 10, "n", tenant_running=3)] == ["t", "t"]
    assert {job.new.tenant for job in desk.claim("a", 10, tenant_running=3)} == {"u"}
    assert desk.claim("a", 10, "n", tenant_running=3) == ()
    assert desk.publish(first[0])
    assert len(desk.claim("a", 10, "n", tenant_running=3)) == 1


def test_a_job_whose_runners_all_vanish_has_failed_after_so_many(desk: JobDesk) -> None:
    (job_id,) = desk.submit(1)
    for _ in range(3):
        assert desk.state(job_id) is JobState.QUEUED
        assert len(desk.claim("a", 1)) == 1
        desk.clock.now += LEASE_S + 1
        assert desk.claims.sweep(NOW_S, KEPT_S, LEASE_S, 3) == 1
    job = desk.jobs.get(job_id)
    assert (job.state, job.attempts) == (JobState.FAILED, 3)
    assert job.outcome is not None
    assert (job.outcome.error or {})["code"] == "lost"


def test_a_run_that_ended_is_not_given_back(desk: JobDesk, running: JobRecord) -> None:
    assert running.lease is not None
    assert desk.publish(running, JobOutcome(JobState.FAILED, 400))
    assert not desk.claims.give_back(running.id, running.lease, NOW_S)
    assert desk.claims.end_leases_of("a", 2) == 0
    assert desk.sweep() == 0
