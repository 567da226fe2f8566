"""Whatever processes do with jobs, and wherever they die, each job ends with one result."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.storage import Store
from tests.gateway.storage.jobs.conftest import StandingClock
from tests.gateway.storage.jobs.desk import KEPT_S, LEASE_S, NOW_S, JobDesk

_processes = st.sampled_from(("a", "b", "c"))


class JobMachine(RuleBasedStateMachine):
    """``held`` is what processes believe to have: some of it is another's by now, or has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.store = Store.open(Path(self._directory.name))
        self.clock = StandingClock()
        database: Any = self.store.database
        database.interval_s = lambda connection: self.clock(database, connection)
        self.desk = JobDesk(self.store, self.clock)
        self.ids: list[str] = []
        self.held: list[JobRecord] = []
        self.results: dict[str, str] = {}
        self.to_end: set[str] = set()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.store.close()
            self._directory.cleanup()

    def settle(self) -> None:
        """Everybody dies, and one who is well does the rest."""
        for _ in range(2 * len(self.ids) + 2):
            self.clock.now += LEASE_S + 1
            self.desk.sweep()
            for job in (*self.desk.claim("z", 100), *self.desk.claim("z", 100, "n")):
                self.publish(job)
        for job_id in self.ids:
            job = self.desk.jobs.get(job_id)
            assert job.state.is_final, job
            assert job.outcome is not None
            assert job.outcome.result == self.results.get(job_id), "what was published first is the result"
            assert (job.state is JobState.CANCELLED) == (job_id not in self.results)
        self.desk.check_counts()

    def publish(self, job: JobRecord) -> bool:
        assert job.lease is not None
        result = f"jobs/{job.id}/result/{job.lease.generation}"
        published = self.desk.publish(job, JobOutcome(JobState.SUCCEEDED, 200, (), result, 1))
        if published:
            assert job.id not in self.results, "published twice"
            self.results[job.id] = result
        return published

    def pick(self, number: int) -> JobRecord:
        return self.held[number % len(self.held)]

    @rule(tenant=st.sampled_from("tu"), model=st.sampled_from("mn"), number=st.integers(1, 4))
    def submit(self, tenant: str, model: str, number: int) -> None:
        self.ids += self.desk.submit(number, tenant, model)

    @rule(process=_processes, model=st.sampled_from("mn"), most=st.integers(1, 4))
    def claim(self, process: str, model: str, most: int) -> None:
        for job in self.desk.claim(process, most, model):
            assert job.id not in self.results
            self.held.append(job)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 100), forgets=st.booleans())
    def end(self, number: int, forgets: bool) -> None:
        job = self.pick(number)
        before = self.desk.jobs.get(job.id)
        ours = before.state is JobState.RUNNING and before.lease == job.lease
        assert self.publish(job) == ours
        if forgets:
            self.held.remove(job)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 100), counts=st.booleans())
    def give_back(self, number: int, counts: bool) -> None:
        job = self.pick(number)
        assert job.lease is not None
        before = self.desk.jobs.get(job.id)
        ours = before.state is JobState.RUNNING and before.lease == job.lease
        assert self.desk.claims.give_back(job.id, job.lease, NOW_S, counts=counts) == ours

    @precondition(lambda self: self.held)
    @rule(numbers=st.lists(st.integers(0, 100), min_size=1, max_size=4))
    def renew(self, numbers: list[int]) -> None:
        leases = {job.id: job.lease for job in map(self.pick, numbers) if job.lease is not None}
        lost = self.desk.claims.renew(leases, LEASE_S).lost
        for job_id, lease in leases.items():
            now = self.desk.jobs.get(job_id)
            assert (job_id in lost) == (now.state is not JobState.RUNNING or now.lease != lease)

    @precondition(lambda self: self.ids)
    @rule(number=st.integers(0, 100))
    def cancel(self, number: int) -> None:
        job_id = self.ids[number % len(self.ids)]
        self.desk.jobs.cancel(job_id, NOW_S, KEPT_S)

    @rule(seconds=st.sampled_from((1.0, LEASE_S / 2, LEASE_S + 1)))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def sweep(self) -> None:
        self.desk.sweep()

    @rule(process=_processes, incarnation=st.integers(2, 3))
    def start_anew(self, process: str, incarnation: int) -> None:
        self.desk.claims.end_leases_of(process, incarnation)

    @invariant()
    def counts_are_right(self) -> None:
        self.desk.check_counts()


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)
