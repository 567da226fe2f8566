"""What the server says when it fails becomes an error that says what to do."""

import psycopg
import pytest
from psycopg import errors

from gateway.storage.errors import (
    BadValue,
    StateBusy,
    StateCorrupt,
    StateError,
    StateUnreachable,
    StateUnwritable,
)
from gateway.storage.postgres.failures import translated


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (psycopg.OperationalError(), StateUnreachable, "cannot reach DB"),
        (errors.AdminShutdown(), StateUnreachable, "cannot reach DB"),
        (errors.CannotConnectNow(), StateUnreachable, "cannot reach DB"),
        (errors.ConnectionFailure(), StateUnreachable, "cannot reach DB"),
        (errors.LockNotAvailable(), StateBusy, "another process has held"),
        (errors.DeadlockDetected(), StateBusy, "another process has held"),
        (errors.SerializationFailure(), StateBusy, "another process has held"),
        (errors.QueryCanceled(), StateBusy, "took too long"),
        (errors.TooManyConnections(), StateBusy, "max_connections"),
        (errors.ReadOnlySqlTransaction(), StateUnwritable, "address of the primary"),
        (errors.DiskFull(), StateUnwritable, "make room"),
        (errors.InsufficientPrivilege(), StateUnwritable, "does not permit"),
        (errors.InvalidPassword(), StateUnwritable, "does not permit"),
        (errors.UndefinedTable(), StateCorrupt, "store check"),
        (errors.DataCorrupted(), StateCorrupt, "restore it from a backup"),
        (psycopg.DataError(), BadValue, "cannot be stored"),
        (errors.NumericValueOutOfRange(), BadValue, "cannot be stored"),
        (psycopg.ProgrammingError(), StateError, "DB failed: WHY"),
    ],
)
def test_errors_are_named_by_what_they_mean(error: psycopg.Error, kind: type[Exception], said: str) -> None:
    found = translated(error, "DB", "WHY")
    assert type(found) is kind
    assert said in str(found)
