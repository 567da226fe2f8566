"""When the backup is made from which a gateway goes on if its database is damaged or deleted."""

from sqlalchemy import func, select

from gateway.storage import schema
from gateway.storage.database import Database

DAILY_S = 86_400.0
SOON_S = 60.0
"""After a change of who may do what: what was revoked is to stay revoked."""


class Backup:
    """Keeps the backup of a state that is open. Belongs to one thread, no event loop's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made_s = float("-inf")
        self._rights: tuple[int, ...] = ()
        self._latest: tuple[int, tuple[int, ...]] | None = None
        """The number of changes when rights were read last, and what was read."""
        self.deleted = False
        """The database was not in its place when that was looked at last."""

    def keep(self, now_s: float) -> None:
        """Make a backup if one is due: at first, daily, soon after keys, tokens, agents or aliases changed.

        When somebody deletes the database the log says so, and the backup is made from what is still open: at
        once, and at once after every change, since a gateway that starts again has nothing else. ``now_s`` is
        monotonic. Raises StateError; the backup there was is still there.
        """
        fresh = self._notice_deletion()
        age_s, rights = now_s - self._made_s, self._present_rights()
        too_soon = age_s < SOON_S and not self.deleted
        if not fresh and (too_soon or (age_s < DAILY_S and rights == self._rights)):
            return
        self._database.make_backup()
        self._made_s, self._rights = now_s, rights

    def last(self) -> None:
        """Before the state is closed: of one that was deleted everything that is known is kept. Raises
        StateError."""
        if not self._database.is_in_place():
            self._database.make_backup()

    def _notice_deletion(self) -> bool:
        """Whether the database was deleted, or another put in its place, since this was last asked."""
        deleted = not self._database.is_in_place()
        new, self.deleted = deleted and not self.deleted, deleted
        if new:
            import structlog  # here, because every command waits for what is imported above

            structlog.get_logger(__name__).error(
                "state_deleted",
                path=self._database.place,
                backup=self._database.backup_place,
                what="the database was deleted or replaced while this gateway runs on it; it serves on with "
                "what it has open and keeps the backup up to date; started again it goes on from the backup",
            )
        return new

    def _present_rights(self) -> tuple[int, ...]:
        """As :meth:`_read_rights`, which is asked again only when somebody has changed the state."""
        number = self._database.changes.read()
        if self._latest is None or self._latest[0] != number:
            self._latest = number, self._read_rights()
        return self._latest[1]

    def _read_rights(self) -> tuple[int, ...]:
        """Other numbers once keys, tokens, agents or aliases have changed."""
        tokens = schema.tokens.c
        query = select(func.count(), func.sum(tokens.uses), func.count(tokens.revoked_s))
        with self._database.read() as connection:
            counts = connection.execute(query.select_from(schema.tokens)).one()
            revisions = (schema.read_revision(connection, topic) for topic in schema.Topic)
            return (*(int(count or 0) for count in counts), *revisions)
