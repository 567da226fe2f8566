"""Jobs that came from queues, and their replies: noted with the job, taken with a lease, gone once sent."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, update

from gateway.domain.jobs import JobState
from gateway.domain.queues import PendingReply, QueueOrigin, ReplyPlan
from gateway.storage import schema
from gateway.storage.database import Database


def note_origin(connection: Connection, job_id: str, origin: QueueOrigin) -> None:
    """In the transaction that makes the job."""
    connection.execute(
        insert(schema.queue_jobs).values(
            job_id=job_id,
            source=origin.source,
            message_id=origin.message_id,
            reply_to=origin.reply_to,
            stream=int(origin.stream),
            next_s=0.0,
            attempts=0,
            generation=0,
            **_plan_values(ReplyPlan()),
        )
    )


class QueueJobStore:
    """Every method raises StateError when the database fails. ``now_s`` is in seconds since 1970."""

    _table = schema.queue_jobs

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, process: str, owner: str) -> str | None:
        """``process`` was started anew and takes messages as ``owner``: what it was to send before is
        anybody's at once, and nothing that its earlier run still notes counts. Returns what that one was
        called; None: there was none."""
        table, facts = self._table, schema.facts
        fact = f"queue owner {process}"
        held = (table.c.process == process, table.c.lease_until.is_not(None))
        with self._database.write() as connection:
            before = connection.execute(
                select(facts.c.value).where(facts.c.name == fact)
            ).scalar_one_or_none()
            connection.execute(self._database.upsert(facts), {"name": fact, "value": owner})
            locked = select(table.c.number).where(*held).order_by(table.c.number).with_for_update()
            numbers = [row.number for row in connection.execute(locked)]
            ended = {"generation": table.c.generation + 1, "lease_until": None, "process": None}
            connection.execute(update(table).where(table.c.number.in_(numbers)).values(**ended))
        return None if before is None else str(before)

    def queued(self, source: str) -> int:
        """Jobs of a queue that wait to begin."""
        jobs, table = schema.jobs.c, self._table.c
        joined = self._table.join(schema.jobs, jobs.id == table.job_id)
        query = select(func.count()).select_from(joined)
        with self._database.read() as connection:
            here = (table.source == source, jobs.state == JobState.QUEUED.value)
            return int(connection.execute(query.where(*here)).scalar_one())

    def claim(
        self, sources: Collection[str], most: int, lease_s: float, now_s: float, process: str | None = None
    ) -> tuple[PendingReply, ...]:
        """Replies that the caller, ``process``, is to send: of jobs that have ended, and of those that run
        where the answer is sent while it is written. Nothing is written and no lock is taken where there
        are none."""
        if most < 1 or not sources:
            return ()
        table = self._table
        with self._database.read() as connection:
            now = self._database.interval_s(connection)
            due = self._due(now, now_s, lease_s)
            query = select(table.c.number).select_from(self._with_jobs())
            wanted = query.where(table.c.source.in_(sources), self._has_something(), *due)
            ordered = wanted.order_by(table.c.next_s, table.c.number).limit(most)
            numbers = [row.number for row in connection.execute(ordered)]
        if not numbers:
            return ()
        with self._database.write_concurrently() as connection:
            now = self._database.interval_s(connection)
            still = (table.c.number.in_(numbers), *self._due(now, now_s, lease_s))
            locked = select(table.c.number).where(*still).order_by(table.c.number)
            ours = [row.number for row in connection.execute(locked.with_for_update(skip_locked=True))]
            mine = table.c.number.in_(ours)
            until = now + lease_s
            leased = {"generation": table.c.generation + 1, "lease_until": until, "process": process}
            connection.execute(update(table).where(mine).values(**leased))
            return tuple(_reply(row) for row in connection.execute(select(table).where(mine)))

    def take_over(
        self, job_ids: Collection[str], sources: Collection[str], lease_s: float, process: str | None = None
    ) -> tuple[PendingReply, ...]:
        """Replies that the caller, ``process``, is to send while it writes the answers, whoever had them: it
        runs these jobs, so no other process does. Those whose answers are sent at the end only are left
        alone. Nothing is written where there are none."""
        table = self._table
        wanted = (table.c.job_id.in_(job_ids), table.c.source.in_(sources), table.c.stream == 1)
        query = select(table.c.number).where(*wanted, table.c.reply_to.is_not(None)).order_by(table.c.number)
        with self._database.read() as connection:
            numbers = [row.number for row in connection.execute(query)]
        if not numbers:
            return ()
        with self._database.write_concurrently() as connection:
            mine = table.c.number.in_(numbers)
            connection.execute(
                select(table.c.number).where(mine).order_by(table.c.number).with_for_update()
            ).all()
            until = self._database.interval_s(connection) + lease_s
            leased = {"generation": table.c.generation + 1, "lease_until": until, "process": process}
            connection.execute(update(table).where(mine).values(**leased))
            return tuple(_reply(row) for row in connection.execute(select(table).where(mine)))

    def note_plans(self, plans: Sequence[tuple[PendingReply, ReplyPlan]], lease_s: float) -> frozenset[int]:
        """What is sent of several while it is written, in one transaction; failures before it still count.
        The numbers of those that are another's by now."""
        lost: set[int] = set()
        with self._database.write_concurrently() as connection:
            until = self._database.interval_s(connection) + lease_s
            for reply, plan in sorted(plans, key=lambda each: each[0].number):
                if not self._note(connection, reply, _plan_values(plan) | {"lease_until": until}):
                    lost.add(reply.number)
        return frozenset(lost)

    def note_plan(self, reply: PendingReply, plan: ReplyPlan, lease_s: float) -> bool:
        """What is sent next. False: the reply is another's by now, and nothing changed."""
        with self._database.write_concurrently() as connection:
            until = self._database.interval_s(connection) + lease_s
            values = _plan_values(plan) | {"lease_until": until, "attempts": 0, "failing_since_s": None}
            return self._note(connection, reply, values)

    def release(self, reply: PendingReply, next_s: float) -> None:
        """It goes on at ``next_s``; all that there was has been sent."""
        self._leave(reply, next_s, attempts=0, failing_since_s=None, is_sent=1)

    def note_failure(self, reply: PendingReply, next_s: float, now_s: float) -> None:
        """It could not be sent, and is tried again at ``next_s``."""
        since_s = now_s if reply.failing_since_s is None else reply.failing_since_s
        self._leave(reply, next_s, attempts=reply.attempts + 1, failing_since_s=since_s)

    def finish(self, reply: PendingReply) -> bool:
        """Nothing more is said of the job. False: the reply is another's by now."""
        with self._database.write_concurrently() as connection:
            query = delete(self._table).where(*self._ours(reply))
            return connection.execute(query).rowcount == 1

    def forget(self, most: int) -> int:
        """Take away what nobody is told of: jobs that are gone, or have ended and have nowhere to reply to;
        how many."""
        table, jobs = self._table, schema.jobs.c
        silent = and_(jobs.finished_s.is_not(None), table.c.reply_to.is_(None))
        over = or_(jobs.id.is_(None), silent)
        query = select(table.c.number).select_from(self._with_jobs()).where(over).limit(most)
        with self._database.read() as connection:
            numbers: Sequence[int] = [row.number for row in connection.execute(query)]
        if numbers:
            with self._database.write_concurrently() as connection:
                connection.execute(delete(table).where(table.c.number.in_(numbers)))
        return len(numbers)

    def _note(self, connection: Connection, reply: PendingReply, values: dict[str, Any]) -> bool:
        query = update(self._table).where(*self._ours(reply)).values(**values)
        return connection.execute(query).rowcount == 1

    def _leave(self, reply: PendingReply, next_s: float, **values: Any) -> None:
        values |= {"next_s": next_s, "lease_until": None, "process": None}
        with self._database.write_concurrently() as connection:
            connection.execute(update(self._table).where(*self._ours(reply)).values(**values))

    def _ours(self, reply: PendingReply) -> tuple[ColumnElement[bool], ...]:
        """SQLite gives the number of a newest row that is gone to the next one."""
        table = self._table.c
        here = (table.number == reply.number, table.job_id == reply.job_id)
        return (*here, table.generation == reply.generation)

    def _due(self, now: float, now_s: float, lease_s: float) -> tuple[ColumnElement[bool], ...]:
        """A lease that ends later than any given now could is of a clock that was set back."""
        table = self._table.c
        free = or_(table.lease_until.is_(None), table.lease_until < now, table.lease_until > now + lease_s)
        return (table.reply_to.is_not(None), table.next_s <= now_s, free)

    def _with_jobs(self) -> Any:
        return self._table.outerjoin(schema.jobs, schema.jobs.c.id == self._table.c.job_id)

    def _has_something(self) -> ColumnElement[bool]:
        jobs = schema.jobs.c
        streams = and_(self._table.c.stream == 1, jobs.state == JobState.RUNNING.value)
        return or_(jobs.finished_s.is_not(None), streams)


def _plan_values(plan: ReplyPlan) -> dict[str, Any]:
    return {
        "sequence": plan.sequence,
        "since": plan.since,
        "start": plan.start,
        "stop": plan.stop,
        "is_sent": int(plan.is_sent),
    }


def _reply(row: Row[Any]) -> PendingReply:
    return PendingReply(
        row.number,
        row.job_id,
        QueueOrigin(row.source, row.message_id, row.reply_to, bool(row.stream)),
        ReplyPlan(row.sequence, row.since, row.start, row.stop, bool(row.is_sent)),
        row.attempts,
        row.generation,
        row.failing_since_s,
    )
