"""What a server and the tables there are, found without changing anything."""

from dataclasses import dataclass

import psycopg

from gateway.domain.store_address import StoreAddress
from gateway.storage import schema
from gateway.storage.errors import StateError
from gateway.storage.migrations import MIN_READER_FACT, VERSION_FACT
from gateway.storage.postgres.connections import Connector
from gateway.storage.postgres.failures import translated

_SERVER = """
    SELECT current_setting('server_version'), current_schema(), current_user,
        extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(),
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
"""
_TABLES = """
    SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = ANY(%s)
"""
_FORBIDDEN = """
    SELECT lower(need) || ' ' || relname FROM unnest(%s::text[]) AS relname,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS need
    WHERE NOT has_table_privilege(quote_ident(current_schema()) || '.' || quote_ident(relname), need)
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """A server, and the store's tables there."""

    server: str
    """Its version."""
    namespace: str | None
    """The schema that the tables are in, or would be."""
    user: str
    clock_s: float
    """Seconds since 1970."""
    standby: bool
    may_create: bool
    version: int
    """Of the tables; 0: there are none."""
    min_reader: int
    not_permitted: tuple[str, ...]
    """What the user would need: ``select api_keys``."""


def inspect_server(address: StoreAddress) -> PostgresFacts:
    """Raises StateError."""
    connector = Connector(address, serve=False)
    try:
        with connector.connect(autocommit=True) as connection:
            return _inspect(connection)
    except psycopg.Error as error:
        found = translated(error, connector.place, connector.hide(str(error)))
        raise found if isinstance(found, StateError) else StateError(str(found)) from error


def _inspect(connection: "psycopg.Connection[tuple[object, ...]]") -> PostgresFacts:
    (server,) = connection.execute(_SERVER).fetchall()
    names = list(schema.metadata.tables)
    there = [str(row[0]) for row in connection.execute(_TABLES, (names,)).fetchall()]
    forbidden = tuple(str(row[0]) for row in connection.execute(_FORBIDDEN, (there,)).fetchall())
    version = min_reader = 0
    if "facts" in there and "select facts" not in forbidden:
        facts = connection.execute("SELECT name, value FROM facts WHERE name LIKE 'schema %'").fetchall()
        said = {str(name): int(str(value)) for name, value in facts if str(value).isdecimal()}
        version, min_reader = said.get(VERSION_FACT, 0), said.get(MIN_READER_FACT, 0)
    text, namespace, user, clock_s, standby, may_create = server
    return PostgresFacts(
        str(text),
        None if namespace is None else str(namespace),
        str(user),
        float(str(clock_s)),
        bool(standby),
        bool(may_create),
        version,
        min_reader,
        forbidden,
    )
