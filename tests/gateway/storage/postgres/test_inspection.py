"""A server is looked at without changing it."""

import time

import psycopg
import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import schema
from gateway.storage.errors import StateUnreachable
from gateway.storage.migrations import MIN_READER
from gateway.storage.postgres import PostgresDatabase, inspect_server
from gateway.storage.postgres.connections import Connector
from tests.support.postgres import PostgresServer


def test_an_empty_schema_has_no_version_and_stays_empty(postgres_address: StoreAddress) -> None:
    found = inspect_server(postgres_address)
    assert (found.version, found.min_reader, found.not_permitted, found.standby) == (0, 0, (), False)
    assert found.may_create
    assert f"search_path%3D{found.namespace}" in postgres_address.url
    with Connector(postgres_address, serve=False).connect() as connection:
        assert connection.execute("SELECT to_regclass('facts')").fetchone() == (None,)


def test_versions_and_the_clock_are_told(postgres_address: StoreAddress) -> None:
    PostgresDatabase(postgres_address).close()
    found = inspect_server(postgres_address)
    assert (found.version, found.min_reader) == (schema.SCHEMA_VERSION, MIN_READER)
    assert abs(found.clock_s - time.time()) < 60


def test_what_a_user_may_not_do_is_named(
    postgres_server: PostgresServer, postgres_address: StoreAddress
) -> None:
    PostgresDatabase(postgres_address).close()
    namespace = inspect_server(postgres_address).namespace
    role = f"r_{namespace}"
    with psycopg.connect(postgres_server.database_url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        try:
            connection.execute(f"GRANT USAGE ON SCHEMA {namespace} TO {role}")
            connection.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {namespace} TO {role}")
            url = postgres_address.url.replace("//postgres@", f"//{role}@")
            found = inspect_server(StoreAddress(url))
            assert found.user == role
            assert not found.may_create
            wanted = {f"{need} {table}" for need in ("update", "delete") for table in schema.metadata.tables}
            assert set(found.not_permitted) == wanted
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StateUnreachable, match="cannot reach PostgreSQL at"):
        inspect_server(StoreAddress("postgresql://u@127.0.0.1:1/d"))
