"""Jobs that are cancelled: some at a time, so that nobody waits for long who changes others."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, select, update

from gateway.domain.jobs import JobOutcome, JobState
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.job_notices import JobNotice
from gateway.storage.jobs.rows import QueueCounts, ending
from gateway.storage.webhooks.events import note_job_ends

AT_ONCE = 500

_OPEN = (JobState.QUEUED.value, JobState.RUNNING.value)


def cancel_some(
    connection: Connection,
    database: Database,
    which: Sequence[ColumnElement[bool]],
    now_s: float,
    kept_until_s: float,
    notice: JobNotice,
) -> int | None:
    """Of the jobs ``which`` that have not ended, cancel the first: those that wait end so, and of those that
    run it is noted. The number of the last; None: there is none. ``notice`` is for the processes that run
    some of them."""
    table, counts = schema.jobs, QueueCounts()
    columns = (table.c.number, table.c.id, table.c.model, table.c.tenant, table.c.state, table.c.webhook)
    query = select(*columns).where(*which, table.c.state.in_(_OPEN)).order_by(table.c.number).limit(AT_ONCE)
    rows = connection.execute(query.with_for_update()).all()
    waiting = [row for row in rows if row.state == JobState.QUEUED]
    for row in waiting:
        counts.move(row, JobState.QUEUED, JobState.CANCELLED)
    if waiting:
        end = ending(JobOutcome(JobState.CANCELLED), now_s, kept_until_s)
        ended = table.c.number.in_([row.number for row in waiting])
        connection.execute(update(table).where(ended).values(end))
    if running := [row.number for row in rows if row.state == JobState.RUNNING]:
        connection.execute(update(table).where(table.c.number.in_(running)).values(cancelling=1))
        database.tell(connection, notice)
    counts.write(connection, database)
    note_job_ends(connection, waiting, JobState.CANCELLED, now_s)
    return rows[-1].number if rows else None
