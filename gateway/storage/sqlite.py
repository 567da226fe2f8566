"""SQLite under the store: only this file and ``copies`` know which database it is.

Settings and why: WAL, so that reading never waits for the command line's writing; ``synchronous=FULL``,
because writes are rare and a revocation must survive a power cut; ``busy_timeout``, so that two writers
queue; write transactions begin IMMEDIATE, so that they cannot fail half-way for want of the lock.
"""

import contextlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.storage.errors import (
    BadValue,
    StateBusy,
    StateCorrupt,
    StateError,
    StateMissing,
    StateTooNew,
    StateUnwritable,
)
from gateway.storage.schema import SCHEMA_VERSION, create_schema, upgrade_schema

BUSY_TIMEOUT_S = 5.0
"""How long one writer waits for another. Transactions here take milliseconds."""

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

_WAL_RETRY_S = 0.02
_NO_ROOM_BYTES = 65_536
"""Less than the log's index and a page need."""
_FAILED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_PRIMARY = 0xFF
"""SQLite's extended error codes carry the primary code in the low byte."""


class SqliteDatabase:
    """A database file, opened, made or upgraded. Usable from several threads."""

    def __init__(self, path: Path) -> None:
        """Raises StateError. The directory exists; the file is made, mode 0600, where it is missing."""
        self._path = path
        self._watching = threading.Lock()
        _prepare_file(path)
        self._reader = _engine(path, READERS, "BEGIN")
        self._writer = _engine(path, 1, "BEGIN IMMEDIATE")
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
        """A transaction that sees one state throughout. Raises StateError."""
        with self._errors(), self._reader.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the one write lock; commits unless the block raises. Raises StateError.

        Waits up to ``BUSY_TIMEOUT_S`` and for the disk: not for an event loop's thread.
        """
        with self._errors(), self._writer.begin() as connection:
            yield connection

    def data_version(self) -> int:
        """A number that is another one once anybody, in any process, has committed a change.

        Costs a few microseconds. Raises StateError.
        """
        try:
            with self._watching:
                version: int = self._watch.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise self._translated(error) from error
        return version

    def is_in_place(self) -> bool:
        """Whether the file is still where it was opened: neither deleted nor another one."""
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def connect(self) -> sqlite3.Connection:
        """Another connection, for one thread at a time, to be closed by the caller. It stays good when the
        file is deleted. Raises StateError."""
        with self._errors():
            return _connect(self._path)

    def hold_open(self) -> None:
        """Open the connections now that are else opened at their first use: these go on working when the file
        is deleted. Raises StateError."""
        with self._errors(), self._writer.connect(), self._reader.connect():
            pass

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._watch.close()
        self._reader.dispose()
        self._writer.dispose()

    def _prepare_database(self) -> None:
        self._watch.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        version = self._schema_version()
        if version > SCHEMA_VERSION:
            raise StateTooNew(
                f"{self._path} was written by a later version of Trunkline (schema {version}, this one reads "
                f"up to {SCHEMA_VERSION}): upgrade Trunkline, or use another state directory"
            )
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
        """Switching to WAL needs the file for itself and does not wait by itself when others open it."""
        deadline_s = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                mode: str = self._watch.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                    raise
                time.sleep(_WAL_RETRY_S)
                continue
            if mode != "wal":
                raise StateUnwritable(
                    f"the file system of {self._path} cannot hold the database (no shared memory for its "
                    "log): use a state directory on a local disk"
                )
            return

    def _upgrade(self, connection: Connection) -> None:
        """Under the write lock; another process may have done it while we waited."""
        version: int = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version == 0:
            create_schema(connection)
        else:
            upgrade_schema(connection, version)
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Foreign exceptions end here, but for IntegrityError: what a row clashes with its writer knows. Text
        that cannot be stored (bytes of a command line that are no UTF-8) is BadValue."""
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


def _engine(path: Path, connections: int, begin: str) -> Engine:
    """A pool of connections whose transactions open with the statement ``begin``."""
    engine = create_engine(
        "sqlite://",
        creator=lambda: _connect(path),
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_S,
    )
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _connect(path: Path) -> sqlite3.Connection:
    """To a database that is there: SQLite would make an empty one in place of one that was deleted."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, check_same_thread=False)


def _configure(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()
