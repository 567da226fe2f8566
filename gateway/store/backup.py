"""A copy of the state beside it, and its use: a gateway starts from it when the database is damaged."""

import time
from pathlib import Path

import structlog
from sqlalchemy import func, select

from gateway.store import schema
from gateway.store.copies import (
    backup_path,
    finish_restoring,
    make_backup,
    prepare_restoring,
    restoring_path,
    set_aside_path,
    trouble_of,
)
from gateway.store.errors import StateCorrupt
from gateway.store.holding import Holding
from gateway.store.sqlite import BUSY_TIMEOUT_S, SqliteDatabase

DAILY_S = 86_400.0
SOON_S = 60.0
"""After a change of who may do what: what was revoked is to stay revoked."""

_log = structlog.get_logger(__name__)


class Backup:
    """Keeps the backup of a state that is open. Belongs to one thread, no event loop's."""

    def __init__(self, database: SqliteDatabase, path: Path) -> None:
        self._database = database
        self._path = path
        self._made_s = float("-inf")
        self._rights: tuple[int, ...] = ()

    def keep(self, now_s: float) -> None:
        """Make a backup if one is due: at first, daily, soon after keys, tokens, agents or aliases changed.

        ``now_s`` is monotonic. Raises StateError; the backup there was is still there.
        """
        age_s = now_s - self._made_s
        if age_s < SOON_S or (age_s < DAILY_S and self._read_rights() == self._rights):
            return
        rights = self._read_rights()
        make_backup(self._path)
        self._made_s, self._rights = now_s, rights

    def _read_rights(self) -> tuple[int, ...]:
        """Other numbers once keys, tokens, agents or aliases have changed."""
        tokens = schema.tokens.c
        query = select(func.count(), func.total(tokens.uses), func.count(tokens.revoked_s))
        with self._database.read() as connection:
            counts = connection.execute(query.select_from(schema.tokens)).one()
            revisions = (schema.read_revision(connection, topic) for topic in schema.Topic)
            return (*map(int, counts), *revisions)


def recover(path: Path, holding: Holding) -> None:
    """Before a gateway opens its database: if it is damaged, go on from the backup, and say so.

    ``holding`` is shared before and afterwards. Raises StateCorrupt, having changed nothing, when there is no
    good backup or somebody else has the state open.
    """
    if not path.exists() and not restoring_path(path).exists():
        _keep_backup_of_another(path)
        return
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
    _log.error(
        "state_restored_from_backup",
        damage=reason,
        set_aside=str(restored.damaged),
        lost="what changed since the backup: keys, tokens, agents, aliases, revocations, usage",
        backup_age_s=round(time.time() - restored.backup_s),
    )


def _damage(path: Path) -> str:
    """Why the backup is to take its place, if it is to."""
    if restoring_path(path).exists():
        return "a restoring was interrupted"
    if not backup_path(path).exists() and path.stat().st_size == 0:
        return ""
    trouble = trouble_of(path)
    return "" if trouble == "it is empty" and not backup_path(path).exists() else trouble


def _keep_backup_of_another(path: Path) -> None:
    """The database was moved away to begin anew: the new one's backups do not overwrite the old one's."""
    if backup_path(path).exists():
        kept = set_aside_path(path, ".bak", time.time())
        backup_path(path).rename(kept)
        _log.warning("state_begun_anew", old_backup=str(kept))
