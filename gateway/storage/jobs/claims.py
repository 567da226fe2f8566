"""Jobs as their runners see them: claimed with a lease, renewed, given back, published.

A lease ends by itself on the store's clock. Each claim has a new generation, and only who still has it may
publish: of a runner that was frozen for an hour nothing counts any more.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Float,
    Row,
    Select,
    and_,
    bindparam,
    func,
    or_,
    select,
    update,
)

from gateway.domain.jobs import JobLease, JobNote, JobOutcome, JobRecord, JobState
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.jobs.previews import forget_previews, note_preview
from gateway.storage.jobs.rows import QueueCounts, ending, record_of
from gateway.storage.webhooks.events import note_job_ends

_SWEPT_AT_ONCE = 500
_LEAST_COST_S = 0.001

LOST = {
    "type": "server_error",
    "code": "lost",
    "message": "Each gateway process that ran the job ended before the job did.",
    "param": None,
}
"""The error of a job whose attempts all ended without a word."""

_JobRow = Row[Any]
"""Of the table of jobs, with some of its columns or all."""


@dataclass(frozen=True, slots=True)
class JobClaim:
    """A process can begin up to ``most`` jobs of a model now."""

    process: str
    incarnation: int
    model: str
    most: int
    lease_s: float
    weights: Mapping[str, float] = field(default_factory=dict)
    """By tenant, as the scheduler's; 1 where there is none."""
    tenant_running: int | None = None
    """So many jobs of a tenant run at once, of all models and in all processes; None: as many as there is
    room for."""
    waiting_tenants: frozenset[str] = frozenset()
    """Of these no job is claimed."""


@dataclass(frozen=True, slots=True)
class RenewedLeases:
    """What became of leases that were to be renewed."""

    lost: frozenset[str]
    """Ids of jobs that are another one's by now, or have ended: their runs are to be given up."""
    cancelling: frozenset[str]
    """Ids of jobs that somebody wants to end; whoever runs them publishes that."""


class JobClaims:
    """Every method raises StateError when the database fails. ``now_s`` is in seconds since 1970."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Asked every few seconds, mostly in vain, so made once: that takes longer than to execute them.

    @cached_property
    def _queued(self) -> Select[Any]:
        queues, jobs = schema.job_queues.c, schema.jobs.c
        ready = select(jobs.number).where(
            jobs.state == JobState.QUEUED.value,
            jobs.model == queues.model,
            jobs.tenant == queues.tenant,
            jobs.not_before_s <= bindparam("now_s"),
        )
        query = select(queues.model, func.sum(queues.queued)).where(queues.queued > 0, ready.exists())
        return query.group_by(queues.model)

    @cached_property
    def _any_lost(self) -> Select[tuple[int]]:
        lost = _is_lost(bindparam("now", type_=Float), bindparam("latest", type_=Float))
        return select(schema.jobs.c.number).where(lost).limit(1)

    @cached_property
    def _any_late(self) -> Select[tuple[int]]:
        return select(schema.jobs.c.number).where(_is_late(bindparam("now_s", type_=Float))).limit(1)

    def claim(self, claim: JobClaim, now_s: float) -> tuple[JobRecord, ...]:
        """The jobs that are the process's now, in the order in which they are to begin.

        Tenants get their turns by weight (start-time fair queueing, Goyal et al. 1996, over predicted
        seconds), each tenant's jobs come in the order of submission. Queues that another process is just
        changing are left for the next time.
        """
        if claim.most < 1:
            return ()
        with self._database.write_concurrently() as connection:
            until = self._database.interval_s(connection) + claim.lease_s
            queues = _waiting(connection, claim.model)
            turns = {each: queues[each] for each in queues.keys() - claim.waiting_tenants}
            chosen, after = _fair(connection, claim, turns, now_s)
            if chosen:  # who could not have had the first of these turns has it not to make up for
                first = min(queues[row.tenant] for row in chosen)
                passed = (tenant for tenant in queues.keys() - after.keys() if queues[tenant] < first)
                after |= dict.fromkeys(passed, first)
            for tenant, virtual in after.items():
                _set_virtual(connection, claim.model, tenant, virtual)
            numbers = [row.number for row in chosen]
            table = schema.jobs
            connection.execute(
                update(table)
                .where(table.c.number.in_(numbers))
                .values(
                    state=JobState.RUNNING.value,
                    attempts=table.c.attempts + 1,
                    generation=table.c.generation + 1,
                    process=claim.process,
                    incarnation=claim.incarnation,
                    lease_until=until,
                    started_s=func.coalesce(table.c.started_s, now_s),
                )
            )
            counts = QueueCounts()
            for row in chosen:
                counts.move(row, JobState.QUEUED, JobState.RUNNING)
            counts.write(connection, self._database)
            query = select(table).where(table.c.number.in_(numbers))
            found = {row.number: record_of(row) for row in connection.execute(query)}
            return tuple(found[number] for number in numbers)

    def waiting(self, now_s: float) -> dict[str, int]:
        """How many jobs of each model are queued, of models of which one may begin now."""
        with self._database.read() as connection:
            found = connection.execute(self._queued, {"now_s": now_s})
            return {model: int(queued) for model, queued in found}

    def cancelling(self, process: str, incarnation: int) -> frozenset[str]:
        """Ids of the jobs that this process runs and somebody wants to end."""
        table = schema.jobs.c
        query = select(table.id).where(
            table.state == JobState.RUNNING.value,
            table.process == process,
            table.incarnation == incarnation,
            table.cancelling == 1,
        )
        with self._database.read() as connection:
            return frozenset(row.id for row in connection.execute(query))

    def end_leases_of(self, process: str, incarnation: int) -> int:
        """``process`` was started anew as ``incarnation``: what it ran before is to be swept at once, and of
        earlier incarnations nothing counts any more. How many jobs that are."""
        table = schema.jobs.c
        earlier = and_(
            table.state == JobState.RUNNING.value,
            table.process == process,
            table.incarnation != incarnation,
        )
        with self._database.write_concurrently() as connection:
            numbers = [row.number for row in _locked(connection, earlier)]
            ended = update(schema.jobs).where(table.number.in_(numbers))
            connection.execute(ended.values(lease_until=0.0, generation=table.generation + 1))
            return len(numbers)

    def renew(self, leases: Mapping[str, JobLease], lease_s: float) -> RenewedLeases:
        """``leases`` by the ids of their jobs."""
        table = schema.jobs
        with self._database.write_concurrently() as connection:
            until = self._database.interval_s(connection) + lease_s
            held = [
                row for row in _locked(connection, table.c.id.in_(leases)) if _is_held(row, leases[row.id])
            ]
            numbers = [row.number for row in held]
            connection.execute(update(table).where(table.c.number.in_(numbers)).values(lease_until=until))
            return RenewedLeases(
                frozenset(leases) - {row.id for row in held},
                frozenset(row.id for row in held if row.cancelling),
            )

    def note_progress(self, notes: Collection[JobNote], over: Collection[str] = ()) -> frozenset[str]:
        """How far runs have come: the ids of those that are not another one's by now. Of the jobs ``over``,
        which do not run any more, previews are forgotten."""
        table = schema.jobs
        noted = set()
        with self._database.write_concurrently() as connection:
            forget_previews(connection, over)
            if len(notes) > 1:
                several = table.c.id.in_([note.job_id for note in notes])
                query = select(table.c.number).where(several).order_by(table.c.number)
                connection.execute(query.with_for_update()).all()
            for note in notes:
                said, preview = note.progress, note.progress.preview
                values: dict[str, Any] = {"progress": said.fraction, "progress_text": said.text or None}
                if preview is not None:
                    values["previews"] = func.coalesce(table.c.previews, 0) + 1
                ours = (table.c.id == note.job_id, *_held_by(note.lease))
                if connection.execute(update(table).where(*ours).values(values)).rowcount == 1:
                    noted.add(note.job_id)
                    if preview is not None:
                        note_preview(connection, self._database, note.job_id, preview)
        return frozenset(noted)

    def publish(
        self, job_id: str, lease: JobLease, outcome: JobOutcome, now_s: float, kept_until_s: float
    ) -> bool:
        """The job has ended so. False: it is another one's by now, or has ended; nothing changed."""
        assert outcome.state.is_final
        return self._leave(job_id, lease, ending(outcome, now_s, kept_until_s), outcome.event)

    def give_back(self, job_id: str, lease: JobLease, not_before_s: float, *, counts: bool = True) -> bool:
        """Queue it again. ``counts``: as an attempt; it does not where the run was only in others' way.
        False as with :meth:`publish`."""
        changes: dict[str, Any] = {"state": JobState.QUEUED.value, "not_before_s": not_before_s}
        if not counts:
            changes["attempts"] = schema.jobs.c.attempts - 1
        return self._leave(job_id, lease, changes)

    def sweep(
        self, now_s: float, kept_until_s: float, lease_s: float, most_attempts: int | None = None
    ) -> int:
        """Queue jobs again whose lease is over, end those that wait and whose deadline is over; how many.

        ``lease_s`` is the longest a lease may be: one that ends later is of a clock that was set back. Jobs
        whose lease ran out at attempt ``most_attempts`` have failed: whoever runs them may well die of them.
        Nothing is written and no lock is taken where there are none.
        """
        if not self._any_to_sweep(now_s, lease_s):
            return 0
        table = schema.jobs.c
        with self._database.write_concurrently() as connection:
            now = self._database.interval_s(connection)
            lost = list(_locked(connection, _is_lost(now, now + lease_s), _SWEPT_AT_ONCE))
            late = list(_locked(connection, _is_late(now_s), _SWEPT_AT_ONCE))
            counts = QueueCounts()
            cancelled = [row for row in lost if row.cancelling]
            going = [row for row in lost if not row.cancelling]
            given_up = [row for row in going if most_attempts is not None and row.attempts >= most_attempts]
            again = [row for row in going if row not in given_up]
            failed = JobOutcome(JobState.FAILED, error=LOST)
            for rows, after, values in (
                (again, JobState.QUEUED, {"state": "queued"}),
                (given_up, JobState.FAILED, ending(failed, now_s, kept_until_s)),
                (cancelled, JobState.CANCELLED, ending(JobOutcome(JobState.CANCELLED), now_s, kept_until_s)),
                (late, JobState.EXPIRED, ending(JobOutcome(JobState.EXPIRED), now_s, kept_until_s)),
            ):
                numbers = [row.number for row in rows]
                connection.execute(update(schema.jobs).where(table.number.in_(numbers)).values(values))
                for row in rows:
                    counts.move(row, JobState(row.state), after)
                if after.is_final:
                    note_job_ends(connection, rows, after, now_s)
            counts.write(connection, self._database)
            return len(lost) + len(late)

    def _any_to_sweep(self, now_s: float, lease_s: float) -> bool:
        with self._database.read() as connection:
            now = self._database.interval_s(connection)
            times = {"now": now, "latest": now + lease_s}
            if connection.execute(self._any_lost, times).first() is not None:
                return True
            return connection.execute(self._any_late, {"now_s": now_s}).first() is not None

    def _leave(
        self, job_id: str, lease: JobLease, changes: Mapping[str, Any], event_type: str | None = None
    ) -> bool:
        """End a run that is still this lease's."""
        table = schema.jobs
        with self._database.write_concurrently() as connection:
            row = next(_locked(connection, and_(table.c.id == job_id, *_held_by(lease))), None)
            if row is None:
                return False
            connection.execute(update(table).where(table.c.number == row.number).values(**changes))
            counts, after = QueueCounts(), JobState(changes["state"])
            counts.move(row, JobState.RUNNING, after)
            counts.write(connection, self._database)
            if after.is_final:
                note_job_ends(connection, [row], after, changes["finished_s"], event_type)
            return True


def _held_by(lease: JobLease) -> Collection[ColumnElement[bool]]:
    table = schema.jobs.c
    return (
        table.state == JobState.RUNNING.value,
        table.process == lease.process,
        table.incarnation == lease.incarnation,
        table.generation == lease.generation,
    )


def _is_held(row: _JobRow, lease: JobLease) -> bool:
    return row.state == JobState.RUNNING and lease == JobLease(row.process, row.incarnation, row.generation)


def _is_lost(now: float | BindParameter[float], latest: float | BindParameter[float]) -> ColumnElement[bool]:
    """It runs by a lease that is over, or that ends later than any may."""
    table = schema.jobs.c
    over = or_(table.lease_until < now, table.lease_until > latest)
    return and_(table.state == JobState.RUNNING.value, over)


def _is_late(now_s: float | BindParameter[float]) -> ColumnElement[bool]:
    """It waits, and its deadline is over."""
    table = schema.jobs.c
    return and_(table.state == JobState.QUEUED.value, table.deadline_s <= now_s)


def _locked(
    connection: Connection, condition: ColumnElement[bool], most: int | None = None
) -> Iterator[_JobRow]:
    """Rows until the transaction ends, in the order in which all lock them; with ``most``, so many of those
    that nobody else has locked."""
    query = select(schema.jobs).where(condition).order_by(schema.jobs.c.number).limit(most)
    found: Sequence[Any] = connection.execute(query.with_for_update(skip_locked=most is not None)).all()
    return iter(found)


def _waiting(connection: Connection, model: str) -> dict[str, float]:
    """Virtual times by tenant, of those with jobs of this model that wait; their rows are locked."""
    table = schema.job_queues.c
    query = select(table.tenant, table.virtual).where(table.model == model, table.queued > 0)
    locked = query.order_by(table.tenant).with_for_update(skip_locked=True)
    return {row.tenant: row.virtual for row in connection.execute(locked)}


def _set_virtual(connection: Connection, model: str, tenant: str, virtual: float) -> None:
    table = schema.job_queues
    here = (table.c.model == model, table.c.tenant == tenant)
    connection.execute(update(table).where(*here).values(virtual=virtual))


def _fair(
    connection: Connection, claim: JobClaim, queues: Mapping[str, float], now_s: float
) -> tuple[list[_JobRow], dict[str, float]]:
    """Up to ``most`` jobs, and the new virtual times of the tenants whose they are."""
    turns = [(virtual, tenant) for tenant, virtual in queues.items()]
    heapify(turns)
    room = _room(connection, claim, queues)
    ready: dict[str, Iterator[_JobRow]] = {}
    chosen: list[_JobRow] = []
    after: dict[str, float] = {}
    while turns and len(chosen) < claim.most:
        virtual, tenant = heappop(turns)
        if tenant not in ready:
            most = min(claim.most - len(chosen), room.get(tenant, claim.most))
            ready[tenant] = _ready(connection, claim.model, tenant, most, now_s)
        row = next(ready[tenant], None)
        if row is None:
            continue
        chosen.append(row)
        cost_s = max(_LEAST_COST_S, 1.0 if row.predicted_s is None else row.predicted_s)
        after[tenant] = virtual + cost_s / claim.weights.get(tenant, 1.0)
        heappush(turns, (after[tenant], tenant))
    return chosen, after


def _room(connection: Connection, claim: JobClaim, tenants: Collection[str]) -> dict[str, int]:
    """How many more jobs each tenant may have running. Other processes may claim at the same moment for other
    models: then it is a few more."""
    if claim.tenant_running is None:
        return {}
    table = schema.job_queues.c
    query = select(table.tenant, func.sum(table.running)).where(table.tenant.in_(tenants))
    found = connection.execute(query.group_by(table.tenant))
    return {tenant: max(0, claim.tenant_running - int(running)) for tenant, running in found}


def _ready(connection: Connection, model: str, tenant: str, most: int, now_s: float) -> Iterator[_JobRow]:
    table = schema.jobs.c
    query = select(table.number, table.model, table.tenant, table.predicted_s).where(
        table.state == JobState.QUEUED.value,
        table.model == model,
        table.tenant == tenant,
        table.not_before_s <= now_s,
        or_(table.deadline_s.is_(None), table.deadline_s > now_s),
    )
    locked = query.order_by(table.number).limit(most).with_for_update(skip_locked=True)
    found: Sequence[Any] = connection.execute(locked).all()
    return iter(found)
