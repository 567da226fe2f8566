"""What the store asks of a database beside SQLAlchemy Core, which is all that its other modules speak.

Whatever only one kind of database has (its settings, its words for "insert or change", its errors, its
copies) is behind this interface. :mod:`gateway.storage.sqlite` implements it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.sql.dml import Insert

from gateway.storage.changes import ChangeCounter

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

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that sees one state throughout. Raises StateError."""

    @abstractmethod
    def write(self) -> AbstractContextManager[Connection]:
        """A transaction that holds the one write lock; commits unless the block raises. Raises StateError.

        Waits up to ``BUSY_TIMEOUT_S`` and for the disk: not for an event loop's thread.
        """

    @abstractmethod
    def upsert(
        self, table: Table, merge: Merge = lambda before, given: given, *, keep: Collection[str] = ()
    ) -> Insert:
        """A statement that inserts the rows it is executed with. Where there is one with the same primary
        key, each of its other columns becomes what ``merge`` says, but for those to ``keep``."""

    @abstractmethod
    def is_in_place(self) -> bool:
        """Whether the database is still what was opened: neither deleted nor replaced."""

    @abstractmethod
    def hold_open(self) -> None:
        """Open the connections now that are else opened at their first use: these go on working when the
        database is deleted. Raises StateError."""

    @abstractmethod
    def make_backup(self) -> None:
        """Copy the database as it is now, while others use it; also when it was deleted. One call at a time.

        The backup there was stays until the new one is whole and sound. Raises StateError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every connection. Idempotent."""
