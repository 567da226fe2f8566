"""Which gateway processes use the store: a row each, which its process writes again every few seconds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Connection, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.storage import schema
from gateway.storage.database import Database

KEPT_S = 3600.0
"""The row of a process that ended without taking it away stays for so long, for people to look at."""

HEAD_CHARS = 96
"""Characters at the beginning of what a process tells that differ from one time to the next."""

_ALL = tuple(schema.processes.columns)
_EACH_BEAT = tuple(column for column in _ALL if column.name != "knowledge")
"""What has learnt much is long, and nobody needs it every few seconds."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A gateway process as it says itself."""

    id: str
    """Its name, as agents know it (PROTOCOL §7.5)."""
    incarnation: int
    """Higher each time it is started."""
    url: str | None
    """Where agents dial it; None: by its path."""
    host: str
    version: str
    started: float
    """Seconds since 1970."""
    heard: float = 0.0
    """When it wrote its row last, on the store's clock."""
    wanted: str | None = None
    """What requests wait for there (:mod:`gateway.cluster.placement_demands`); None: nothing."""
    address: str | None = None
    """The URL at which the other processes ask this one; None: ``url``."""
    knowledge: str | None = None
    """What it has learnt and the others may use; None: nothing. In a beat None leaves what its row says, and
    the report of a beat has it of nobody: :meth:`ProcessStore.knowledge` and :meth:`ProcessStore.list` have
    it."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """All rows there are, the process's own included, in the order of their names."""

    now: float
    """On the store's clock."""
    records: tuple[ProcessRecord, ...]
    superseded: bool = False
    """The row of this process is another one's, of a higher incarnation."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """The first ``HEAD_CHARS`` characters of what each process has learnt, of those that tell something; in
    the report of a beat."""


class ProcessStore:
    """The rows. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next_incarnation(self, process: str, least: int) -> int:
        """One for a process that starts now: ``least``, or higher where its row says more."""
        table = schema.processes.c
        with self._database.read() as connection:
            query = select(table.incarnation).where(table.id == process)
            before = connection.execute(query).scalar_one_or_none()
        return least if before is None else max(least, int(before) + 1)

    def beat(self, record: ProcessRecord, *, sweep: bool = False) -> ProcessReport:
        """Write the process's row, unless a later incarnation has it, and read all. With ``sweep`` rows that
        nobody has written for ``KEPT_S`` go."""
        try:
            with self._database.write_concurrently() as connection:
                now = self._database.interval_s(connection)
                written = _write(connection, record, now)
                if sweep:
                    _sweep(connection, now)
                records, heads = _read(connection, _EACH_BEAT), _heads(connection)
                return ProcessReport(now, records, superseded=not written, heads=heads)
        except IntegrityError:  # another one of this name has just made the row
            return self.beat(record)

    def leave(self, process: str, incarnation: int) -> None:
        """The process has stopped: its row goes."""
        table = schema.processes.c
        with self._database.write_concurrently() as connection:
            mine = (table.id == process, table.incarnation == incarnation)
            connection.execute(delete(schema.processes).where(*mine))

    def knowledge(self, processes: Collection[str], most_chars: int) -> dict[str, str]:
        """What these processes have learnt, as far as they tell something, cut after ``most_chars``
        characters."""
        table = schema.processes.c
        query = select(table.id, func.substr(table.knowledge, 1, most_chars))
        query = query.where(table.id.in_(sorted(processes)), table.knowledge.is_not(None))
        with self._database.read() as connection:
            return {str(name): str(text) for name, text in connection.execute(query)}

    def list(self) -> ProcessReport:
        """All rows, also those of processes that are no more."""
        with self._database.read() as connection:
            return ProcessReport(self._database.interval_s(connection), _read(connection, _ALL))


def _write(connection: Connection, record: ProcessRecord, now: float) -> bool:
    """Whether the row is this incarnation's. Raises IntegrityError where another made it meanwhile."""
    table = schema.processes
    values = {
        "incarnation": record.incarnation,
        "url": record.url,
        "host": record.host,
        "version": record.version,
        "started": record.started,
        "heard": now,
        "wanted": record.wanted,
        "address": record.address,
    }
    if record.knowledge is not None:
        values["knowledge"] = record.knowledge
    mine = (table.c.id == record.id, table.c.incarnation <= record.incarnation)
    if connection.execute(update(table).where(*mine).values(values)).rowcount:
        return True
    query = select(table.c.incarnation).where(table.c.id == record.id)
    if connection.execute(query).first() is not None:
        return False
    connection.execute(insert(table).values(id=record.id, **values))
    return True


def _sweep(connection: Connection, now: float) -> None:
    """Rows of long ago go, and rows of a time to come: the clock was another one then."""
    table = schema.processes.c
    old = or_(table.heard < now - KEPT_S, table.heard > now + KEPT_S)
    chosen = select(table.id).where(old).order_by(table.id).with_for_update(skip_locked=True)
    connection.execute(delete(schema.processes).where(table.id.in_(chosen)))


def _heads(connection: Connection) -> dict[str, str]:
    table = schema.processes.c
    query = select(table.id, func.substr(table.knowledge, 1, HEAD_CHARS)).where(table.knowledge.is_not(None))
    return {str(name): str(text) for name, text in connection.execute(query)}


def _read(connection: Connection, columns: Sequence[Column[Any]]) -> tuple[ProcessRecord, ...]:
    rows = connection.execute(select(*columns).order_by(schema.processes.c.id)).mappings()
    return tuple(ProcessRecord(**{str(name): value for name, value in row.items()}) for row in rows)
