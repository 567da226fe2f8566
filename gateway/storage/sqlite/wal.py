"""SQLite's write-ahead log, and whose turn it is to write to it."""

import sqlite3
import time
from random import random

_RETRY_S = 0.02

TURN_MS = 2
"""SQLite's own wait for the lock, of a connection that begins with :func:`begin_writing`."""

_PAUSE_S = 0.004
"""The longest pause between two of its tries."""

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
            if not _is_busy(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)


def begin_writing(connection: sqlite3.Connection, wait_s: float) -> None:
    """Begin a transaction with the lock for writing, once it is free, and wait ``wait_s`` for that.

    SQLite's own wait looks for a free lock ten times a second, while others that write one transaction after
    the other take it between two of these looks: whoever waits gets no turn for seconds. This one looks at
    short distances that are drawn by chance. ``connection`` is to have ``TURN_MS`` as its ``busy_timeout``.
    Raises sqlite3.OperationalError after ``wait_s``, and for all else that is wrong.
    """
    deadline_s: float | None = None
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + wait_s
            if now_s >= deadline_s:
                raise
            time.sleep(random() * _PAUSE_S)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY
