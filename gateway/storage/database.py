"""What the store asks of a database beside SQLAlchemy Core, which is all that its other modules speak.

Whatever only one kind of database has (its settings, its words for "insert or change", its errors, its
copies) is behind this interface. :mod:`gateway.storage.sqlite` and :mod:`gateway.storage.postgres` implement
it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.sql.dml import Insert

from gateway.storage.changes import SOURCE, ChangeCounter
from gateway.storage.job_notices import JobNotice, JobNoticeBoard

BUSY_TIMEOUT_S = 5.0
"""How long one writer waits for another. Transactions here take milliseconds."""

Merge = Callable[[ColumnElement[Any], ColumnElement[Any]], ColumnElement[Any]]
"""The value of a column, from the one that is there and the one that was given."""


class Database(ABC):
    """A database with the tables of :mod:`gateway.storage.schema`. Usable from several threads.

    Errors of the database are raised as StateError, but for ``sqlalchemy.exc.IntegrityError``: what a row
    clashes with only its writer knows. Text that cannot be stored is BadValue.
    """

    place: str
    """Where it is, for people."""
    backup_place: str
    """Where :meth:`make_backup` puts the backup, for people."""
    changes: ChangeCounter
    """Tells whether anybody, in any process, has committed a change."""
    job_notices: JobNoticeBoard
    """Hears what any process, this one too, has told with :meth:`tell`, where the database passes it on."""

    @abstractmethod
    def tell(self, connection: Connection, notice: JobNotice) -> None:
        """Have all processes hear ``notice`` once the transaction is committed, where the database passes
        such on."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that sees one state throughout. Raises StateError."""

    @abstractmethod
    def write(self) -> AbstractContextManager[Connection]:
        """A transaction that holds the one write lock; commits unless the block raises. Raises StateError.

        Waits up to ``BUSY_TIMEOUT_S`` and for the disk: not for an event loop's thread.
        """

    def write_concurrently(self) -> AbstractContextManager[Connection]:
        """A transaction beside the one that holds the write lock, of which nobody is told: for sums and times
        that each process adds to all the time, and that nobody keeps in memory.

        Its statements must be right whatever runs beside them, and lock rows in the order of their keys, or
        skip those that are locked. Commits unless the block raises. Raises StateError.
        """
        return self.write()

    @abstractmethod
    def insert(self, table: Table) -> Any:
        """The dialect's own insert: it knows ``on_conflict_do_update``, for keys that are there already."""

    def upsert(
        self, table: Table, merge: Merge = lambda before, given: given, *, keep: Collection[str] = ()
    ) -> Insert:
        """A statement that inserts the rows it is executed with. Where there is one with the same primary
        key, each of its other columns becomes what ``merge`` says, but for those to ``keep``."""
        statement, key = self.insert(table), list(table.primary_key)
        merged = {
            column.name: merge(column, statement.excluded[column.name])
            for column in table.columns
            if not column.primary_key and column.name not in keep
        }
        found: Insert = statement.on_conflict_do_update(index_elements=key, set_=merged)
        return found

    @property
    def source(self) -> int:
        """Another number where the database may be on another server than before, which may lack the latest
        changes of that one."""
        return 0

    def since(self, revision: int, present: int) -> tuple[int, int]:
        """``revision`` is as this method gave it before. ``present`` as it is to be given next time, and
        after which revision rows are to be read: after 0, all of them, where the server may be another."""
        source, since = divmod(revision, SOURCE)
        return present + self.source * SOURCE, since if source == self.source else 0

    @abstractmethod
    def is_in_place(self) -> bool:
        """Whether the database is still what was opened: neither deleted nor replaced."""

    @abstractmethod
    def hold_open(self) -> None:
        """Open the connections now that are else opened at their first use: these go on working when the
        database is deleted. Raises StateError."""

    @abstractmethod
    def now_s(self) -> float:
        """Seconds since 1970 by the clock that all processes on this database share. Raises StateError."""

    @abstractmethod
    def interval_s(self, connection: Connection) -> float:
        """Seconds of a clock that all processes on this database share, for what is compared with itself
        only: since when it counts is not said. Raises StateError."""

    @abstractmethod
    def is_served(self) -> bool:
        """Whether a gateway, of any process on any host, has the database open. False where that cannot be
        told."""

    makes_backups: bool
    """Whether :meth:`make_backup` does so; else the database's operator does."""

    @abstractmethod
    def make_backup(self) -> None:
        """Copy the database as it is now, while others use it; also when it was deleted. One call at a time.

        The backup there was stays until the new one is whole and sound. Raises StateError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every connection. Idempotent."""
