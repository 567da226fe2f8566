"""A copy of the state beside it, and its use: a gateway starts from it when the database is damaged."""

import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from gateway.storage import schema
from gateway.storage.copies import (
    backup_path,
    finish_restoring,
    make_backup,
    prepare_restoring,
    restoring_path,
    trouble_of,
)
from gateway.storage.errors import StateCorrupt
from gateway.storage.locks import Holding
from gateway.storage.sqlite import BUSY_TIMEOUT_S, SqliteDatabase

DAILY_S = 86_400.0
SOON_S = 60.0
"""After a change of who may do what: what was revoked is to stay revoked."""


class Backup:
    """Keeps the backup of a state that is open. Belongs to one thread, no event loop's."""

    def __init__(self, database: SqliteDatabase, path: Path) -> None:
        self._database = database
        self._path = path
        self._made_s = float("-inf")
        self._rights: tuple[int, ...] = ()
        self._deleted = False
        self._source: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close what copies are made through. Idempotent."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def keep(self, now_s: float) -> None:
        """Make a backup if one is due: at first, daily, soon after keys, tokens, agents or aliases changed.

        When somebody deletes the database the log says so, and the backup is made from what is still open: at
        once, and at once after every change, since a gateway that starts again has nothing else. ``now_s`` is
        monotonic. Raises StateError; the backup there was is still there.
        """
        fresh = self._notice_deletion()
        age_s, rights = now_s - self._made_s, self._read_rights()
        too_soon = age_s < SOON_S and not self._deleted
        if not fresh and (too_soon or (age_s < DAILY_S and rights == self._rights)):
            return
        self._make()
        self._made_s, self._rights = now_s, rights

    def last(self) -> None:
        """Before the state is closed: of one that was deleted everything that is known is kept. Raises
        StateError."""
        if not self._database.is_in_place():
            self._make()

    def _make(self) -> None:
        """Through a connection that was opened while the database was there."""
        if self._source is None:
            self._source = self._database.connect()
        make_backup(self._path, self._source)

    def _notice_deletion(self) -> bool:
        """Whether the database was deleted, or another put in its place, since this was last asked."""
        deleted = not self._database.is_in_place()
        new, self._deleted = deleted and not self._deleted, deleted
        if new:
            _log().error(
                "state_deleted",
                path=str(self._path),
                backup=str(backup_path(self._path)),
                what="the database was deleted or replaced while this gateway runs on it; it serves on with "
                "what it has open and keeps the backup up to date; started again it goes on from the backup",
            )
        return new

    def _read_rights(self) -> tuple[int, ...]:
        """Other numbers once keys, tokens, agents or aliases have changed."""
        tokens = schema.tokens.c
        query = select(func.count(), func.total(tokens.uses), func.count(tokens.revoked_s))
        with self._database.read() as connection:
            counts = connection.execute(query.select_from(schema.tokens)).one()
            revisions = (schema.read_revision(connection, topic) for topic in schema.Topic)
            return (*map(int, counts), *revisions)


def recover(path: Path, holding: Holding) -> None:
    """Before a gateway opens its database: if it is damaged or missing, go on from the backup, and say so.

    ``holding`` is shared before and afterwards. Raises StateCorrupt, having changed nothing, when there is no
    good backup or somebody else has the state open.
    """
    reason = _damage(path)
    if not reason:
        return
    if not holding.alone(BUSY_TIMEOUT_S):
        holding.share(BUSY_TIMEOUT_S)
        raise StateCorrupt(f"{path} is damaged ({reason}), and another process has it open: stop that first")
    try:
        reason = _damage(path)
        if not reason:
            return
        if not restoring_path(path).exists():
            prepare_restoring(path, reason)
        restored = finish_restoring(path, reason, time.time())
    finally:
        holding.share(BUSY_TIMEOUT_S)
    _log().error(
        "state_restored_from_backup",
        damage=reason,
        set_aside=None if restored.damaged is None else str(restored.damaged),
        lost="what changed since the backup: keys, tokens, agents, aliases, revocations, usage",
        backup_age_s=round(time.time() - restored.backup_s),
    )


def _damage(path: Path) -> str:
    """Why the backup is to take its place, if it is to."""
    if restoring_path(path).exists():
        return "a restoring was interrupted"
    if not path.exists():
        return "it is missing" if backup_path(path).exists() else ""
    if not backup_path(path).exists() and path.stat().st_size == 0:
        return ""
    trouble = trouble_of(path)
    return "" if trouble == "it is empty" and not backup_path(path).exists() else trouble


def _log() -> Any:
    """Imported when there is something to say: commands wait for every import."""
    import structlog

    return structlog.get_logger(__name__)
