"""A job as a row and as a record, and the counts of its queue, which every change of state keeps right."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, false, or_, select

from gateway.domain.batches import BatchState
from gateway.domain.jobs import (
    TRANSITIONS,
    JobLease,
    JobOutcome,
    JobRecord,
    JobState,
    NewJob,
    NewLease,
    ObjectSlice,
)
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.errors import RecordError

COUNTED = {JobState.QUEUED: "queued", JobState.RUNNING: "running"}
"""The columns of ``job_queues`` in which jobs of a state are counted."""


def values_of(job: NewJob, created_s: float) -> dict[str, Any]:
    """The row of a job that is submitted."""
    return {
        "id": job.id,
        "tenant": job.tenant,
        "key_id": job.key_id,
        "model": job.model,
        "path": job.path,
        "tier": job.tier,
        "state": JobState.QUEUED.value,
        "headers": [list(field) for field in job.headers],
        "body": job.body.name,
        "body_start": job.body.start,
        "body_stop": job.body.stop,
        "group_id": job.group,
        "custom_id": job.custom_id,
        "webhook": job.webhook,
        "deadline_s": job.deadline_s,
        "predicted_s": job.predicted_s,
        "predicted_cost": job.predicted_cost,
        "metadata": None if job.metadata is None else dict(job.metadata),
        "not_before_s": job.not_before_s,
        "created_s": created_s,
        "attempts": 0,
        "cancelling": 0,
        "generation": 0,
    }


def claim_of(lease: NewLease, until_s: float, now_s: float) -> dict[str, Any]:
    """What differs in the row of a job that runs already when it is submitted."""
    return {
        "state": JobState.RUNNING.value,
        "attempts": 1,
        "generation": 1,
        "process": lease.process,
        "incarnation": lease.incarnation,
        "lease_until": until_s,
        "started_s": now_s,
    }


def ending(outcome: JobOutcome, now_s: float, kept_until_s: float) -> dict[str, Any]:
    """What changes in the row of a job that ends."""
    return {
        "state": outcome.state.value,
        "finished_s": now_s,
        "kept_until_s": kept_until_s,
        "status": outcome.status,
        "result_headers": [list(field) for field in outcome.headers] or None,
        "result": outcome.result,
        "result_bytes": outcome.result_bytes,
        "error": None if outcome.error is None else dict(outcome.error),
    }


def record_of(row: Row[Any]) -> JobRecord:
    """Of a row with every column."""
    state = JobState(row.state)
    leased = row.process is not None
    return JobRecord(
        row.number,
        NewJob(
            row.id,
            row.tenant,
            row.key_id,
            row.model,
            row.path,
            ObjectSlice(row.body, row.body_start, row.body_stop),
            _pairs(row.headers),
            row.tier,
            row.deadline_s,
            row.not_before_s,
            row.group_id,
            row.custom_id,
            row.webhook,
            row.predicted_s,
            row.predicted_cost,
            row.metadata,
        ),
        state,
        row.created_s,
        row.attempts,
        JobLease(row.process, row.incarnation, row.generation) if leased else None,
        bool(row.cancelling),
        row.progress,
        row.progress_text,
        row.started_s,
        row.finished_s,
        row.kept_until_s,
        JobOutcome(
            state, row.status, _pairs(row.result_headers or ()), row.result, row.result_bytes or 0, row.error
        )
        if state.is_final
        else None,
        row.previews or 0,
    )


def _pairs(fields: Iterable[Iterable[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in fields)


class QueueCounts:
    """Changes of how many jobs of each model and tenant wait and run, to be written with what caused them."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, str], Counter[str]] = {}

    def move(self, job: Any, before: JobState | None, after: JobState) -> None:
        """``job`` has a model and a tenant. ``before`` is None for one that is new."""
        assert before is None or after in TRANSITIONS[before], (before, after)
        change = self._changes.setdefault((job.model, job.tenant), Counter())
        if before in COUNTED:
            change[COUNTED[before]] -= 1
        if after in COUNTED:
            change[COUNTED[after]] += 1

    def write(self, connection: Connection, database: Database) -> None:
        """Rows in the order of their keys, so that no two transactions wait for each other."""
        add = database.upsert(schema.job_queues, _added)
        for (model, tenant), change in sorted(self._changes.items()):
            if any(change.values()):
                row = {name: change[name] for name in ("queued", "running")}
                virtual = _least_virtual(connection, model)
                connection.execute(add, {"model": model, "tenant": tenant, "virtual": virtual, **row})


def _added(before: ColumnElement[Any], given: ColumnElement[Any]) -> ColumnElement[Any]:
    """Counts are added up. Whose jobs of the model did not wait is beside those that do, as who had none."""
    queues = schema.job_queues.c
    if before is not queues.virtual:
        return before + given
    return case((and_(queues.queued == 0, given > before), given), else_=before)


def _least_virtual(connection: Connection, model: str) -> float:
    """Where a tenant begins none of whose jobs of this model wait: with those that wait, not before them."""
    table = schema.job_queues.c
    waiting = select(table.virtual).where(table.model == model, table.queued > 0).order_by(table.virtual)
    found = connection.execute(waiting.limit(1)).scalar()
    return 0.0 if found is None else float(found)


def in_spans(
    number: ColumnElement[int], numbers: Mapping[str, int], spans: Sequence[tuple[str, str | None]]
) -> ColumnElement[bool]:
    """Whether ``number`` is from that of the first id of one of ``spans`` to that of its last. Ids that are
    not in ``numbers`` do not count: without a last one a span has no end, without a first one it is empty."""
    within = [
        and_(number >= numbers[first], number <= numbers[last])
        if last is not None and last in numbers
        else number >= numbers[first]
        for first, last in spans
        if first in numbers
    ]
    return or_(*within) if within else false()


def refuse_line_of_ending_batch(connection: Connection, job: JobRecord) -> None:
    """The lines of such a batch are just written into its files, and one that runs again would be in none.
    Any other batch does not end before the transaction does. Raises RecordError."""
    if job.new.group is None:
        return
    table = schema.batches.c
    query = select(table.state).where(table.id == job.new.group).with_for_update()
    if connection.execute(query).scalar() in (BatchState.FINALIZING.value, BatchState.CANCELLING.value):
        raise RecordError(f"job {job.id} is of a batch that is just ending: try it again once that has ended")


def conditions_of(
    tenant: str | None, group: str | None, states: Collection[JobState] = ()
) -> list[ColumnElement[bool]]:
    """Those of a tenant, of a group (the empty text: of none), in one of these states."""
    table = schema.jobs.c
    found = []
    if tenant is not None:
        found.append(table.tenant == tenant)
    if group is not None:
        found.append(table.group_id == group if group else table.group_id.is_(None))
    if states:
        found.append(table.state.in_([state.value for state in states]))
    return found
