"""Jobs over HTTP with a store and objects behind them, and a runner's acts in few words."""

import time
from collections.abc import Callable
from pathlib import Path

from gateway.api.jobs.pages import JobAccess
from gateway.domain.errors import BadRequest
from gateway.domain.jobs import JobEstimate, JobOutcome, JobRecord, JobState
from gateway.domain.request import Request
from gateway.jobs.object_names import result_name
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.service import JobService
from gateway.jobs.watch import JobWatch
from gateway.pipeline.job_requests import JobRequestReader
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, JobClaim
from gateway.storage.objects import ObjectStore


class TwoSeconds:
    """Every request takes two seconds and costs a half; ``slots`` run at once."""

    def __init__(self) -> None:
        self.running = 1

    def estimate(self, request: Request) -> JobEstimate:
        return JobEstimate(2.0, 0.5)

    def slots(self, model: str) -> int:
        return self.running


def job_access(
    store: Store, directory: Path, *, queued: int = 2000, wall: Callable[[], float] = time.time
) -> JobAccess:
    objects = ObjectOpener(lambda: ObjectStore.in_directory(directory))
    service = JobService(
        store.jobs, objects, JobRequestReader(lambda: 1.0), TwoSeconds(), JobBounds(queued), wall
    )
    watch = JobWatch(store.jobs.get_many, interval_s=0.01)
    return JobAccess(service, OutputReader(objects), watch, accept_webhook)


async def accept_webhook(value: object, tenant: str) -> str | None:
    """All but those at ``refused.example``; without one there is the operator's."""
    if value is None:
        return "https://operator.example/hook"
    if "refused.example" in str(value):
        raise BadRequest("Not there.", param="webhook", code="webhook_refused")
    return str(value)


class JobDoer:
    """Does what a runner does."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self.objects = ObjectStore.in_directory(directory)

    def claim(self, model: str = "m") -> JobRecord:
        (job,) = self.store.job_claims.claim(JobClaim("p", 1, model, 1, 30.0), time.time())
        return job

    async def answer(
        self,
        job: JobRecord,
        body: bytes = b'{"ok":true}',
        status: int = 200,
        content_type: str = "application/json",
    ) -> None:
        """End it with an engine's answer."""
        assert job.lease is not None
        name = result_name(job.id, 1, job.lease.generation)
        await self.objects.put_bytes(name, body)
        state = JobState.SUCCEEDED if status < 400 else JobState.FAILED
        headers = (("content-type", content_type), ("content-length", str(len(body))), ("x-engine", "e"))
        self.end(job, JobOutcome(state, status, headers, name, len(body)))

    def end(self, job: JobRecord, outcome: JobOutcome) -> None:
        assert job.lease is not None
        now_s = time.time()
        assert self.store.job_claims.publish(job.id, job.lease, outcome, now_s, now_s + 1000)
