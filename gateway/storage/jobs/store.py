"""Jobs as their clients see them: submitted, listed, shown, cancelled, tried again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, and_, case, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.batches import ENDED_BATCHES
from gateway.domain.jobs import FINAL, JobRecord, JobState, NewJob, NewLease
from gateway.domain.queues import QueueOrigin
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.job_notices import JobEvent, JobNotice
from gateway.storage.jobs.cancellation import cancel_some
from gateway.storage.jobs.previews import forget_previews, read_preview
from gateway.storage.jobs.rows import (
    QueueCounts,
    claim_of,
    conditions_of,
    in_spans,
    record_of,
    refuse_line_of_ending_batch,
    values_of,
)
from gateway.storage.queue_jobs import note_origin
from gateway.storage.submissions import OnceKey, forget_made, made_before, note_made
from shared.protocol.progress import Preview

_INSERTED_AT_ONCE = 500

UNPREDICTED_S = 1.0
"""What a job counts for of which nothing is predicted, as in the fair order of claims."""


class TooManyJobs(RecordError):
    """The tenant has as many jobs in the queue as it may."""


class ResultsFull(RecordError):
    """The results of the tenant's jobs have as many bytes as they may."""


@dataclass(frozen=True, slots=True)
class JobBounds:
    """What a tenant may have at the most, of all models together."""

    queued: int = 100_000
    result_bytes: int | None = None
    """Of all results; None: there is no bound. Whoever submits sees to it."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Jobs of one tenant that are submitted together: all of them or none."""

    tenant: str
    jobs: tuple[NewJob, ...]
    key: str | None = None
    """The idempotency key."""
    fingerprint: bytes = b""
    """Of what was asked for, to compare with what came under the same key before."""
    origin: QueueOrigin | None = None
    """The message that the one job was made of."""
    lease: NewLease | None = None
    """Who runs them already; None: they are queued."""

    @property
    def once(self) -> OnceKey | None:
        return None if self.key is None else OnceKey(self.tenant, self.key, self.fingerprint)


_IN_OPEN_BATCH = (
    select(schema.batches.c.number)
    .where(
        schema.batches.c.id == schema.jobs.c.group_id,
        schema.batches.c.state.not_in([state.value for state in ENDED_BATCHES]),
    )
    .exists()
)
"""The results of the job are still to be written into the files of its batch."""


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """Of one model, in predicted seconds."""

    before_s: Mapping[int, float]
    """Of the jobs that wait before a job, by its number; a job that does not wait is left out."""
    running: int
    """Jobs that run."""
    running_s: float
    """What is left of them."""


class JobStore:
    """The jobs. Methods raise StateError when the database fails."""

    _table: Table = schema.jobs

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(
        self, submission: Submission, bounds: JobBounds, now_s: float, full: ResultsFull | None = None
    ) -> tuple[str, ...]:
        """Insert them; their ids. Where the same was submitted with the same idempotency key before, nothing
        is inserted, and the ids are those of then. ``full`` is raised where anything would be inserted.

        Raises TooManyJobs, IdempotencyConflict.
        """
        try:
            with self._database.write_concurrently() as connection:
                return self.submit_in(connection, submission, bounds, now_s, full)
        except IntegrityError:  # the same key at the same moment: it is there now
            with self._database.write_concurrently() as connection:
                return self.submit_in(connection, submission, bounds, now_s, full)

    def submit_in(
        self,
        connection: Connection,
        submission: Submission,
        bounds: JobBounds | None,
        now_s: float,
        full: ResultsFull | None = None,
    ) -> tuple[str, ...]:
        """:meth:`submit` as a part of a transaction. ``bounds``: None where they do not count. Raises
        IntegrityError where another process submits with the same idempotency key just now."""
        ids = tuple(job.id for job in submission.jobs)
        once = submission.once
        if once is not None:
            before = made_before(connection, once)
            if before is not None:
                return before
        if full is not None:
            raise full
        if once is not None:
            note_made(connection, once, ids, now_s)
        waiting = _queued(connection, submission.tenant)
        if bounds is not None and submission.lease is None and waiting + len(ids) > bounds.queued:
            raise TooManyJobs(
                f"{submission.tenant} has {waiting} jobs in the queue and may have {bounds.queued}: wait "
                "until some are done, or cancel some"
            )
        self._insert(connection, submission.jobs, submission.lease, now_s)
        if submission.origin is not None:
            (job_id,) = ids
            note_origin(connection, job_id, submission.origin)
        return ids

    def get(self, job_id: str, tenant: str | None = None) -> JobRecord:
        """``tenant``: only if it is that one's. Raises UnknownRecord."""
        with self._database.read() as connection:
            return self._get(connection, job_id, tenant)

    def get_many(self, ids: Collection[str], tenant: str | None = None) -> dict[str, JobRecord]:
        """Those of the jobs that there are, by id. ``tenant``: only those that are that one's."""
        found: dict[str, JobRecord] = {}
        every = sorted(ids)
        with self._database.read() as connection:
            for at in range(0, len(every), _INSERTED_AT_ONCE):
                some = self._table.c.id.in_(every[at : at + _INSERTED_AT_ONCE])
                query = select(self._table).where(some, *conditions_of(tenant, None))
                found |= {row.id: record_of(row) for row in connection.execute(query)}
        return found

    def kept_bytes(self, tenant: str) -> int:
        """Of the results of a tenant's jobs."""
        table = self._table.c
        query = select(func.sum(table.result_bytes)).where(table.tenant == tenant)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar() or 0)

    def list(
        self,
        *,
        tenant: str | None = None,
        key_id: str | None = None,
        model: str | None = None,
        group: str | None = None,
        prefix: str | None = None,
        states: Collection[JobState] = (),
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> tuple[JobRecord, ...]:
        """In the order of submission. ``group``: the empty text is for those of none. ``prefix``: those whose
        ids begin so. ``after``: those behind the job of this id. Raises UnknownRecord for an ``after`` that
        is none of these."""
        number = self._table.c.number
        with self._database.read() as connection:
            conditions = conditions_of(tenant, group, states)
            if key_id is not None:
                conditions.append(self._table.c.key_id == key_id)
            if model is not None:
                conditions.append(self._table.c.model == model)
            if prefix is not None:
                conditions.append(self._table.c.id.startswith(prefix, autoescape=True))
            if after is not None:
                at = self._get(connection, after, tenant).number
                conditions.append(number < at if newest_first else number > at)
            query = select(self._table).where(*conditions).limit(limit)
            order = number.desc() if newest_first else number
            return tuple(record_of(row) for row in connection.execute(query.order_by(order)))

    def ended_within(
        self, group: str, spans: Sequence[tuple[str, str | None]], after: int, limit: int
    ) -> tuple[JobRecord, ...]:
        """Jobs of a group that have ended, in the order of submission. ``spans``: from the job of one id to
        that of another, or to the end where there is none of that id; where there is none of the first id
        there is nothing. ``after``: only those with higher numbers."""
        table = self._table.c
        ids = {job_id for span in spans for job_id in span if job_id is not None}
        with self._database.read() as connection:
            found = connection.execute(select(table.id, table.number).where(table.id.in_(ids)))
            numbers = {row.id: row.number for row in found}
            within = in_spans(table.number, numbers, spans)
            here = (*conditions_of(None, group, FINAL), table.number > after, within)
            query = select(self._table).where(*here).order_by(table.number).limit(limit)
            return tuple(record_of(row) for row in connection.execute(query))

    def count(self, *, tenant: str | None = None, group: str | None = None) -> dict[JobState, int]:
        """How many there are of each state; states without any are left out."""
        state = self._table.c.state
        query = select(state, func.count()).where(*conditions_of(tenant, group)).group_by(state)
        with self._database.read() as connection:
            return {JobState(name): int(number) for name, number in connection.execute(query)}

    def ahead(self, model: str, numbers: Collection[int], now_s: float) -> QueuedWork:
        """What is to be done for a model before the jobs of these numbers, which wait."""
        table = self._table.c
        seconds = func.coalesce(table.predicted_s, UNPREDICTED_S)
        here = (table.model == model, table.state == JobState.QUEUED.value)
        # one sum up to the first of them; a running sum over all that waits costs a dozen times as much
        before = select(func.coalesce(func.sum(seconds), 0.0)).where(*here, table.number < min(numbers))
        sums = select(
            table.number,
            (func.sum(seconds).over(order_by=table.number) - seconds).label("seconds"),
        ).where(*here, table.number.between(min(numbers), max(numbers)))
        queue = sums.subquery()
        left = seconds - (now_s - func.coalesce(table.started_s, now_s))
        running = select(func.count(), func.coalesce(func.sum(case((left > 0, left), else_=0.0)), 0.0)).where(
            table.model == model, table.state == JobState.RUNNING.value
        )
        with self._database.read() as connection:
            before_s = float(connection.execute(before).scalar_one())
            query = select(queue.c.number, queue.c.seconds).where(queue.c.number.in_(numbers))
            found = {int(row.number): before_s + float(row.seconds) for row in connection.execute(query)}
            count, running_s = connection.execute(running).one()
            return QueuedWork(found, int(count), float(running_s))

    def cancel(self, job_id: str, now_s: float, kept_until_s: float, tenant: str | None = None) -> JobRecord:
        """A job that waits is cancelled; of one that runs it is noted, and whoever runs it ends it. Nothing
        changes where it has ended. ``tenant``: who does it; None: an operator, whose act is noted. Raises
        UnknownRecord."""
        with self._database.write_concurrently() as connection:
            job = self._get(connection, job_id, tenant, lock=True)
            if tenant is None and not job.state.is_final:
                note_act(connection, "job.cancel", id=job.id, tenant=job.new.tenant)
            here = (self._table.c.number == job.number,)
            notice = JobNotice(JobEvent.CANCELLED, job_id)
            cancel_some(connection, self._database, here, now_s, kept_until_s, notice)
            return self._get(connection, job_id, tenant)

    def cancel_group(self, group: str, now_s: float, kept_until_s: float) -> None:
        """Cancel all jobs of a group that have not ended, some of them in each transaction: what fails can be
        done again."""
        group_jobs, notice = conditions_of(None, group), JobNotice(JobEvent.GROUP_CANCELLED, group)
        after: int | None = 0
        while after is not None:
            which = (*group_jobs, self._table.c.number > after)
            with self._database.write_concurrently() as connection:
                after = cancel_some(connection, self._database, which, now_s, kept_until_s, notice)

    def retry(self, job_id: str, tenant: str | None = None) -> JobRecord:
        """Queue a failed job again, with all its attempts. ``tenant``: who does it; None: an operator, whose
        act is noted. Raises UnknownRecord; RecordError where it has not failed or its batch is ending."""
        with self._database.write_concurrently() as connection:
            job = self._get(connection, job_id, tenant, lock=True)
            if job.state is not JobState.FAILED:
                raise RecordError(f"job {job_id} is {job.state}: only a failed job can be tried again")
            refuse_line_of_ending_batch(connection, job)
            again = dict.fromkeys(("finished_s", "kept_until_s", "status", "result_headers", "error"))
            self._change(
                connection,
                [job.number],
                state=JobState.QUEUED.value,
                attempts=0,
                cancelling=0,
                not_before_s=0.0,
                result=None,
                result_bytes=None,
                **again,
            )
            if tenant is None:
                note_act(connection, "job.retry", id=job.id, tenant=job.new.tenant)
            counts = QueueCounts()
            counts.move(job.new, job.state, JobState.QUEUED)
            counts.write(connection, self._database)
            self._database.tell(connection, JobNotice(JobEvent.QUEUED))
            return self._get(connection, job_id, tenant)

    def remove(self, job_id: str, tenant: str) -> JobRecord:
        """Take away a job that has ended: as it was, for whoever removes its objects. Raises UnknownRecord;
        RecordError where it has not ended."""
        with self._database.write_concurrently() as connection:
            job = self._get(connection, job_id, tenant, lock=True)
            if not job.state.is_final:
                raise RecordError(f"job {job_id} is {job.state}: only one that has ended can be removed")
            connection.execute(delete(self._table).where(self._table.c.number == job.number))
            forget_previews(connection, [job.id] if job.previews else ())
            return job

    def remove_kept(self, now_s: float, most: int) -> tuple[JobRecord, ...]:
        """Take away jobs whose time is over: as they were, for whoever removes their objects."""
        table = self._table.c
        with self._database.write_concurrently() as connection:
            over = and_(table.finished_s.is_not(None), table.kept_until_s <= now_s)
            query = select(self._table).where(over, ~_IN_OPEN_BATCH).order_by(table.kept_until_s).limit(most)
            locked = query.with_for_update(skip_locked=True)
            found = tuple(record_of(row) for row in connection.execute(locked))
            numbers = [job.number for job in found]
            connection.execute(delete(self._table).where(table.number.in_(numbers)))
            forget_previews(connection, [job.id for job in found if job.previews])
            return found

    def preview(self, job_id: str) -> Preview | None:
        """What there is so far of a job's answer, if its engine has shown it."""
        with self._database.read() as connection:
            return read_preview(connection, job_id)

    def forget_submissions(self, before_s: float) -> None:
        """Idempotency keys of before a time mean nothing any more."""
        with self._database.write_concurrently() as connection:
            forget_made(connection, before_s)

    def _insert(
        self, connection: Connection, jobs: Sequence[NewJob], lease: NewLease | None, now_s: float
    ) -> None:
        counts = QueueCounts()
        state = JobState.QUEUED if lease is None else JobState.RUNNING
        claimed: Mapping[str, Any] = {}
        if lease is not None:
            claimed = claim_of(lease, self._database.interval_s(connection) + lease.lease_s, now_s)
        for at in range(0, len(jobs), _INSERTED_AT_ONCE):
            some = jobs[at : at + _INSERTED_AT_ONCE]
            connection.execute(insert(self._table), [{**values_of(job, now_s), **claimed} for job in some])
            for job in some:
                counts.move(job, None, state)
        counts.write(connection, self._database)
        if jobs and lease is None:
            self._database.tell(connection, JobNotice(JobEvent.QUEUED))

    def _change(self, connection: Connection, numbers: Sequence[int], **values: Any) -> None:
        for at in range(0, len(numbers), _INSERTED_AT_ONCE):
            some = self._table.c.number.in_(numbers[at : at + _INSERTED_AT_ONCE])
            connection.execute(update(self._table).where(some).values(values))

    def _get(
        self, connection: Connection, job_id: str, tenant: str | None, *, lock: bool = False
    ) -> JobRecord:
        conditions = [self._table.c.id == job_id]
        if tenant is not None:
            conditions.append(self._table.c.tenant == tenant)
        query = select(self._table).where(*conditions)
        row = connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            raise UnknownRecord(f"there is no job {job_id}")
        return record_of(row)


def _queued(connection: Connection, tenant: str) -> int:
    table = schema.job_queues.c
    found = connection.execute(select(func.sum(table.queued)).where(table.tenant == tenant)).scalar()
    return int(found or 0)
