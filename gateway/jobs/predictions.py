"""When jobs will be done. Plain estimates from what is predicted of each job; nothing is decided by them."""

from collections.abc import Sequence

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
