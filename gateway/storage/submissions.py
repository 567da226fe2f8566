"""What requests with an idempotency key have made: whoever asks again with the key gets the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from gateway.storage import schema
from gateway.storage.errors import RecordError


class IdempotencyConflict(RecordError):
    """The idempotency key was used before, with another body."""


@dataclass(frozen=True, slots=True)
class OnceKey:
    """An idempotency key of a tenant's."""

    tenant: str
    key: str
    fingerprint: bytes
    """Of what was asked for, to compare with what came under the same key before."""


def made_before(connection: Connection, once: OnceKey) -> tuple[str, ...] | None:
    """The ids of what was made under the key; None: nothing was. Raises IdempotencyConflict."""
    table = schema.submissions
    here = (table.c.tenant == once.tenant, table.c.key == once.key)
    row = connection.execute(select(table.c.fingerprint, table.c.made).where(*here)).first()
    if row is None:
        return None
    if row.fingerprint != once.fingerprint:
        raise IdempotencyConflict(
            f"the idempotency key {once.key!r} was used before for another request: use a new one"
        )
    return tuple(row.made)


def note_made(connection: Connection, once: OnceKey, ids: Sequence[str], now_s: float) -> None:
    """Raises IntegrityError where another process does so with the same key just now: look again then."""
    values = {"fingerprint": once.fingerprint, "made": list(ids), "at_s": now_s}
    connection.execute(insert(schema.submissions).values(tenant=once.tenant, key=once.key, **values))


def forget_made(connection: Connection, before_s: float) -> None:
    """Keys of before a time mean nothing any more."""
    connection.execute(delete(schema.submissions).where(schema.submissions.c.at_s < before_s))
