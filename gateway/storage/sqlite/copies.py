"""Copies of the database: made while it is in use, and put in its place when it is damaged.

Beside ``gateway.db`` lie ``.bak``, the last good copy; ``.restoring``, a copy that is about to take its place
(from the moment it lies there it will, whatever happens); ``.damaged-TIME``, what was set aside.
"""

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gateway.storage.database import BUSY_TIMEOUT_S
from gateway.storage.errors import StateCorrupt, StateUnwritable
from gateway.storage.locks import Holding

_LOG_FILES = ("-wal", "-shm")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF


def backup_path(path: Path) -> Path:
    return _beside(path, ".bak")


def restoring_path(path: Path) -> Path:
    return _beside(path, ".restoring")


def damage_of(path: Path, *, still: bool = False, only_read: bool = False) -> str:
    """What is wrong with the database at ``path``; empty when it is sound, or in a way that is no damage.

    Reads all of it, but not each value. A ``still`` file is in nobody's use, and is not written; with
    ``only_read`` no other is, either. Raises StateUnwritable when it cannot be read.
    """
    mode = "ro&immutable=1" if still else "ro" if only_read else "rw"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            said: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _DAMAGED:
            return str(error)
        raise StateUnwritable(f"cannot read {path} ({error}): see that its disk is well") from error
    if said != "ok":
        return " ".join(said.split())
    return "" if tables else "it is empty"


def make_backup(path: Path, source: sqlite3.Connection) -> None:
    """Copy the database as it is now, read through ``source``, to its ``.bak``, while others use it. Raises
    StateError.

    The backup there was stays until the new one is whole and sound.
    """
    fresh = _beside(path, ".bak-new")
    try:
        with _foreign_errors(fresh):
            _empty(fresh)
            with contextlib.closing(sqlite3.connect(fresh)) as target:
                source.backup(target)
            if trouble := damage_of(fresh, still=True):
                raise StateCorrupt(f"{path} is damaged ({trouble}); its backup was left as it is")
            _sync(fresh)
            fresh.replace(backup_path(path))
            _sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def copy_files(path: Path, to: Path) -> None:
    """Copy the database at ``path``, with what is only in its log, to a new file. Raises StateError."""
    with _foreign_errors(to):
        _empty(to)
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with (
            contextlib.closing(sqlite3.connect(uri, uri=True)) as source,
            contextlib.closing(sqlite3.connect(to)) as target,
        ):
            source.backup(target)


def prepare_restoring(path: Path, reason: str) -> None:
    """From now on the backup is to take the database's place. Raises StateError, having changed nothing."""
    backup, fresh = backup_path(path), _beside(path, ".restoring-new")
    if not backup.exists():
        raise StateCorrupt(
            f"{path} is damaged ({reason}), and there is no {backup.name} beside it: restore the state "
            "directory from a backup; without one, move the file away and let every agent join again"
        )
    if trouble := damage_of(backup, still=True):
        raise StateCorrupt(
            f"{path} cannot be used ({reason}), nor can {backup.name} ({trouble}): restore the state "
            "directory from a backup; without one, move both files away and let every agent join again"
        )
    try:
        with _foreign_errors(fresh):
            _empty(fresh)
            shutil.copyfile(backup, fresh)
            shutil.copystat(backup, fresh)
            _sync(fresh)
            fresh.replace(restoring_path(path))
            _sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def finish_restoring(path: Path, wall_s: float) -> tuple[Path | None, float]:
    """Set the database aside with its log, nothing is deleted, and put what was prepared in its place. Where
    what was found lies now, None where there was nothing; and when the backup was made."""
    restoring, damaged = restoring_path(path), _set_aside_path(path, wall_s)
    there = path.exists()
    with _foreign_errors(restoring):
        backup_s = restoring.stat().st_mtime
        for suffix in ("", *_LOG_FILES):
            with contextlib.suppress(FileNotFoundError):
                _beside(path, suffix).rename(_beside(damaged, suffix))
        restoring.replace(path)
        _sync(path.parent)
    return damaged if there else None, backup_s


def recover(path: Path, holding: Holding) -> None:
    """Before a gateway opens its database: if it is damaged or missing, go on from the backup, and say so.

    ``holding`` is shared before and afterwards. Raises StateCorrupt, having changed nothing, when there is no
    good backup or somebody else has the state open.
    """
    reason = _reason_to_restore(path)
    if not reason:
        return
    if not holding.alone(BUSY_TIMEOUT_S):
        holding.share(BUSY_TIMEOUT_S)
        raise StateCorrupt(f"{path} is damaged ({reason}), and another process has it open: stop that first")
    try:
        reason = _reason_to_restore(path)
        if not reason:
            return
        if not restoring_path(path).exists():
            prepare_restoring(path, reason)
        damaged, backup_s = finish_restoring(path, time.time())
    finally:
        holding.share(BUSY_TIMEOUT_S)
    import structlog  # here, because every command waits for what is imported above

    structlog.get_logger(__name__).error(
        "state_restored_from_backup",
        damage=reason,
        set_aside=None if damaged is None else str(damaged),
        lost="what changed since the backup: keys, tokens, agents, aliases, revocations, usage",
        backup_age_s=round(time.time() - backup_s),
    )


def _reason_to_restore(path: Path) -> str:
    """Why the backup is to take its place, if it is to."""
    if restoring_path(path).exists():
        return "a restoring was interrupted"
    has_backup = backup_path(path).exists()
    trouble = damage_of(path) if path.exists() else "it is missing"
    return "" if trouble in ("it is missing", "it is empty") and not has_backup else trouble


def _set_aside_path(path: Path, wall_s: float) -> Path:
    """A name beside ``path`` that is free."""
    name = f".damaged-{datetime.fromtimestamp(wall_s, UTC):%Y%m%dT%H%M%SZ}"
    chosen, number = _beside(path, name), 1
    while any(_beside(chosen, log).exists() for log in ("", *_LOG_FILES)):
        number += 1
        chosen = _beside(path, f"{name}.{number}")
    return chosen


@contextlib.contextmanager
def _foreign_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _DAMAGED:
            raise StateCorrupt(f"what was to be copied to {path} is damaged ({error})") from error
        raise StateUnwritable(
            f"cannot write {path} ({error}): see that its disk has room and is well"
        ) from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _empty(path: Path) -> None:
    """A file for its owner only: the copy holds what the database holds."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
