"""SQLite's write-ahead log."""

import sqlite3
import time

_RETRY_S = 0.02

_PRIMARY = 0xFF
"""The part of an extended result code of SQLite that names the error."""


def enter_wal(connection: sqlite3.Connection, wait_s: float) -> str:
    """Switch the database to its write-ahead log, and return the mode it has then: ``wal``, or another where
    its file system has no shared memory.

    The switch needs the file for itself, and SQLite's busy timeout does not hold for it: where others open
    the database at the same time, it is tried for ``wait_s``. Raises sqlite3.OperationalError after that.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)
