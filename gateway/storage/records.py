"""What the stores of keys, tokens, agents, aliases, limits and prices share: a table's rows as records."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Table, select, update

from gateway.storage import schema
from gateway.storage.database import Database

_BATCH_ROWS = 5000

R = TypeVar("R")


class RecordStore(Generic[R]):
    """The records of one table. Every method raises StateError when the database fails."""

    _table: ClassVar[Table]
    _order: ClassVar[tuple[ColumnElement[Any], ...]]
    """The order of a list of all records."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> tuple[R, ...]:
        """Every record, revoked ones too."""
        with self._database.read() as connection:
            return tuple(self._read(connection, order=self._order))

    def _record(self, row: Row[Any]) -> R:
        raise NotImplementedError

    def _read(
        self,
        connection: Connection,
        *conditions: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]] = (),
    ) -> Sequence[R]:
        """The records that meet the conditions."""
        query = select(self._table).where(*conditions).order_by(*order)
        return [self._record(row) for row in connection.execute(query)]

    def _find(self, connection: Connection, *conditions: ColumnElement[bool]) -> R | None:
        """The one record that meets the conditions."""
        found = self._read(connection, *conditions)
        assert len(found) < 2
        return found[0] if found else None


class RevisedStore(RecordStore[R]):
    """The records of a table whose rows carry the revision at which each was changed last."""

    _topic: ClassVar[schema.Topic]
    """Whose counter gives the revisions."""

    def changed_since(self, revision: int) -> tuple[int, Sequence[R]]:
        """The present revision and the records changed after ``revision`` (0: all), in their order."""
        changed = self._table.c.revision
        with self._database.read() as connection:
            connection.execution_options(yield_per=_BATCH_ROWS)
            found = schema.read_revision(connection, self._topic)
            present, since = self._database.since(revision, found)
            if present == revision:
                return present, []
            return present, self._read(connection, changed > since, order=(changed,))

    def _change(self, connection: Connection, key: object, **values: Any) -> None:
        """Set columns of the row with this primary key, and have every process read it again."""
        (column,) = self._table.primary_key
        values["revision"] = schema.next_revision(connection, self._topic)
        connection.execute(update(self._table).where(column == key).values(**values))
