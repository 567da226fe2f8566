"""Batches in the store. Whoever works on one has a lease; what it writes counts only while nobody else has
taken the batch up since. Every change of state is one transaction with what belongs to it: the jobs of the
lines that are submitted, the files that are published, the event that tells of the end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, insert, not_, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.batches import (
    CANCELLABLE,
    ENDED_BATCHES,
    TRANSITIONS,
    BatchCounts,
    BatchError,
    BatchLease,
    BatchRecord,
    BatchState,
    NewBatch,
)
from gateway.domain.files import FilePurpose
from gateway.domain.jobs import FINAL, JobState, NewJob
from gateway.domain.webhooks import WebhookEvent
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.batch_work import lines_to_submit, open_jobs
from gateway.storage.database import Database
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.files import InTransaction
from gateway.storage.jobs import JobBounds, JobStore, Submission
from gateway.storage.submissions import OnceKey, made_before, note_made
from gateway.storage.webhooks.events import note_events

_TABLE = schema.batches


class UnfitFile(RecordError):
    """A batch cannot be made of this file."""


class BatchEnded(RecordError):
    """The batch is no longer to be cancelled."""


class BatchLost(Exception):
    """Another process has taken the batch up, or it has come to another state: nothing was written."""


class BatchStore:
    """The rows. Methods raise StateError when the database fails. Times are seconds since 1970."""

    def __init__(self, database: Database, jobs: JobStore) -> None:
        self._database = database
        self._jobs = jobs

    # --- For clients ---

    def create(self, batch: NewBatch, once: OnceKey | None = None) -> BatchRecord:
        """From now on the bytes of its file stay until it has ended, even if that is deleted. Where the same
        was asked for with the same idempotency key before, it is the batch of then. Raises UnknownRecord,
        UnfitFile, IdempotencyConflict."""
        try:
            return self._create(batch, once)
        except IntegrityError:  # the same key at the same moment: it is there now
            return self._create(batch, once)

    def _create(self, batch: NewBatch, once: OnceKey | None) -> BatchRecord:
        table = schema.files.c
        with self._database.write_concurrently() as connection:
            if once is not None:
                before = made_before(connection, once)
                if before is not None:
                    return _counted(connection, _get(connection, before[0], batch.tenant))
                note_made(connection, once, [batch.id], batch.created_s)
            query = select(table.purpose).where(table.id == batch.input_file_id, table.tenant == batch.tenant)
            purpose = connection.execute(query.where(table.state == "ready").with_for_update()).scalar()
            if purpose is None:
                raise UnknownRecord(f"there is no file {batch.input_file_id}")
            if purpose != FilePurpose.BATCH:
                raise UnfitFile(
                    f"file {batch.input_file_id} is for {purpose}: upload it with the purpose 'batch'"
                )
            connection.execute(insert(_TABLE).values(values_of(batch)))
            return _get(connection, batch.id, batch.tenant)

    def get(self, batch_id: str, tenant: str | None = None) -> BatchRecord:
        """With the counts of now. Raises UnknownRecord."""
        with self._database.read() as connection:
            return _counted(connection, _get(connection, batch_id, tenant))

    def list(
        self,
        tenant: str | None,
        *,
        after: str | None = None,
        limit: int = 20,
        states: Collection[BatchState] = (),
    ) -> tuple[BatchRecord, ...]:
        """The newest first. ``tenant``: None for those of all. Raises UnknownRecord for an ``after`` that is
        none of the tenant's."""
        conditions = [] if tenant is None else [_TABLE.c.tenant == tenant]
        if states:
            conditions.append(_TABLE.c.state.in_([state.value for state in states]))
        with self._database.read() as connection:
            if after is not None:
                conditions.append(_TABLE.c.number < _get(connection, after, tenant).number)
            query = select(_TABLE).where(*conditions).order_by(_TABLE.c.number.desc()).limit(limit)
            found = [_record(row) for row in connection.execute(query)]
            return tuple(_counted(connection, each) for each in found)

    def cancel(self, batch_id: str, tenant: str | None, now_s: float) -> BatchRecord:
        """Lines that have ended stay so. One that is being cancelled, or was, stays as it is. ``tenant``: who
        does it; None: an operator, whose act is noted. Raises UnknownRecord, BatchEnded."""
        with self._database.write_concurrently() as connection:
            batch = _get(connection, batch_id, tenant, lock=True)
            if batch.state in (BatchState.CANCELLING, BatchState.CANCELLED):
                return _counted(connection, batch)
            if batch.state not in CANCELLABLE:
                raise BatchEnded(f"batch {batch_id} is {batch.state} and cannot be cancelled")
            if tenant is None:
                note_act(connection, "batch.cancel", id=batch_id, tenant=batch.new.tenant)
            if batch.state is BatchState.VALIDATING:
                times = {"cancelling_s": now_s}
                self._move(connection, batch, BatchState.CANCELLED, now_s, completed=0, failed=0, **times)
            else:
                self._move(connection, batch, BatchState.CANCELLING, now_s)
            return _counted(connection, _get(connection, batch_id, tenant))

    # --- For whoever works on them ---

    def any_open(self) -> bool:
        """Whether there is one that has not ended."""
        query = select(_TABLE.c.number).where(_open()).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def claim(self, process: str, lease_s: float, most: int, late_s: float = 0.0) -> tuple[BatchRecord, ...]:
        """Batches that nobody works on, the oldest first: the process does from now on. One that only waits
        for its jobs is left out, unless its window ended before ``late_s``."""
        batches = _TABLE.c
        in_progress = and_(batches.state == BatchState.IN_PROGRESS.value, batches.expires_s > late_s)
        waits = and_(in_progress, batches.submitted >= batches.total, _unfinished(batches.id).exists())

        def ready(now: float) -> Select[tuple[int]]:
            # one that ends later than a lease may is of a clock that was set back
            until = batches.lease_until
            free = or_(until.is_(None), until < now, until > now + lease_s)
            return select(batches.number).where(_open(), free, not_(waits)).order_by(batches.number)

        with self._database.read() as connection:  # mostly there is none, and writing waits for the disk
            if connection.execute(ready(self._database.interval_s(connection)).limit(1)).first() is None:
                return ()
        with self._database.write_concurrently() as connection:
            now = self._database.interval_s(connection)
            query = ready(now).limit(most).with_for_update(skip_locked=True)
            ours = batches.number.in_(list(connection.execute(query).scalars()))
            lease = {"process": process, "generation": batches.generation + 1, "lease_until": now + lease_s}
            connection.execute(update(_TABLE).where(ours).values(**lease))
            rows = connection.execute(select(_TABLE).where(ours).order_by(batches.number))
            return tuple(_record(row) for row in rows)

    def end_leases_of(self, process: str) -> int:
        """``process`` was started anew: what it worked on before is to be taken up at once, and nothing that
        its earlier run still writes counts. How many batches that are."""
        theirs = and_(_open(), _TABLE.c.process == process)
        with self._database.write_concurrently() as connection:
            held = and_(theirs, _TABLE.c.lease_until > self._database.interval_s(connection))
            ended = update(_TABLE).where(held)
            return connection.execute(
                ended.values(lease_until=None, generation=_TABLE.c.generation + 1)
            ).rowcount

    def renew(self, batch: BatchRecord, lease_s: float) -> None:
        """Raises BatchLost."""
        with self._database.write_concurrently() as connection:
            self._held(connection, batch)
            until = self._database.interval_s(connection) + lease_s
            connection.execute(update(_TABLE).where(_TABLE.c.id == batch.id).values(lease_until=until))

    def release(self, batch: BatchRecord, rest_s: float) -> None:
        """There is nothing to do for it just now; after so long anybody may take it up."""
        assert batch.lease is not None
        ours = and_(_TABLE.c.id == batch.id, _TABLE.c.generation == batch.lease.generation)
        with self._database.write_concurrently() as connection:
            until = self._database.interval_s(connection) + rest_s
            connection.execute(update(_TABLE).where(ours).values(lease_until=until))

    def open_work(self, model: str, but: str, now_s: float) -> dict[str, float]:
        """What is to be done for a model, in predicted seconds by tenant: what is left of the jobs that wait
        and run, and the lines of batches that are no jobs yet, each as long as the batch's others are on the
        average. ``but`` is the id of a batch that is left out."""
        found: dict[str, float] = {}
        with self._database.read() as connection:
            work = [
                *open_jobs(connection, model, but, now_s),
                *lines_to_submit(connection, model, but),
            ]
        for tenant, seconds in work:
            found[tenant] = found.get(tenant, 0.0) + seconds
        return found

    def waits(self, batch: BatchRecord) -> bool:
        """Whether jobs of it have not ended."""
        with self._database.read() as connection:
            return connection.execute(_unfinished(batch.id).limit(1)).first() is not None

    def fail(self, batch: BatchRecord, errors: Sequence[BatchError], now_s: float) -> None:
        """Its file is no good. Raises BatchLost."""
        found = [error.to_dict() for error in errors]
        with self._database.write_concurrently() as connection:
            held = self._held(connection, batch)
            self._move(connection, held, BatchState.FAILED, now_s, errors=found, completed=0, failed=0)

    def begin(self, batch: BatchRecord, total: int, model: str, now_s: float) -> BatchRecord:
        """Its file is good: so many lines are to be submitted. Raises BatchLost."""
        with self._database.write_concurrently() as connection:
            held = self._held(connection, batch)
            self._move(connection, held, BatchState.IN_PROGRESS, now_s, total=total, model=model)
            return _get(connection, batch.id)

    def submit(
        self,
        batch: BatchRecord,
        jobs: Sequence[NewJob],
        read_bytes: int,
        bounds: JobBounds | None,
        lease_s: float,
        now_s: float,
    ) -> BatchRecord:
        """These are the jobs of its next lines, which end at ``read_bytes``: noted together, so that no line
        is left out or becomes two jobs. ``bounds``: None where they do not count. Raises BatchLost,
        TooManyJobs."""
        with self._database.write_concurrently() as connection:
            held = self._held(connection, batch, moved=batch.submitted)
            self._jobs.submit_in(connection, Submission(batch.new.tenant, tuple(jobs)), bounds, now_s)
            values = {
                "submitted": held.submitted + len(jobs),
                "read_bytes": read_bytes,
                "lease_until": self._database.interval_s(connection) + lease_s,
            }
            connection.execute(update(_TABLE).where(_TABLE.c.id == batch.id).values(**values))
            return _get(connection, batch.id)

    def begin_finalizing(self, batch: BatchRecord, now_s: float) -> BatchRecord:
        """Every line has ended. One that is being cancelled stays in that state. Raises BatchLost, also where
        somebody has just had a line tried again."""
        with self._database.write_concurrently() as connection:
            held = self._held(connection, batch)
            if connection.execute(_unfinished(batch.id).limit(1)).first() is not None:
                raise BatchLost(batch.id)
            if held.state is BatchState.IN_PROGRESS:
                self._move(connection, held, BatchState.FINALIZING, now_s)
            return _get(connection, batch.id)

    def finish(
        self,
        batch: BatchRecord,
        state: BatchState,
        counts: BatchCounts,
        usage: Mapping[str, object],
        files: tuple[str | None, str | None],
        publish: InTransaction,
        now_s: float,
    ) -> None:
        """It has ended so. ``files``: the ids of the one of answers and the one of errors, which ``publish``
        makes in the same transaction. Raises BatchLost, and what ``publish`` raises."""
        output, errors = files
        with self._database.write_concurrently() as connection:
            held = self._held(connection, batch)
            publish(connection)
            self._move(
                connection,
                held,
                state,
                now_s,
                completed=counts.completed,
                failed=counts.failed,
                usage=dict(usage),
                output_file_id=output,
                error_file_id=errors,
            )

    def _held(self, connection: Connection, batch: BatchRecord, moved: int | None = None) -> BatchRecord:
        """The batch as it is now, locked. Raises BatchLost where it is another process's, or its state is one
        that ``batch`` did not have; cancelling is none of those."""
        assert batch.lease is not None
        found = _get(connection, batch.id, lock=True)
        if found.lease != batch.lease or found.has_ended or moved not in (None, found.submitted):
            raise BatchLost(batch.id)
        return found

    def _move(
        self, connection: Connection, batch: BatchRecord, state: BatchState, now_s: float, **values: Any
    ) -> None:
        if state not in TRANSITIONS[batch.state]:
            raise BatchLost(batch.id)
        changes = {**values, "state": state.value, f"{state.value}_s": now_s}
        connection.execute(update(_TABLE).where(_TABLE.c.id == batch.id).values(**changes))
        new = batch.new
        if state in ENDED_BATCHES and new.webhook is not None:
            note_events(
                connection, [WebhookEvent(new.tenant, new.id, f"batch.{state.value}", new.webhook)], now_s
            )


def _unfinished(batch_id: Any) -> Select[tuple[int]]:
    """Its jobs that have not ended."""
    jobs = schema.jobs.c
    return select(jobs.number).where(jobs.group_id == batch_id, jobs.finished_s.is_(None))


def _open() -> Any:
    return _TABLE.c.state.not_in([state.value for state in ENDED_BATCHES])


def _get(
    connection: Connection, batch_id: str, tenant: str | None = None, *, lock: bool = False
) -> BatchRecord:
    query = select(_TABLE).where(_TABLE.c.id == batch_id)
    if tenant is not None:
        query = query.where(_TABLE.c.tenant == tenant)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise UnknownRecord(f"there is no batch {batch_id}")
    return _record(row)


def _counted(connection: Connection, batch: BatchRecord) -> BatchRecord:
    """With the counts of its jobs as they are."""
    if batch.has_ended:
        return batch
    jobs = schema.jobs.c
    query = select(jobs.state, func.count()).where(jobs.group_id == batch.id).group_by(jobs.state)
    states = {JobState(state): int(number) for state, number in connection.execute(query)}
    done = states.get(JobState.SUCCEEDED, 0)
    failed = sum(states.get(state, 0) for state in FINAL) - done
    return replace(batch, counts=BatchCounts(batch.total, done, failed))


def values_of(batch: NewBatch) -> dict[str, Any]:
    """The row of one that is made."""
    return {
        "id": batch.id,
        "tenant": batch.tenant,
        "key_id": batch.key_id,
        "state": BatchState.VALIDATING.value,
        "endpoint": batch.endpoint,
        "completion_window": batch.completion_window,
        "input_file_id": batch.input_file_id,
        "metadata": None if batch.metadata is None else dict(batch.metadata),
        "principal": dict(batch.principal),
        "output_kept_s": batch.output_kept_s,
        "webhook": batch.webhook,
        "created_s": batch.created_s,
        "expires_s": batch.expires_s,
        **dict.fromkeys(("total", "submitted", "read_bytes", "generation"), 0),
    }


_TIMES = tuple(state for state in BatchState if state is not BatchState.VALIDATING)


def _record(row: Row[Any]) -> BatchRecord:
    values = row._mapping
    new = NewBatch(
        row.id,
        row.tenant,
        row.key_id,
        row.principal,
        row.endpoint,
        row.input_file_id,
        row.completion_window,
        row.created_s,
        row.expires_s,
        values["metadata"],
        row.webhook,
        row.output_kept_s,
    )
    times: dict[BatchState, float] = {
        state: values[f"{state.value}_s"] for state in _TIMES if values[f"{state.value}_s"] is not None
    }
    return BatchRecord(
        row.number,
        new,
        BatchState(row.state),
        row.total,
        row.submitted,
        row.read_bytes,
        row.model,
        tuple(row.errors or ()),
        BatchCounts(row.total, row.completed or 0, row.failed or 0),
        row.usage,
        row.output_file_id,
        row.error_file_id,
        times,
        None if row.process is None else BatchLease(row.process, row.generation),
    )
