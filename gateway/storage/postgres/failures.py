"""What PostgreSQL says when it fails, as errors of the store that say what to do."""

import psycopg

from gateway.storage.database import BUSY_TIMEOUT_S
from gateway.storage.errors import (
    BadValue,
    RecordError,
    StateBusy,
    StateCorrupt,
    StateError,
    StateUnreachable,
    StateUnwritable,
)

_AWAY = ("08", "57P")
"""The connection broke, or the server is going down or coming up. Beginnings of SQLSTATE codes."""

_TABLE: tuple[tuple[tuple[str, ...], type[StateError], str], ...] = (
    (
        ("55P03", "40"),
        StateBusy,
        f"another process has held what is to be changed in {{place}} for over {BUSY_TIMEOUT_S:g} s: try "
        "again, and look for a stuck trunkline process if it stays so",
    ),
    (("57014",), StateBusy, "{place} took too long and was stopped ({said}): see what it is busy with"),
    (("53300",), StateBusy, "{place} has no connection left ({said}): raise max_connections, or try again"),
    (
        ("25006",),
        StateUnwritable,
        "{place} takes no writes, it is a standby or set to read-only: give the address of the primary, or "
        "several hosts and target_session_attrs=read-write",
    ),
    (("53",), StateUnwritable, "{place} has run out of disk or memory ({said}): make room and try again"),
    (
        ("42501", "28"),
        StateUnwritable,
        "{place} does not permit this ({said}): the user must be allowed to connect, and own the tables or "
        "be granted them",
    ),
    (
        ("42P01", "42703"),
        StateCorrupt,
        "tables are missing in {place} ({said}): run trunkline store check, or restore it from a backup",
    ),
    (("XX001", "XX002"), StateCorrupt, "{place} is damaged ({said}): restore it from a backup"),
)
"""What codes that begin so mean; the first that fits counts."""


def translated(error: BaseException, place: str, said: str) -> StateError | RecordError:
    """``said`` is what the server or the driver said, on one line without secrets."""
    code = getattr(error, "sqlstate", None) or ""
    if isinstance(error, psycopg.DataError):
        return BadValue(f"a value cannot be stored ({said})")
    for beginnings, kind, message in _TABLE:
        if code.startswith(beginnings):
            return kind(message.format(place=place, said=said))
    if code.startswith(_AWAY) or (not code and isinstance(error, psycopg.OperationalError)):
        return StateUnreachable(
            f"cannot reach {place} ({said}): see that it runs and can be reached, and that the address has "
            "the right user, password and database"
        )
    return StateError(f"{place} failed: {said}")
