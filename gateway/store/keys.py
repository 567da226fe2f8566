"""Client API keys in the store: only their SHA-256, which is enough for keys nobody can guess."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.store import schema
from gateway.store.errors import NameTaken, UnknownRecord
from gateway.store.rules import check_name
from gateway.store.sqlite import SqliteDatabase
from gateway.where import Where, where_of

PREFIX = "sk-tl-"
DEFAULT_TENANT = "default"
_SECRET_BYTES = 32
_HINT_CHARS = 4
_BATCH_ROWS = 5000


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What the gateway knows of a client's key. Times are seconds since 1970."""

    id: str
    name: str
    tenant: str
    digest: bytes = field(repr=False)
    """SHA-256 of the key's text."""
    hint: str
    """The key's last four characters, to tell keys apart by eye."""
    created_s: float
    revoked_s: float | None
    where: Where | None = None
    """Its requests run nowhere else."""


def digest_of(text: str) -> bytes:
    """What is stored and looked up of a key. A key has 256 bits of chance, so no salt and no stretching."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class KeyStore:
    """The client API keys. Every method raises StateError when the database fails."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def create(self, name: str, tenant: str, wall_s: float, where: Where | None = None) -> str:
        """Make a key, whose requests run only ``where`` is said; its text, which cannot be had again.

        Raises BadValue or NameTaken.
        """
        check_name("key name", name)
        check_name("tenant", tenant)
        text = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        try:
            with self._database.write() as connection:
                connection.execute(
                    insert(schema.keys).values(
                        id="key_" + secrets.token_hex(8),
                        name=name,
                        tenant=tenant,
                        digest=digest_of(text),
                        hint=text[-_HINT_CHARS:],
                        created_s=wall_s,
                        revision=schema.next_revision(connection, schema.Topic.KEYS),
                        residency=None if where is None else where.to_dict(),
                    )
                )
        except IntegrityError as error:
            raise NameTaken(
                f"there is an active key named {name!r}; choose another name, or: trunkline key revoke {name}"
            ) from error
        return text

    def list(self) -> tuple[KeyRecord, ...]:
        """Every key, revoked ones too, the oldest first."""
        query = select(schema.keys).order_by(schema.keys.c.created_s, schema.keys.c.name)
        with self._database.read() as connection:
            return tuple(map(_record, connection.execute(query)))

    def revoke(self, name: str, wall_s: float) -> KeyRecord:
        """Revoke the active key of this name (or id); the key as it was. Raises UnknownRecord."""
        active = schema.keys.c.revoked_s.is_(None)
        with self._database.write() as connection:
            for column in (schema.keys.c.name, schema.keys.c.id):
                row = connection.execute(select(schema.keys).where(column == name, active)).one_or_none()
                if row is not None:
                    break
            else:
                raise UnknownRecord(f"no active key is named {name!r}; see: trunkline key list")
            connection.execute(
                update(schema.keys)
                .where(schema.keys.c.id == row.id)
                .values(revoked_s=wall_s, revision=schema.next_revision(connection, schema.Topic.KEYS))
            )
        return _record(row)

    def changed_since(self, revision: int) -> tuple[int, Sequence[KeyRecord]]:
        """The present revision and the keys changed after ``revision`` (0: all), in the order of change."""
        with self._database.read() as connection:
            present = schema.read_revision(connection, schema.Topic.KEYS)
            if present == revision:
                return present, []
            query = (
                select(schema.keys)
                .where(schema.keys.c.revision > revision)
                .order_by(schema.keys.c.revision)
                .execution_options(yield_per=_BATCH_ROWS)
            )
            return present, [_record(row) for row in connection.execute(query)]


def _record(row: Row[Any]) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        digest=row.digest,
        hint=row.hint,
        created_s=row.created_s,
        revoked_s=row.revoked_s,
        where=None if row.residency is None else where_of(row.residency),
    )
