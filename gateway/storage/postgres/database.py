"""A database on a PostgreSQL server.

The write lock is an advisory lock of the transaction, taken before anything is read, at READ COMMITTED: what
is read under it is what its last holder committed, so code that reads and then writes is as right here as it
is on SQLite. It costs a round trip at each administrative change and nothing at a request. Usage and times
are written beside it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from sqlalchemy import Connection, Table, func, select
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.domain.store_address import StoreAddress
from gateway.storage.changes import ChangeCounter
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, StateBusy, StateError, StateMissing
from gateway.storage.job_notices import JobNotice, JobNoticeBoard
from gateway.storage.migrations import refuse_too_new
from gateway.storage.postgres.connections import Connector
from gateway.storage.postgres.failures import translated
from gateway.storage.postgres.notices import ANNOUNCE, KNOWN_S, LOOK_S, SERVED_NAME, TELL, ChangeWatch
from gateway.storage.postgres.tables import check_server, find_version, take_write_lock, upgrade
from gateway.storage.schema import SCHEMA_VERSION, metadata

READERS = 3
"""Connections for threads that read at once. Beside them: one for changes, one for usage, and two on which
news is watched for. A gateway has seven at most."""

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_GATEWAYS = "pg_catalog.pg_stat_activity WHERE datname = current_database()"
_SERVED = f"SELECT EXISTS (SELECT 1 FROM {_GATEWAYS} AND application_name = {SERVED_NAME})"  # noqa: S608


class PostgresDatabase(Database):
    """The store's tables in the current schema of a database on a server."""

    makes_backups = False

    def __init__(self, address: StoreAddress, *, create: bool = True, serve: bool = False) -> None:
        """Connects, and makes or upgrades the tables. Raises StateError; StateMissing where there are none
        and ``create`` is False."""
        self.place = str(address)
        self.backup_place = f"where the operator of {self.place} keeps it (pg_dump)"
        self._connector = Connector(address, serve=serve)
        self.job_notices = JobNoticeBoard()
        self._watch = ChangeWatch(self._connector, self.job_notices.post)
        self.changes = ChangeCounter(
            self._watch.read, look_s=LOOK_S, known_s=KNOWN_S, stale_s=address.stale_s, wait=self._watch.wait
        )
        readers = self._connector.engine(READERS)
        self._engines = (readers, self._connector.engine(1), self._connector.engine(1))
        self._plain = readers.execution_options(isolation_level="AUTOCOMMIT")
        self._reader = readers.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._writer, self._adder = (
            engine.execution_options(isolation_level="READ COMMITTED") for engine in self._engines[1:]
        )
        try:
            self._prepare(create=create)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        with self._errors(), self._reader.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        with self._errors(), self._writer.begin() as connection:
            take_write_lock(connection)
            yield connection
            for statement in ANNOUNCE:
                connection.exec_driver_sql(statement)
        self.changes.written()

    @contextlib.contextmanager
    def write_concurrently(self) -> Iterator[Connection]:
        with self._errors(), self._adder.begin() as connection:
            yield connection

    def tell(self, connection: Connection, notice: JobNotice) -> None:
        connection.exec_driver_sql(TELL, {"text": notice.text})

    def insert(self, table: Table) -> Insert:
        return insert(table)

    @property
    def source(self) -> int:
        return self._watch.connections

    def is_in_place(self) -> bool:
        """A server keeps its files itself."""
        return True

    def hold_open(self) -> None:
        for engine in (self._writer, self._reader, self._adder):
            with self._errors(), engine.connect():
                pass

    def now_s(self) -> float:
        return float(self._ask(_NOW))

    def interval_s(self, connection: Connection) -> float:
        """The server's wall clock: the one that all have."""
        return float(connection.exec_driver_sql(_NOW).scalar_one())

    def is_served(self) -> bool:
        try:
            return bool(self._ask(_SERVED))
        except StateError:
            return False

    def make_backup(self) -> None:
        raise StateError(
            f"{self.place} is backed up by whoever runs the server, not by the gateway: use pg_dump, or the "
            "server's own continuous archiving"
        )

    def align_sequences(self, connection: Connection) -> None:
        """Numbers that the database gives begin behind those in the tables."""
        for table in metadata.sorted_tables:
            for column in table.primary_key:
                if column is table.autoincrement_column:
                    highest = connection.execute(select(func.max(column))).scalar()
                    sequence = func.pg_get_serial_sequence(table.name, column.name)
                    connection.execute(select(func.setval(sequence, highest or 1, highest is not None)))

    def close(self) -> None:
        self.changes.close()
        self._watch.close()
        for engine in self._engines:
            engine.dispose()

    def _ask(self, question: str) -> Any:
        """The one value that answers it."""
        with self._errors(), self._plain.connect() as connection:
            return connection.exec_driver_sql(question).scalar_one()

    def _prepare(self, *, create: bool) -> None:
        with self._errors(), self._plain.connect() as connection:
            check_server(connection, self.place)
            version = find_version(connection, self.place)
            if version >= SCHEMA_VERSION:
                refuse_too_new(version, connection, self.place)
                return
        if version == 0 and not create:
            raise StateMissing(
                f"there is no store in {self.place} yet: start a gateway with it, or run: "
                "trunkline store migrate"
            )
        with self._errors(), self._writer.begin() as connection:
            upgrade(connection, self.place)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Foreign exceptions end here. While the server is known to be away nobody waits for it."""
        if (away := self.changes.away) is not None:
            raise type(away)(str(away))
        try:
            yield
        except IntegrityError:
            raise
        except UnicodeEncodeError as error:
            raise BadValue("what was given is no text in UTF-8") from error
        except DBAPIError as error:
            orig = error.orig or error
            raise translated(orig, self.place, self._connector.hide(str(orig))) from error
        except psycopg.Error as error:
            raise translated(error, self.place, self._connector.hide(str(error))) from error
        except PoolTimeout as error:
            raise StateBusy(f"too many threads use {self.place} at once: try again") from error
