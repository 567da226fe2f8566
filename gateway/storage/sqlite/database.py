"""A database file of SQLite.

Settings and why: WAL, so that reading never waits for the command line's writing; ``synchronous=FULL``,
because writes are rare and a revocation must survive a power cut; ``busy_timeout``, so that two writers
queue; write transactions begin IMMEDIATE, so that they cannot fail half-way for want of the lock.
"""

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, Table, create_engine, event
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.domain.running_clock import running_s
from gateway.storage.changes import ChangeCounter
from gateway.storage.database import BUSY_TIMEOUT_S, Database
from gateway.storage.errors import (
    BadValue,
    StateBusy,
    StateCorrupt,
    StateError,
    StateMissing,
    StateUnwritable,
)
from gateway.storage.job_notices import JobNotice, JobNoticeBoard
from gateway.storage.locks import running_gateway
from gateway.storage.migrations import create_schema, refuse_too_new, upgrade_schema, write_version
from gateway.storage.schema import SCHEMA_VERSION, metadata
from gateway.storage.sqlite.copies import backup_path, make_backup
from gateway.storage.sqlite.wal import TURN_MS, begin_writing, enter_wal
from gateway.storage.statements import sharing_statements

READERS = 8
"""Connections for threads that read at once. Writers have one of their own, for which they queue: so a
thread that only reads never waits behind one that waits for the write lock."""

APPLICATION_ID = 0x544C_5354
"""``TLST`` in the file's header: tells our database from any other."""

_WHAT_IS_IT = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version
"""
"""One statement, so that another process cannot make the tables between two of its answers."""

_ADMINISTRATIVE = """
    SELECT (SELECT sum(value) FROM revisions), (SELECT id FROM acts ORDER BY number DESC LIMIT 1)
"""
"""Gives something else after each administrative change, whichever version of the program made it: that moves
the counter of what it changes or notes an act, and mostly does both. Usage, times and jobs, which are written
all the time and which no request reads anew, do neither."""

_NO_ROOM_BYTES = 65_536
"""Less than the log's index and a page need."""
_FAILED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_PRIMARY = 0xFF
"""SQLite's extended error codes carry the primary code in the low byte."""


class SqliteDatabase(Database):
    """A database file, opened, made or upgraded."""

    def __init__(self, path: Path) -> None:
        """Raises StateError. The directory exists; the file is made, mode 0600, where it is missing."""
        self._path = path
        self.place, self.backup_place = str(path), str(backup_path(path))
        self._source: sqlite3.Connection | None = None
        self.job_notices = JobNoticeBoard()
        self.changes = ChangeCounter(self._number_of_changes)
        self._number = 0
        self._data_version: int | None = None
        self._administrative: tuple[Any, ...] = ()
        """What ``_ADMINISTRATIVE`` gave at that version of the data."""
        _prepare_file(path)
        self._reader = _engine(path, READERS, _begin_reading)
        self._writer = _engine(path, 1, _begin_writing)
        event.listen(self._writer, "connect", _take_turns)
        with self._errors():
            self._watch = _connect(path)
            self._watch.isolation_level = None
        self._inode = path.stat().st_ino
        try:
            with self._errors():
                self._prepare_database()
        except StateError:
            self.close()
            raise

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        with self._errors(), self._reader.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        with self._errors(), self._writer.begin() as connection:
            yield connection
        self.changes.written()

    @contextlib.contextmanager
    def write_concurrently(self) -> Iterator[Connection]:
        """A file has one writer, so it waits for the others as :meth:`write` does."""
        with self._errors(), self._writer.begin() as connection:
            yield connection

    def tell(self, connection: Connection, notice: JobNotice) -> None:
        """Files pass nothing on: other workers look."""

    def insert(self, table: Table) -> Insert:
        return insert(table)

    def is_in_place(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def hold_open(self) -> None:
        with self._errors(), self._writer.connect(), self._reader.connect():
            pass

    def now_s(self) -> float:
        return time.time()

    def interval_s(self, connection: Connection) -> float:
        """The host's clock since it was booted, which nobody sets: its processes alone can share a file."""
        return running_s()

    def is_served(self) -> bool:
        return running_gateway(self._path.parent) is not None

    makes_backups = True

    def make_backup(self) -> None:
        """Through a connection that stays open from the first one on: it outlives the file."""
        if self._source is None:
            with self._errors():
                self._source = _connect(self._path)
        make_backup(self._path, self._source)

    def close(self) -> None:
        self.changes.close()
        if self._source is not None:
            self._source.close()
            self._source = None
        self._watch.close()
        self._reader.dispose()
        self._writer.dispose()

    def _number_of_changes(self) -> int:
        """Raises StateError. One call at a time. Nothing is read while nobody has committed anything."""
        try:
            version: int = self._watch.execute("PRAGMA data_version").fetchone()[0]
            if version != self._data_version:
                found = self._watch.execute(_ADMINISTRATIVE).fetchone()
                self._number += found != self._administrative
                self._data_version, self._administrative = version, found
        except sqlite3.Error as error:
            raise self._translated(error) from error
        return self._number

    def _prepare_database(self) -> None:
        self._watch.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        version = self._schema_version()
        if version > SCHEMA_VERSION:
            with self.read() as connection:
                refuse_too_new(version, connection, str(self._path))
        self._enter_wal()
        if version < SCHEMA_VERSION:
            with self.write() as connection:
                self._upgrade(connection)

    def _schema_version(self) -> int:
        """0 for an empty file. Raises StateCorrupt for a database that is not ours."""
        application: int
        version: int
        tables: int
        application, version, tables = self._watch.execute(_WHAT_IS_IT).fetchone()
        if application != APPLICATION_ID and (application or version or tables):
            raise StateCorrupt(
                f"{self._path} is a database of another program: move it away, or use another state directory"
            )
        return version

    def _enter_wal(self) -> None:
        if enter_wal(self._watch, BUSY_TIMEOUT_S) != "wal":
            raise StateUnwritable(
                f"the file system of {self._path} cannot hold the database (no shared memory for its "
                "log): use a state directory on a local disk"
            )

    def _upgrade(self, connection: Connection) -> None:
        """Under the write lock; another process may have done it while we waited."""
        version: int = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version >= SCHEMA_VERSION:
            return refuse_too_new(version, connection, str(self._path))
        if version == 0:
            _make_indexes_partial()
            create_schema(connection)
        else:
            upgrade_schema(connection, version)
        write_version(connection)
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Foreign exceptions end here. Bytes of a command line that are no UTF-8 cannot be stored."""
        try:
            yield
        except IntegrityError:
            raise
        except UnicodeEncodeError as error:
            raise BadValue("what was given is no text in UTF-8") from error
        except DatabaseError as error:
            raise self._translated(error.orig) from error
        except sqlite3.Error as error:
            raise self._translated(error) from error
        except PoolTimeout as error:
            raise StateBusy(f"too many threads use {self._path} at once: try again") from error

    def _translated(self, error: BaseException | None) -> StateError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
        if code == sqlite3.SQLITE_CANTOPEN and not self._path.exists():
            return StateMissing(
                f"{self._path} was deleted while it was in use: stop the gateway and start it again, it goes "
                f"on from {self._path.name}.bak"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StateBusy(
                f"another process has held {self._path} for over {BUSY_TIMEOUT_S:g} s: try again, "
                "and look for a stuck trunkline process if it stays so"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StateCorrupt(
                f"{self._path} is damaged ({error}): stop the gateway and start it again, it goes on from "
                f"{self._path.name}.bak where there is one; else restore the state directory from a backup, "
                "or move the file away and let every agent join again"
            )
        if code == sqlite3.SQLITE_FULL or (code in _FAILED and self._disk_full()):
            return StateUnwritable(f"the disk of {self._path} is full: make room and try again")
        if code in (*_FAILED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return StateUnwritable(
                f"cannot write {self._path} ({error}): run as the user that owns the state directory, "
                "and see that its disk is well"
            )
        return StateError(f"the database {self._path} failed: {error}")

    def _disk_full(self) -> bool:
        """SQLite has other names for it when it finds no room for its log's files."""
        try:
            return shutil.disk_usage(self._path.parent).free < _NO_ROOM_BYTES
        except OSError:
            return False


def _prepare_file(path: Path) -> None:
    """Make the file before SQLite does, or its mode would be the umask's; the log's files take it over.
    Behind a link nothing is made or changed: root may be here, and the link another user's."""
    made = 0 if path.is_symlink() else os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | made, 0o600)
        try:
            if made and os.fstat(file).st_mode & 0o077:
                os.chmod(file if os.chmod in os.supports_fd else path, 0o600)
        finally:
            os.close(file)
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error


def _make_indexes_partial() -> None:
    for table in metadata.tables.values():
        for index in table.indexes:
            if "where" in index.info:
                index.dialect_options["sqlite"]["where"] = index.info["where"]


def _engine(path: Path, connections: int, begin: Callable[[Connection], None]) -> Engine:
    """A pool of connections whose transactions open with ``begin``."""
    engine = create_engine(
        "sqlite://",
        creator=lambda: _connect(path),
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_S,
    )
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", begin)
    return sharing_statements(engine)


def _begin_reading(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_writing(connection: Connection) -> None:
    begin_writing(connection.connection.driver_connection, BUSY_TIMEOUT_S)  # type: ignore[arg-type]


def _take_turns(connection: Any, _record: object) -> None:
    connection.execute(f"PRAGMA busy_timeout = {TURN_MS}")


def _connect(path: Path) -> sqlite3.Connection:
    """To a database that is there: SQLite would make an empty one in place of one that was deleted."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, check_same_thread=False)


def _configure(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
