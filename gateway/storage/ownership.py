"""Who may do what only one process may: a lease, which its owner renews and any other takes once it is over.

A lease ends by itself, on the store's clock, so nothing has to be released by who cannot: no lock of a
session is held, which a pool of connections would leak and a frozen process keep. Each new owner has a higher
epoch, by which those who are told something know that it comes from an earlier one.
"""

from dataclasses import dataclass, replace

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.storage import schema
from gateway.storage.database import Database


@dataclass(frozen=True, slots=True)
class OwnershipLease:
    """Who owns something. ``until`` is on the store's clock; ``owner`` is None when it was given back."""

    name: str
    owner: str | None
    incarnation: int
    epoch: int
    until: float

    def held_by(self, process: str, incarnation: int) -> bool:
        return self.owner == process and self.incarnation == incarnation


@dataclass(frozen=True, slots=True)
class OwnershipClaim:
    """A process wants something, or wants to go on with it, for ``ttl_s`` seconds."""

    name: str
    process: str
    incarnation: int
    ttl_s: float
    least_epoch: int
    """A new owner's epoch is no lower: a store that was restored from a backup, or made anew, may have
    forgotten epochs that others remember."""

    def on(self, lease: OwnershipLease | None, now: float) -> OwnershipLease | None:
        """The lease as it is after the claim was made at ``now``; None: it is another one's. Pure.

        An earlier incarnation of the same process is over, whatever its lease says. A lease that ends later
        than any given now could is one of before the clock was set back: it is as long as a new one.
        """
        until = now + self.ttl_s
        if lease is None:
            return OwnershipLease(self.name, self.process, self.incarnation, self.least_epoch, until)
        if lease.held_by(self.process, self.incarnation):
            return replace(lease, until=until)
        same = lease.owner == self.process
        if same and lease.incarnation > self.incarnation:
            return None
        if lease.owner is None or same or now >= lease.until:
            epoch = max(lease.epoch + 1, self.least_epoch)
            return OwnershipLease(self.name, self.process, self.incarnation, epoch, until)
        return replace(lease, until=until) if lease.until > until else None


class OwnershipStore:
    """The leases. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, claim: OwnershipClaim) -> OwnershipLease | None:
        """Have it, or go on having it: the lease; another one's where it is that. None: somebody is just
        changing it, ask again.

        Who does not get it waits for nobody and writes nothing."""
        with self._database.read() as connection:
            seen = _read(connection, claim.name)
            if seen is not None and claim.on(seen, self._database.interval_s(connection)) is None:
                return seen
        try:
            with self._database.write_concurrently() as connection:
                return self._take(connection, claim, new=seen is None)
        except IntegrityError:  # another one has just made the row
            return None

    def release(self, name: str, process: str, incarnation: int) -> None:
        """Give it back, if it is this incarnation's: the next one has it at once."""
        table = schema.leases
        mine = (table.c.name == name, table.c.owner == process, table.c.incarnation == incarnation)
        with self._database.write_concurrently() as connection:
            connection.execute(update(table).where(*mine).values(owner=None))

    def read(self, name: str) -> OwnershipLease | None:
        """As it is; None: nobody ever had it."""
        with self._database.read() as connection:
            return _read(connection, name)

    def _take(self, connection: Connection, claim: OwnershipClaim, *, new: bool) -> OwnershipLease | None:
        """Raises IntegrityError."""
        table = schema.leases
        if new:
            found = claim.on(None, self._database.interval_s(connection))
            assert found is not None
            connection.execute(insert(table).values(_values(found)))
            return found
        seen = _read(connection, claim.name, lock=True)
        if seen is None:
            return None
        after = claim.on(seen, self._database.interval_s(connection))
        if after is None:
            return seen
        connection.execute(update(table).where(table.c.name == claim.name).values(_values(after)))
        return after


def _read(connection: Connection, name: str, *, lock: bool = False) -> OwnershipLease | None:
    """With ``lock``, the row until the transaction ends; None also where another one has locked it."""
    query = select(schema.leases).where(schema.leases.c.name == name)
    if lock:
        query = query.with_for_update(skip_locked=True)
    row = connection.execute(query).first()
    return None if row is None else OwnershipLease(*row)


def _values(lease: OwnershipLease) -> dict[str, object]:
    return {
        "name": lease.name,
        "owner": lease.owner,
        "incarnation": lease.incarnation,
        "epoch": lease.epoch,
        "until": lease.until,
    }
