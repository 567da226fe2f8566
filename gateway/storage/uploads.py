"""Uploads in parts. An upload takes its bytes of its tenant's bounds from its beginning on: a row among the
files, which is never a file, says so. Every part has a row from before its first byte is written."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.files import FilePurpose, NewFile
from gateway.domain.uploads import MOST_PARTS, NewUpload, UploadPart, UploadRecord, UploadState
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.files import FileStore
from gateway.storage.submissions import OnceKey, made_before, note_made

FORGOTTEN_S = 86_400.0
"""So long after its end an upload is still known, for whoever asks for it again."""

_PENDING, _READY = "pending", "ready"


class UploadEnded(RecordError):
    """The upload is complete, cancelled or expired."""


class UnfitParts(RecordError):
    """The parts do not make what was announced."""


class UploadStore:
    """The rows. Methods raise StateError when the database fails."""

    def __init__(self, database: Database, files: FileStore) -> None:
        self._database = database
        self._files = files

    def begin(self, upload: NewUpload, most_bytes: int, once: OnceKey | None = None) -> str:
        """Its id; where the same was begun with the same idempotency key before, the id of then.
        ``most_bytes``: what all files of the tenant may have. Raises TooManyBytes, IdempotencyConflict."""
        try:
            return self._begin(upload, most_bytes, once)
        except IntegrityError:  # the same key at the same moment: it is there now
            return self._begin(upload, most_bytes, once)

    def _begin(self, upload: NewUpload, most_bytes: int, once: OnceKey | None) -> str:
        with self._database.write_concurrently() as connection:
            if once is not None:
                before = made_before(connection, once)
                if before is not None:
                    return before[0]
                note_made(connection, once, [upload.id], upload.created_s)
            self._files.begin_in(connection, _reservation(upload), upload.size_bytes, most_bytes)
            connection.execute(insert(schema.uploads).values(_values(upload)))
        return upload.id

    def get(self, upload_id: str, tenant: str, now_s: float) -> UploadRecord:
        """Raises UnknownRecord."""
        with self._database.read() as connection:
            return _get(connection, upload_id, tenant, now_s)

    def begin_part(self, upload_id: str, tenant: str, part_id: str, now_s: float) -> tuple[NewUpload, int]:
        """The upload, and how many bytes its parts may still have. Raises UnknownRecord, UploadEnded,
        UnfitParts where there are too many."""
        with self._database.write_concurrently() as connection:
            upload = _pending(_get(connection, upload_id, tenant, now_s, lock=True))
            number, left = _room(connection, upload)
            if number >= MOST_PARTS or left <= 0:
                raise UnfitParts(f"upload {upload_id} may have no more than its {number} parts")
            row = {"id": part_id, "upload_id": upload_id, "state": _PENDING, "size_bytes": 0}
            connection.execute(insert(schema.upload_parts).values(created_s=now_s, **row))
            return upload, left

    def finish_part(self, part_id: str, tenant: str, size_bytes: int, now_s: float) -> UploadPart:
        """All its bytes are there. Raises UnknownRecord, UploadEnded, and UnfitParts where others that came
        at the same time have taken their room."""
        table = schema.upload_parts
        with self._database.write_concurrently() as connection:
            row = connection.execute(select(table).where(table.c.id == part_id)).first()
            if row is None:
                raise UnknownRecord(f"part {part_id} took too long")
            upload = _pending(_get(connection, row.upload_id, tenant, now_s, lock=True))
            _, left = _room(connection, upload)
            if size_bytes > left:
                raise UnfitParts(
                    f"upload {upload.id} may have {left} bytes more, and this part has {size_bytes}"
                )
            values = {"state": _READY, "size_bytes": size_bytes}
            connection.execute(update(table).where(table.c.id == part_id).values(values))
            return UploadPart(part_id, row.upload_id, size_bytes, row.created_s)

    def drop_part(self, part_id: str) -> None:
        """It came to nothing; its object is gone."""
        table = schema.upload_parts
        with self._database.write_concurrently() as connection:
            connection.execute(delete(table).where(table.c.id == part_id))

    def chosen(
        self, upload_id: str, tenant: str, part_ids: Sequence[str], now_s: float
    ) -> tuple[NewUpload, tuple[UploadPart, ...]]:
        """The parts that are to be its file, in their order. Raises UnknownRecord, UploadEnded,
        UnfitParts."""
        table = schema.upload_parts.c
        with self._database.read() as connection:
            upload = _pending(_get(connection, upload_id, tenant, now_s))
            query = select(schema.upload_parts).where(table.upload_id == upload_id, table.state == _READY)
            found = {
                row.id: UploadPart(row.id, row.upload_id, row.size_bytes, row.created_s)
                for row in connection.execute(query)
            }
        if len(set(part_ids)) != len(part_ids):
            raise UnfitParts("a part is named twice")
        if unknown := [part_id for part_id in part_ids if part_id not in found]:
            raise UnfitParts(f"upload {upload_id} has no part {unknown[0]}")
        parts = tuple(found[part_id] for part_id in part_ids)
        size_bytes = sum(part.size_bytes for part in parts)
        if size_bytes != upload.size_bytes:
            raise UnfitParts(f"these parts have {size_bytes} bytes, and {upload.size_bytes} were announced")
        return upload, parts

    def complete(self, connection: Connection, upload_id: str, file_id: str, now_s: float) -> None:
        """It is this file, in the transaction that makes it one. Raises UploadEnded where another call was
        first."""
        table = schema.uploads
        pending = (table.c.id == upload_id, table.c.state == _PENDING)
        values = {"state": UploadState.COMPLETED.value, "file_id": file_id, "expires_s": now_s}
        if connection.execute(update(table).where(*pending).values(values)).rowcount != 1:
            raise UploadEnded(f"upload {upload_id} has ended")
        self._files.delete_in(connection, upload_id)

    def cancel(self, upload_id: str, tenant: str, now_s: float) -> UploadRecord:
        """Raises UnknownRecord, UploadEnded."""
        table = schema.uploads
        with self._database.write_concurrently() as connection:
            _pending(_get(connection, upload_id, tenant, now_s, lock=True))
            values = {"state": UploadState.CANCELLED.value, "expires_s": now_s}
            connection.execute(update(table).where(table.c.id == upload_id).values(values))
            self._files.delete_in(connection, upload_id)
            return _get(connection, upload_id, tenant, now_s)

    def ended(self, now_s: float, most: int) -> tuple[str, ...]:
        """Ids of uploads that have ended and whose parts are to be removed. Those that ran out are expired
        from now on."""
        table, parts = schema.uploads, schema.upload_parts.c
        with self._database.write_concurrently() as connection:
            query = select(table.c.id).where(
                table.c.expires_s <= now_s,
                or_(
                    table.c.state == _PENDING,
                    table.c.expires_s <= now_s - FORGOTTEN_S,
                    select(parts.id).where(parts.upload_id == table.c.id).exists(),
                ),
            )
            found = tuple(connection.execute(query.order_by(table.c.id).limit(most)).scalars())
            expired = (table.c.id.in_(found), table.c.state == _PENDING)
            connection.execute(update(table).where(*expired).values(state=UploadState.EXPIRED.value))
            for upload_id in found:
                self._files.delete_in(connection, upload_id)
            return found

    def forget(self, ids: Collection[str], now_s: float) -> None:
        """The objects of their parts are gone: so are the rows of these, and those of old uploads."""
        table, parts = schema.uploads.c, schema.upload_parts.c
        with self._database.write_concurrently() as connection:
            connection.execute(delete(schema.upload_parts).where(parts.upload_id.in_(ids)))
            old = (table.id.in_(ids), table.expires_s <= now_s - FORGOTTEN_S)
            connection.execute(delete(schema.uploads).where(*old))


def _reservation(upload: NewUpload) -> NewFile:
    return NewFile(upload.id, upload.tenant, upload.key_id, upload.filename, upload.purpose, upload.created_s)


def _pending(upload: UploadRecord) -> NewUpload:
    if upload.state is not UploadState.PENDING:
        raise UploadEnded(f"upload {upload.new.id} is {upload.state}")
    return upload.new


def _room(connection: Connection, upload: NewUpload) -> tuple[int, int]:
    """How many parts there are, and how many bytes more they may have. A part whose answer was lost is sent
    again, so twice of all may be there."""
    parts = schema.upload_parts.c
    query = select(func.count(), func.sum(parts.size_bytes)).where(parts.upload_id == upload.id)
    number, kept = connection.execute(query).one()
    return number, 2 * upload.size_bytes - int(kept or 0)


def _values(upload: NewUpload) -> dict[str, Any]:
    return {
        "id": upload.id,
        "tenant": upload.tenant,
        "key_id": upload.key_id,
        "filename": upload.filename,
        "mime_type": upload.mime_type,
        "purpose": upload.purpose.value,
        "state": _PENDING,
        "size_bytes": upload.size_bytes,
        "created_s": upload.created_s,
        "expires_s": upload.expires_s,
        "file_kept_s": upload.file_kept_s,
    }


def _get(
    connection: Connection, upload_id: str, tenant: str, now_s: float, *, lock: bool = False
) -> UploadRecord:
    table = schema.uploads.c
    query = select(schema.uploads).where(table.id == upload_id, table.tenant == tenant)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise UnknownRecord(f"there is no upload {upload_id}")
    return _record(row, now_s)


def _record(row: Row[Any], now_s: float) -> UploadRecord:
    state = UploadState(row.state)
    if state is UploadState.PENDING and row.expires_s <= now_s:
        state = UploadState.EXPIRED
    new = NewUpload(
        row.id,
        row.tenant,
        row.key_id,
        row.filename,
        row.mime_type,
        FilePurpose(row.purpose),
        row.size_bytes,
        row.created_s,
        row.expires_s,
        row.file_kept_s,
    )
    return UploadRecord(new, state, row.file_id)
