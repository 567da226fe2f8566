"""Shared limits in a SQL database: SQLite for workers of one host, PostgreSQL where there is no Valkey.

A limit is one row, which its transaction locks; the rules are applied here, on the database's clock. The
rows of one exchange are locked in the order of their names, so no two transactions wait for each other. The
table has metadata of its own: it is no part of the durable state, and may be lost like a server's memory.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson
from sqlalchemy import (
    Column,
    Connection,
    Double,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import QueuePool

from gateway.storage.leases.rules import (
    EngineAway,
    EngineUnusable,
    LeaseGrant,
    LeaseRecord,
    LeaseStatement,
    SharedLimit,
)
from gateway.storage.sqlite.wal import TURN_MS, begin_writing, enter_wal

STATEMENT_S = 5.0
"""How long one statement may wait for others in PostgreSQL: longer than whoever asked, so that a host that is
busy for a moment makes answers late and not wrong."""

BUSY_S = 15.0
"""The same for a transaction in SQLite, whose waiters try again each when it likes, not in turn: one may be
overtaken often."""

CONNECT_S = 1.0
"""How long a server may take to let us in."""

SWEEP_S = 60.0
"""Between two looks for rows of limits that nobody uses any more."""

metadata = MetaData()
limits = Table(
    "shared_limits",
    metadata,
    Column("key", String, primary_key=True),
    Column("state", Text, nullable=False),
    Column("expires_s", Double, nullable=False, index=True),
)
"""``state`` is JSON; ``expires_s`` is when it tells nothing more, by the database's clock."""

_CLOCK = {
    "sqlite": text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
    "postgresql": text("SELECT extract(epoch FROM clock_timestamp())::double precision"),
}
"""Seconds since 1970."""


class SqlLeaseEngine:
    """One database. Its calls take threads, so the caller's event loop goes on."""

    patience_s = 0.25

    def __init__(
        self,
        url: str,
        clock: Callable[[], float] | None = None,
        *,
        password: str | None = None,
        durable: bool = False,
    ) -> None:
        """``clock`` replaces the database's in tests. With ``durable`` a PostgreSQL server keeps what it
        has answered when it is killed. Connects at the first exchange. Raises EngineUnusable."""
        self._clock = clock
        self._engine = _engine(url, password, durable=durable)
        self.name = self._engine.url.render_as_string(hide_password=True)
        self._ready = False
        self._sweeps_at_s = 0.0

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        """See :class:`gateway.storage.leases.rules.LeaseEngine`."""
        return await asyncio.to_thread(self._exchange, process, statements)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await asyncio.to_thread(self._engine.dispose)

    def _exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        try:
            if not self._ready:
                self._make_table()
                self._ready = True
            grants = {}
            with self._engine.begin() as connection:
                for index, each in sorted(enumerate(statements), key=lambda pair: pair[1].key):
                    grants[index] = self._state(connection, process, each)
                now = self._now(connection)
            if now >= self._sweeps_at_s:
                self._sweeps_at_s = now + SWEEP_S
                self._sweep(now)
        except (SQLAlchemyError, OSError, ValueError, KeyError, TypeError) as error:
            self._ready = False  # whatever comes back may lack the table
            raise EngineAway(f"{type(error).__name__}: {error}") from error
        return [grants[index] for index in range(len(statements))]

    def _make_table(self) -> None:
        """Of several processes that find none at once one makes it, and the others fail and look again."""
        try:
            with self._engine.begin() as connection:
                metadata.create_all(connection)
        except (IntegrityError, ProgrammingError):
            with self._engine.begin() as connection:
                metadata.create_all(connection)

    def _now(self, connection: Connection) -> float:
        if self._clock is not None:
            return self._clock()
        return float(connection.execute(_CLOCK[connection.dialect.name]).scalar_one())

    def _state(self, connection: Connection, process: str, statement: LeaseStatement) -> LeaseGrant:
        """Lock the limit's row, made if there is none, and take up one statement."""
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        empty = {"key": statement.key, "state": "{}", "expires_s": 0.0}
        connection.execute(insert(limits).values(empty).on_conflict_do_nothing())
        row = limits.c.key == statement.key
        found = connection.execute(select(limits.c.state).where(row).with_for_update()).scalar_one()
        now = self._now(connection)  # after the wait for the row's lock
        shared = _read(found)
        grant = shared.state(process, statement, now)
        expires_s = now + (statement.lasts_s or statement.window_s + statement.ttl_s)
        values = {"state": orjson.dumps(asdict(shared)).decode(), "expires_s": expires_s}
        connection.execute(update(limits).where(row).values(values))
        return grant

    def _sweep(self, now: float) -> None:
        """Delete rows that tell nothing more, but for those that are in use."""
        over = select(limits.c.key).where(limits.c.expires_s < now)
        with self._engine.begin() as connection:
            rows = over.with_for_update(skip_locked=True)
            connection.execute(delete(limits).where(limits.c.key.in_(rows)))


def _read(state: str) -> SharedLimit:
    found: dict[str, Any] = orjson.loads(state)
    records = {
        name: LeaseRecord(**{**each, "uses": [(at_s, amount) for at_s, amount in each["uses"]]})
        for name, each in found.get("records", {}).items()
    }
    return SharedLimit(records, found.get("spent"))


def _engine(url: str, password: str | None, *, durable: bool) -> Engine:
    """Raises EngineUnusable."""
    try:
        parsed = make_url(_hosts_as_options(url))
        if parsed.get_backend_name() == "postgresql":
            seconds = int(STATEMENT_S)
            given = parsed.query.get("options", "")
            options = (
                f"{given if isinstance(given, str) else ' '.join(given)} -c statement_timeout={seconds}s "
            )
            options += "-c idle_in_transaction_session_timeout=5s"
            options += "" if durable else " -c synchronous_commit=off"  # see _on_connect
            named = {} if password is None else {"password": password}
            return create_engine(
                parsed.set(drivername="postgresql+psycopg"),
                pool_size=1,
                max_overflow=1,
                pool_pre_ping=True,
                connect_args={"connect_timeout": int(CONNECT_S), "options": options, **named},
            )
        engine = create_engine(
            parsed, poolclass=QueuePool, pool_size=1, max_overflow=1, connect_args={"timeout": BUSY_S}
        )
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise EngineUnusable(f"the URL of shared limits is none of a database ({error})") from error
    except ImportError as error:
        raise EngineUnusable(
            "limits in PostgreSQL need the psycopg package: pip install 'trunkline[postgres]'"
        ) from error
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _hosts_as_options(url: str) -> str:
    """Several hosts, as libpq takes them in the place of one (``a:1,b:2``), are options for SQLAlchemy."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return url
    options = [*([parts.query] if parts.query else []), *(f"host={host}" for host in hosts.split(","))]
    return urlunsplit(parts._replace(netloc=user + at, query="&".join(options)))


def _on_connect(connection: Any, _record: Any) -> None:
    """What is lost when the host fails is what a Valkey server would lose too, so no commit waits for the
    disk."""
    connection.isolation_level = None
    enter_wal(connection, BUSY_S)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA busy_timeout = {TURN_MS}")


def _on_begin(connection: Connection) -> None:
    """Take the write lock first: no transaction finds out in its middle that it must begin again."""
    begin_writing(connection.connection.driver_connection, BUSY_S)  # type: ignore[arg-type]
