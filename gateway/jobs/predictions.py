"""When jobs and batches will be done. Plain estimates from what is predicted of each job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.jobs import JobRecord, JobState
from gateway.storage.jobs import QueuedWork

LEAST_PROGRESS = 0.02
"""Of a job that runs: below it, how fast it gets on says nothing yet."""


def running_until_s(job: JobRecord, now_s: float) -> float | None:
    """When a job that runs will be done: by its progress, where it tells any, else by what was predicted.
    None for other jobs, and where nothing is known."""
    if job.state is not JobState.RUNNING or job.started_s is None:
        return None
    took_s = max(0.0, now_s - job.started_s)
    if job.progress is not None and job.progress >= LEAST_PROGRESS:
        return job.started_s + max(took_s, took_s / min(job.progress, 1.0))
    if job.new.predicted_s is None:
        return None
    return max(now_s, job.started_s + job.new.predicted_s)


def waiting_until_s(
    jobs: Sequence[JobRecord], work: QueuedWork, slots: int, now_s: float
) -> dict[str, float]:
    """When jobs of one model that wait will be done, by id. ``slots`` run at once; a job waits until what is
    before it leaves one free, and not before its own time."""
    found: dict[str, float] = {}
    for job in jobs:
        before_s = work.before_s.get(job.number)
        if before_s is None or job.new.predicted_s is None:
            continue
        free = work.running < slots and before_s == 0.0
        wait_s = 0.0 if free else (work.running_s + before_s) / slots
        begins_s = max(now_s + wait_s, job.new.not_before_s)
        found[job.id] = begins_s + job.new.predicted_s
    return found


@dataclass(frozen=True, slots=True)
class BatchWork:
    """What is predicted of the requests of a batch, in seconds of one slot."""

    seconds: float = 0.0
    """Of all of them together. One of which nothing is known counts nothing."""
    longest_s: float = 0.0
    """Of the longest."""

    def with_request(self, predicted_s: float | None) -> "BatchWork":
        """The same with one request more."""
        if predicted_s is None:
            return self
        return BatchWork(self.seconds + predicted_s, max(self.longest_s, predicted_s))


def batch_takes_s(
    work: BatchWork,
    tenant: str,
    open_s: Mapping[str, float],
    weights: Mapping[str, float],
    slots: int,
    tenant_slots: int | None = None,
) -> float:
    """How long it takes until all requests of a batch are answered, in seconds.

    ``open_s`` is the work for the model that is there already, by tenant. The tenant's own comes first; while
    it and the batch are worked on, each other tenant gets as much as its weight says, if it has so much
    (fair queueing). ``weights`` are 1 where there is none. ``slots`` run at once, of which one tenant may
    have ``tenant_slots``; None: all.
    """
    own_s = open_s.get(tenant, 0.0) + work.seconds
    per_weight_s = own_s / weights.get(tenant, 1.0)
    others_s = sum(
        min(seconds, per_weight_s * weights.get(other, 1.0))
        for other, seconds in open_s.items()
        if other != tenant
    )
    own_slots = slots if tenant_slots is None else min(slots, tenant_slots)
    return max(work.longest_s, (own_s + others_s) / slots, own_s / own_slots)
