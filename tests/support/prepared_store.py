"""A store on PostgreSQL that many tests have one after another, because making its tables takes a third of a
second."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import Connection, sql

from gateway.domain.store_address import StoreAddress
from gateway.storage.administration import init_store
from gateway.storage.schema import metadata
from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME
from tests.support.postgres import PostgresServer

_LOCK_S = 10
"""No test leaves a transaction open behind it; if one did, the next would fail after this time."""


class PreparedStore:
    """As :func:`init_store` has left it, each time anew."""

    def __init__(self, address: StoreAddress, directory: Path) -> None:
        """Make it at an empty schema. ``directory`` is for its cluster key."""
        self._address = address
        self._key = directory / CLUSTER_KEY_NAME
        init_store(directory, address)
        with self._connected() as connection:
            self._tables = [table.name for table in metadata.sorted_tables]  # what others refer to is first
            made = _names(connection, "tablename FROM pg_tables")
            assert made == sorted(self._tables), "tables that would not be emptied"
            self._sequences = _names(connection, "sequencename FROM pg_sequences")
            self._rows = {table: rows for table in self._tables if (rows := _copied(connection, table))}

    def fresh(self, state_dir: Path) -> StoreAddress:
        """Its address, after all that was done to its rows is undone; its cluster key is in ``state_dir``."""
        with self._connected() as connection:
            connection.execute(f"SET lock_timeout = '{_LOCK_S}s'")
            done = [sql.SQL("DELETE FROM {}").format(sql.Identifier(name)) for name in self._tables[::-1]]
            done += [sql.SQL("ALTER SEQUENCE {} RESTART").format(sql.Identifier(s)) for s in self._sequences]
            connection.execute(sql.SQL("; ").join(done))
            for table, rows in self._rows.items():
                with connection.cursor().copy(
                    sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
                ) as copy:
                    copy.write(rows)
        state_dir.mkdir(parents=True, mode=0o700)
        shutil.copy2(self._key, state_dir)
        return self._address

    @contextmanager
    def _connected(self) -> Iterator["Connection[tuple[str, ...]]"]:
        assert self._address.url is not None
        with psycopg.connect(self._address.url) as connection:
            yield connection


@contextmanager
def prepared_store(server: PostgresServer, directory: Path) -> Iterator[PreparedStore]:
    """One in a schema of its own, which is dropped afterwards."""
    with server.schema() as url:
        yield PreparedStore(StoreAddress(url), directory)


def _names(connection: "Connection[tuple[str, ...]]", query: LiteralString) -> list[str]:
    found = connection.execute(f"SELECT {query} WHERE schemaname = current_schema()").fetchall()
    return sorted(name for (name,) in found)


def _copied(connection: "Connection[tuple[str, ...]]", table: str) -> bytes:
    with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))) as copy:
        return b"".join(bytes(piece) for piece in copy)
