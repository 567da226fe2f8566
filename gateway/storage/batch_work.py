"""What is still to be done for jobs and batches, in predicted seconds."""

from sqlalchemy import Connection, case, func, select

from gateway.domain.batches import BatchState
from gateway.domain.jobs import FINAL, JobState
from gateway.storage import schema
from gateway.storage.jobs.store import UNPREDICTED_S


def open_jobs(connection: Connection, model: str, but: str, now_s: float) -> list[tuple[str, float]]:
    """By tenant, in predicted seconds."""
    jobs = schema.jobs.c
    seconds = func.coalesce(jobs.predicted_s, UNPREDICTED_S)
    left = seconds - (now_s - func.coalesce(jobs.started_s, now_s))
    runs = jobs.state == JobState.RUNNING.value
    counted = case((runs, case((left > 0, left), else_=0.0)), else_=seconds)
    here = (
        jobs.model == model,
        jobs.state.in_([state.value for state in JobState if state not in FINAL]),
        func.coalesce(jobs.group_id, "") != but,
    )
    query = select(jobs.tenant, func.sum(counted)).where(*here).group_by(jobs.tenant)
    return [(tenant, float(total)) for tenant, total in connection.execute(query)]


def lines_to_submit(connection: Connection, model: str, but: str) -> list[tuple[str, float]]:
    """Of batches whose lines are becoming jobs, by tenant, in predicted seconds."""
    jobs, batches = schema.jobs.c, schema.batches.c
    mean = select(func.avg(jobs.predicted_s)).where(jobs.group_id == batches.id).scalar_subquery()
    lines = batches.total - batches.submitted
    here = (
        batches.model == model,
        batches.state == BatchState.IN_PROGRESS.value,
        lines > 0,
        batches.id != but,
    )
    query = select(batches.tenant, lines * func.coalesce(mean, UNPREDICTED_S)).where(*here)
    return [(tenant, float(seconds)) for tenant, seconds in connection.execute(query)]
