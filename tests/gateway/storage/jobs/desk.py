"""Does with jobs what clients and runners do, with few words."""

from typing import Any, Protocol

from sqlalchemy import func, select

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.storage import Store, schema
from gateway.storage.jobs import JobBounds, JobClaim, Submission

NOW_S = 1_800_000_000.0
KEPT_S = NOW_S + 86_400
LEASE_S = 30.0
DONE = JobOutcome(JobState.SUCCEEDED, 200, (("content-type", "application/json"),), "jobs/x/result", 12)


class Clock(Protocol):
    now: float


class JobDesk:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.jobs, self.claims = store.jobs, store.job_claims
        self._made = 0

    def new(self, tenant: str = "t", model: str = "m", **given: Any) -> NewJob:
        self._made += 1
        body = ObjectSlice(f"jobs/{self._made}/body")
        return NewJob(f"job-{self._made}", tenant, "k", model, "/v1/chat/completions", body, **given)

    def submit(self, number: int, tenant: str = "t", model: str = "m", **given: Any) -> tuple[str, ...]:
        jobs = tuple(self.new(tenant, model, **given) for _ in range(number))
        return self.jobs.submit(Submission(tenant, jobs), JobBounds(), NOW_S)

    def claim(
        self, process: str, most: int, model: str = "m", now_s: float = NOW_S, **given: Any
    ) -> tuple[JobRecord, ...]:
        return self.claims.claim(JobClaim(process, 1, model, most, LEASE_S, **given), now_s)

    def publish(self, job: JobRecord, outcome: JobOutcome = DONE) -> bool:
        assert job.lease is not None
        return self.claims.publish(job.id, job.lease, outcome, NOW_S + 5, KEPT_S)

    def sweep(self, now_s: float = NOW_S) -> int:
        return self.claims.sweep(now_s, KEPT_S, LEASE_S)

    def state(self, job_id: str) -> JobState:
        return self.jobs.get(job_id).state

    def check_counts(self) -> None:
        table, queues = schema.jobs.c, schema.job_queues.c
        with self.store.database.read() as connection:
            query = select(table.model, table.tenant, table.state, func.count())
            grouped = query.group_by(table.model, table.tenant, table.state)
            counted = {
                (model, tenant, state): number
                for model, tenant, state, number in connection.execute(grouped)
                if state in ("queued", "running")
            }
            noted: dict[tuple[str, str, str], int] = {}
            for row in connection.execute(select(queues.model, queues.tenant, queues.queued, queues.running)):
                noted[(row.model, row.tenant, "queued")] = row.queued
                noted[(row.model, row.tenant, "running")] = row.running
        assert {key: number for key, number in noted.items() if number} == counted
