"""Tenants whose jobs wait for a part of their budget are asked for no more of them meanwhile."""

from gateway.domain.jobs import JobOutcome, JobState
from gateway.jobs.budget_waits import BudgetWaits
from gateway.jobs.runs import Publish, TryAgain
from tests.support.clock import ManualClock

REFUSED = TryAgain(2.0, counts=False, why="insufficient_quota")
ENDED = Publish(JobOutcome(JobState.SUCCEEDED))


def test_a_tenant_waits_for_as_long_as_the_job_that_was_refused(clock: ManualClock) -> None:
    waits = BudgetWaits(clock)
    waits.note("acme", REFUSED)
    waits.note("other", TryAgain(9.0, counts=False, why="queue_full"))
    assert waits.tenants == {"acme"}
    clock.advance(2.0)
    assert waits.tenants == frozenset()


def test_a_job_of_the_tenant_that_ends_lets_the_others_begin(clock: ManualClock) -> None:
    waits = BudgetWaits(clock)
    for tenant in ("acme", "other"):
        waits.note(tenant, REFUSED)
    waits.note("acme", ENDED)
    waits.note("none", ENDED)
    assert waits.tenants == {"other"}
