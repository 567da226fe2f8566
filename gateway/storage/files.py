"""Which files there are. Every object of a file has a row, from before its first byte is written until after
it is deleted, so that nothing is left behind by whoever dies in between."""

import hashlib
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.batches import ENDED_BATCHES
from gateway.domain.files import MOST_FILE_BYTES, FilePurpose, FileRecord, NewFile
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.submissions import OnceKey, made_before, note_made

ABANDONED_S = 86_400.0
"""An upload that takes longer than this was given up by a process that is no more."""

_PENDING, _READY, _DELETED = "pending", "ready", "deleted"

InTransaction = Callable[[Connection], None]
"""What else is to be committed with a change, or to undo it by raising."""


_READ_BY_BATCH = (
    select(schema.batches.c.number)
    .where(
        schema.batches.c.input_file_id == schema.files.c.id,
        schema.batches.c.state.not_in([state.value for state in ENDED_BATCHES]),
    )
    .exists()
)
"""A batch that has not ended was made of the file."""


class TooManyBytes(RecordError):
    """The tenant keeps as many bytes as it may."""


class FileKeptBefore(Exception):
    """The same file was uploaded with the same idempotency key before."""

    def __init__(self, file_id: str) -> None:
        """``file_id`` is that one's."""
        super().__init__(file_id)
        self.file_id = file_id


class FileStore:
    """The rows. Methods raise StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, file: NewFile, announced_bytes: int, most_bytes: int | None) -> int:
        """Note an upload before its first byte. ``announced_bytes`` is what it is said to have, 0 where
        nothing is said; ``most_bytes`` what all files of the tenant may have, None where that does not count.
        Returns how many this one may have by that. Raises TooManyBytes."""
        with self._database.write_concurrently() as connection:
            return self.begin_in(connection, file, announced_bytes, most_bytes)

    def begin_in(
        self, connection: Connection, file: NewFile, announced_bytes: int, most_bytes: int | None
    ) -> int:
        """:meth:`begin` as a part of a transaction."""
        left = MOST_FILE_BYTES
        if most_bytes is not None:
            left = _room(connection, file, max(1, announced_bytes), most_bytes)
        values = {**_values(file), "state": _PENDING, "size_bytes": announced_bytes}
        connection.execute(insert(schema.files).values(values))
        return left

    def finish(
        self,
        file: NewFile,
        size_bytes: int,
        sha256: str,
        also: InTransaction | None = None,
        key: str | None = None,
        most_bytes: int | None = None,
    ) -> FileRecord:
        """The upload is complete: from now on there is this file, as it is said to be now. Raises
        UnknownRecord where it was taken for abandoned, FileKeptBefore and IdempotencyConflict for the
        idempotency ``key``, TooManyBytes where others that came at the same time have taken its part of the
        ``most_bytes`` that all files of the tenant may have, and what ``also`` raises."""

        def finish() -> FileRecord:
            with self._database.write_concurrently() as connection:
                if key is not None:
                    _note_key(connection, file, sha256, key)
                if most_bytes is not None:
                    _room(connection, file, size_bytes, most_bytes)
                record = self.finish_in(connection, file, size_bytes, sha256)
                if also is not None:
                    also(connection)
            return record

        try:
            return finish()
        except IntegrityError:  # the same key at the same moment: it is there now
            return finish()

    def finish_in(self, connection: Connection, file: NewFile, size_bytes: int, sha256: str) -> FileRecord:
        """:meth:`finish` as a part of a transaction."""
        table = schema.files
        pending = (table.c.id == file.id, table.c.state == _PENDING)
        values = {**_values(file), "state": _READY, "size_bytes": size_bytes, "sha256": sha256}
        connection.execute(update(table).where(*pending).values(values))
        ready = (table.c.id == file.id, table.c.state == _READY)
        row = connection.execute(select(table).where(*ready)).first()
        if row is None:
            raise UnknownRecord(f"the upload of file {file.id} took too long")
        return _record(row)

    def delete_in(self, connection: Connection, file_id: str) -> None:
        """:meth:`delete` of whatever has this id, as a part of a transaction."""
        table = schema.files
        connection.execute(update(table).where(table.c.id == file_id).values(state=_DELETED))

    def get(self, file_id: str, tenant: str) -> FileRecord:
        """Raises UnknownRecord."""
        table = schema.files.c
        query = select(schema.files).where(table.id == file_id, table.tenant == tenant, table.state == _READY)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None:
            raise UnknownRecord(f"there is no file {file_id}")
        return _record(row)

    def list(
        self,
        tenant: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> tuple[FileRecord, ...]:
        """In the order of upload. Raises UnknownRecord for an ``after`` that is none of the tenant's."""
        table = schema.files.c
        conditions = [table.tenant == tenant, table.state == _READY]
        if purpose is not None:
            conditions.append(table.purpose == purpose)
        if after is not None:
            at = self.get(after, tenant).number
            conditions.append(table.number < at if newest_first else table.number > at)
        order = table.number.desc() if newest_first else table.number
        with self._database.read() as connection:
            query = select(schema.files).where(*conditions).order_by(order).limit(limit)
            return tuple(_record(row) for row in connection.execute(query))

    def delete(self, file_id: str, tenant: str | None = None) -> bool:
        """There is no such file any more. True: its object is to be removed now, and then its row with
        :meth:`forget`; False: a batch still reads it, and :meth:`removable` names it when that has ended.
        Raises UnknownRecord where ``tenant`` has none."""
        table = schema.files
        conditions = [table.c.id == file_id, table.c.state != _DELETED]
        if tenant is not None:
            conditions += [table.c.tenant == tenant, table.c.state == _READY]
        with self._database.write_concurrently() as connection:
            found = connection.execute(update(table).where(*conditions).values(state=_DELETED)).rowcount
            is_read = select(_READ_BY_BATCH).where(table.c.id == file_id)
            read = connection.execute(is_read).scalar()
        if not found and tenant is not None:
            raise UnknownRecord(f"there is no file {file_id}")
        return not read

    def removable(self, now_s: float, most: int) -> tuple[str, ...]:
        """Ids of files whose objects are to be removed: deleted, expired, or uploads that were given up. The
        expired are deleted from now on. Those that a batch still reads stay until it has ended."""
        table = schema.files
        expired = and_(table.c.expires_s.is_not(None), table.c.expires_s <= now_s)
        abandoned = and_(table.c.state == _PENDING, table.c.created_s < now_s - ABANDONED_S)
        with self._database.write_concurrently() as connection:
            over = or_(expired, abandoned, table.c.state == _DELETED)
            query = select(table.c.id).where(over, ~_READ_BY_BATCH).limit(most)
            found = tuple(connection.execute(query).scalars())
            connection.execute(update(table).where(table.c.id.in_(found)).values(state=_DELETED))
            return found

    def forget(self, ids: Collection[str]) -> None:
        """Their objects are gone: so are their rows."""
        table = schema.files
        with self._database.write_concurrently() as connection:
            gone = (table.c.id.in_(ids), table.c.state == _DELETED)
            connection.execute(delete(table).where(*gone))


def _room(connection: Connection, file: NewFile, size_bytes: int, most_bytes: int) -> int:
    """How many bytes the file may have beside the tenant's others. Raises TooManyBytes where that is less
    than ``size_bytes``."""
    table = schema.files.c
    others = (table.tenant == file.tenant, table.id != file.id)
    kept = int(connection.execute(select(func.sum(table.size_bytes)).where(*others)).scalar() or 0)
    if kept + size_bytes > most_bytes:
        raise TooManyBytes(
            f"{file.tenant} keeps {kept} bytes of files and may keep {most_bytes}: delete some first"
        )
    return most_bytes - kept


def _note_key(connection: Connection, file: NewFile, sha256: str, key: str) -> None:
    """Raises FileKeptBefore, IdempotencyConflict."""
    kept_s = None if file.expires_s is None else round(file.expires_s - file.created_s)
    asked = f"POST /v1/files\n{file.purpose.value} {kept_s} {sha256} {file.filename}"
    once = OnceKey(file.tenant, key, hashlib.sha256(asked.encode()).digest())
    before = made_before(connection, once)
    if before is not None:
        raise FileKeptBefore(before[0])
    note_made(connection, once, [file.id], file.created_s)


def _values(file: NewFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "tenant": file.tenant,
        "key_id": file.key_id,
        "filename": file.filename,
        "purpose": file.purpose.value,
        "created_s": file.created_s,
        "expires_s": file.expires_s,
    }


def _record(row: Row[Any]) -> FileRecord:
    new = NewFile(
        row.id,
        row.tenant,
        row.key_id,
        row.filename,
        FilePurpose(row.purpose),
        row.created_s,
        row.expires_s,
    )
    return FileRecord(row.number, new, row.size_bytes, row.sha256)
