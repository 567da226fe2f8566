"""What there is so far of the answers of jobs that run: a small picture of each, the newest only."""

from collections.abc import Collection

from sqlalchemy import Connection, delete, select

from gateway.storage import schema
from gateway.storage.database import Database
from shared.protocol.progress import Preview


def note_preview(connection: Connection, database: Database, job_id: str, preview: Preview) -> None:
    """It takes the place of an earlier one."""
    row = {"job_id": job_id, "type": preview.type, "data": preview.data}
    connection.execute(database.upsert(schema.job_previews), [row])


def read_preview(connection: Connection, job_id: str) -> Preview | None:
    table = schema.job_previews.c
    row = connection.execute(select(table.type, table.data).where(table.job_id == job_id)).first()
    return None if row is None else Preview(row.type, bytes(row.data))


def forget_previews(connection: Connection, job_ids: Collection[str]) -> None:
    """Their jobs do not run any more, or are gone."""
    if job_ids:
        connection.execute(delete(schema.job_previews).where(schema.job_previews.c.job_id.in_(job_ids)))
