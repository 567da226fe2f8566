"""The tables in PostgreSQL: made, upgraded, and recognised."""

from functools import cache

from sqlalchemy import Connection, MetaData, String

from gateway.storage import schema
from gateway.storage.errors import StateCorrupt, StateError
from gateway.storage.migrations import (
    create_schema,
    read_version,
    refuse_too_new,
    upgrade_schema,
    write_version,
)
from gateway.storage.postgres.notices import COUNTER

OLDEST_SERVER = 130_000
TEXT = 'VARCHAR COLLATE "C"'
"""Text sorts by its bytes, as in SQLite, whatever the language of the server."""

_WRITE_LOCK = 0x544C_5354
_LOCK = f"SELECT pg_advisory_xact_lock({_WRITE_LOCK}, current_schema()::regnamespace::oid::int4)"
"""The one write lock of a store: it ends with its transaction, so that no pool of connections leaks it."""

_SERVER = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'), "
    "current_setting('server_encoding'), current_schema()"
)
_TABLES = (
    "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = ANY(%s)"
)


def take_write_lock(connection: Connection) -> None:
    """Hold the write lock until the transaction ends. What is read afterwards its last holder left."""
    connection.exec_driver_sql(_LOCK)


def check_server(connection: Connection, place: str) -> None:
    """Raises StateError for a server on which the store cannot be."""
    number, version, encoding, namespace = connection.exec_driver_sql(_SERVER).one()
    if number < OLDEST_SERVER:
        raise StateError(f"{place} is PostgreSQL {version}, and 13 or later is needed: upgrade the server")
    if encoding != "UTF8":
        raise StateError(f"{place} has the encoding {encoding}: make the database with ENCODING 'UTF8'")
    if namespace is None:
        raise StateError(f"{place} has no schema in its search_path that exists: create it, or name another")


def find_version(connection: Connection, place: str) -> int:
    """The version of the tables, 0 where there are none. Raises StateCorrupt for another program's."""
    names = list(schema.metadata.tables)
    found = connection.exec_driver_sql(_TABLES, (names,)).scalar_one()
    if not found:
        return 0
    version = read_version(connection) if _has_facts(connection) else None
    if version is None:
        raise StateCorrupt(
            f"{place} has tables of another program under our names: give the store a database or a schema "
            "of its own (…?options=-csearch_path%3DNAME)"
        )
    return version


def upgrade(connection: Connection, place: str) -> int:
    """Make the tables, or bring them to the newest version; the version they had. Takes the write lock: of
    several gateways that start at once one does it. Raises StateError."""
    connection.exec_driver_sql("SET LOCAL lock_timeout = '60s'")
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    take_write_lock(connection)
    version = find_version(connection, place)
    if version == 0:
        create_schema(connection, _tables())
        connection.execute(schema.revisions.insert(), {"topic": COUNTER, "value": 0})
    elif version < schema.SCHEMA_VERSION:
        upgrade_schema(connection, version, TEXT)
    else:
        refuse_too_new(version, connection, place)
        return version
    write_version(connection)
    return version


def _has_facts(connection: Connection) -> bool:
    return bool(connection.exec_driver_sql(_TABLES, (["facts"],)).scalar_one())


@cache
def _tables() -> MetaData:
    """The tables as PostgreSQL is to have them: text in the order of its bytes, partial indexes."""
    copied = MetaData()
    for table in schema.metadata.sorted_tables:
        made = table.to_metadata(copied)
        for column in made.columns:
            if isinstance(column.type, String):
                column.type = String(collation="C")
        where = {index.name: index.info["where"] for index in table.indexes if "where" in index.info}
        for index in made.indexes:
            if index.name in where:
                index.dialect_options["postgresql"]["where"] = where[index.name]
    return copied
