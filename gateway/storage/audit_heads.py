"""The heads of audit logs as the store has them: of each log the line that was its last one not long ago.

A log lies in files beside a gateway; its head lies here. Whoever cuts the log short or writes it anew would
have to change both.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import UnknownRecord


@dataclass(frozen=True, slots=True)
class AuditHead:
    """A line of an audit log."""

    chain: str
    """Which log (:attr:`gateway.storage.store.Store.audit_chain`)."""
    seq: int
    """The line's number."""
    hash: str
    """Its SHA-256, in hexadecimal."""
    at_s: float
    """When it was the last one, in seconds since 1970."""
    host: str
    """Where the log is."""


class AuditHeadStore:
    """One head for each log. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, chain: str) -> AuditHead | None:
        with self._database.read() as connection:
            return _find(connection, chain)

    def list(self) -> tuple[AuditHead, ...]:
        """Of all logs, also of those that nobody writes any more, in the order of their names."""
        heads = schema.audit_heads
        with self._database.read() as connection:
            rows = connection.execute(select(heads).order_by(heads.c.chain)).mappings()
            return tuple(AuditHead(**{str(name): value for name, value in row.items()}) for row in rows)

    def note(self, head: AuditHead) -> None:
        """Take the head up, unless the store has a later one: of several processes that write one log the
        last may be heard first."""
        heads = schema.audit_heads
        values = {"seq": head.seq, "hash": head.hash, "at_s": head.at_s, "host": head.host}
        earlier = (heads.c.chain == head.chain, heads.c.seq <= head.seq)
        try:
            with self._database.write_concurrently() as connection:
                if connection.execute(update(heads).where(*earlier).values(values)).rowcount:
                    return
                if _find(connection, head.chain) is None:
                    connection.execute(insert(heads).values(chain=head.chain, **values))
        except IntegrityError:  # another process has just made the row
            self.note(head)

    def forget(self, chain: str) -> AuditHead:
        """Hold nothing against the log any more: its next head counts, whatever it follows. The head as it
        was. Raises UnknownRecord."""
        heads = schema.audit_heads
        with self._database.write() as connection:
            found = _find(connection, chain)
            if found is None:
                raise UnknownRecord(f"the store has no head of an audit log {chain!r}")
            connection.execute(delete(heads).where(heads.c.chain == chain))
            note_act(connection, "audit.forget_head", chain=chain, seq=found.seq, hash=found.hash)
        return found


def _find(connection: Connection, chain: str) -> AuditHead | None:
    heads = schema.audit_heads
    row = connection.execute(select(heads).where(heads.c.chain == chain)).mappings().first()
    return None if row is None else AuditHead(**{str(name): value for name, value in row.items()})
