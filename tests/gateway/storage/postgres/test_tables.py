"""The schema on PostgreSQL: made once by however many, upgraded, and recognised."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection

from gateway.domain.store_address import StoreAddress
from gateway.storage import migrations, schema
from gateway.storage.errors import StateCorrupt, StateError, StateMissing, StateTooNew
from gateway.storage.postgres import PostgresDatabase, tables
from gateway.storage.postgres.connections import Connector
from gateway.storage.sqlite import SqliteDatabase


@pytest.fixture
def raw(postgres_address: StoreAddress) -> Iterator[psycopg.Connection]:
    with Connector(postgres_address, serve=False).connect(autocommit=True) as connection:
        yield connection


def set_fact(raw: psycopg.Connection, name: str, value: object) -> None:
    raw.execute("UPDATE facts SET value = %s WHERE name = %s", (str(value), name))


def test_databases_that_are_opened_at_once_make_the_tables_once(postgres_address: StoreAddress) -> None:
    failed: list[BaseException] = []
    together = threading.Barrier(4)

    def open_it() -> None:
        try:
            together.wait(60)
            PostgresDatabase(postgres_address).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Connector(postgres_address, serve=False).connect() as connection:
        row = connection.execute("SELECT count(*) FROM revisions").fetchone()
        assert row == (len(schema.Topic) + 1,)


def test_a_store_that_must_exist_is_not_made(postgres_address: StoreAddress, raw: psycopg.Connection) -> None:
    with pytest.raises(StateMissing, match="trunkline store migrate"):
        PostgresDatabase(postgres_address, create=False)
    assert raw.execute("SELECT to_regclass('facts')").fetchone() == (None,)


def test_text_is_in_the_order_of_its_bytes_and_names_of_active_ones_are_unique(
    postgres_address: StoreAddress, raw: psycopg.Connection
) -> None:
    PostgresDatabase(postgres_address).close()
    collations = raw.execute(
        "SELECT DISTINCT collation_name FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND data_type = 'character varying'"
    ).fetchall()
    assert collations == [("C",)]
    (index,) = raw.execute(
        "SELECT indexdef FROM pg_indexes WHERE indexname = 'agents_active_name' "
        "AND schemaname = current_schema()"
    ).fetchall()
    assert "UNIQUE" in index[0]
    assert "WHERE (revoked_s IS NULL)" in index[0]


def test_tables_of_another_program_are_left_alone(
    postgres_address: StoreAddress, raw: psycopg.Connection
) -> None:
    raw.execute("CREATE TABLE agents (id int)")
    with pytest.raises(StateCorrupt, match="another program"):
        PostgresDatabase(postgres_address)
    raw.execute("CREATE TABLE facts (name varchar, value varchar)")
    with pytest.raises(StateCorrupt, match="another program"):
        PostgresDatabase(postgres_address)


def test_a_later_version_is_used_if_it_allows_it_and_else_names_both(
    postgres_address: StoreAddress, raw: psycopg.Connection
) -> None:
    PostgresDatabase(postgres_address).close()
    present = schema.SCHEMA_VERSION
    set_fact(raw, "schema version", present + 2)
    PostgresDatabase(postgres_address).close()
    set_fact(raw, "schema min reader", present + 1)
    said = f"schema {present + 2}, for programs of schema {present + 1} and later; this one is of {present}"
    with pytest.raises(StateTooNew, match=said):
        PostgresDatabase(postgres_address)


def test_an_older_store_is_upgraded_and_the_program_before_goes_on_with_it(
    postgres_address: StoreAddress, raw: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = schema.SCHEMA_VERSION
    before = PostgresDatabase(postgres_address)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "UPGRADES", {present: ("ALTER TABLE agents ADD COLUMN region {text}",)})
        patch.setattr(schema, "SCHEMA_VERSION", present + 1)
        patch.setattr("gateway.storage.postgres.database.SCHEMA_VERSION", present + 1)
        PostgresDatabase(postgres_address).close()
    row = raw.execute(
        "SELECT collation_name FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND table_name = 'agents' AND column_name = 'region'"
    ).fetchone()
    assert row == ("C",)
    with before.write() as connection:
        assert migrations.read_version(connection) == present + 1
    before.close()
    PostgresDatabase(postgres_address).close()


BEFORE_22 = ("DROP TABLE scaling_bursts",)
BEFORE_21 = (*BEFORE_22, "DROP TABLE scaling_loads", "DROP TABLE scaling_forecasts")
BEFORE_20 = (*BEFORE_21, "DROP INDEX jobs_states_of_group")
BEFORE_19 = (*BEFORE_20, "ALTER TABLE queue_jobs DROP COLUMN process")
BEFORE_18 = (*BEFORE_19, "ALTER TABLE jobs DROP COLUMN previews", "DROP TABLE job_previews")
BEFORE_17 = (*BEFORE_18, "DROP TABLE queue_jobs")
BEFORE_16 = (
    *BEFORE_17,
    *(f"DROP TABLE {table}" for table in ("uploads", "upload_parts", "batches")),
    "DROP INDEX jobs_unfinished_of_group",
)
BEFORE_15 = (*BEFORE_16, "ALTER TABLE jobs DROP COLUMN metadata")
BEFORE_14 = (*BEFORE_15, "DROP TABLE webhook_deliveries", "DROP TABLE webhook_secrets")
BEFORE_13 = (*BEFORE_14, "DROP TABLE files")
BEFORE_12 = (*BEFORE_13, *(f"DROP TABLE {table}" for table in ("jobs", "job_queues", "submissions")))
BEFORE_11 = (
    *BEFORE_12,
    "ALTER TABLE agents DROP COLUMN held_s",
    "ALTER TABLE agents DROP COLUMN held_by",
    "ALTER TABLE processes DROP COLUMN address",
    "ALTER TABLE processes DROP COLUMN knowledge",
    "DROP TABLE audit_heads",
)


BEFORE = {
    10: BEFORE_11,
    11: BEFORE_12,
    12: BEFORE_13,
    13: BEFORE_14,
    14: BEFORE_15,
    15: BEFORE_16,
    16: BEFORE_17,
    17: BEFORE_18,
    18: BEFORE_19,
    21: BEFORE_22,
    20: BEFORE_21,
    19: BEFORE_20,
}


@pytest.mark.parametrize(("version", "back"), BEFORE.items())
def test_an_older_store_gets_the_columns_and_indexes_of_a_new_one(
    postgres_address: StoreAddress, raw: psycopg.Connection, version: int, back: tuple[str, ...]
) -> None:
    PostgresDatabase(postgres_address).close()
    made = columns_of(raw)
    for statement in back:
        raw.execute(statement)
    set_fact(raw, "schema version", version)
    assert columns_of(raw) != made
    PostgresDatabase(postgres_address).close()
    assert columns_of(raw) == made


def columns_of(raw: psycopg.Connection) -> set[tuple[object, ...]]:
    """Every column there is, and what may be in it; and every index."""
    indexes = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
    return set(raw.execute(indexes).fetchall()) | set(
        raw.execute(
            "SELECT table_name, column_name, data_type, collation_name, is_nullable, "
            "replace(column_default, current_schema() || '.', '') "
            "FROM information_schema.columns WHERE table_schema = current_schema()"
        ).fetchall()
    )


def test_a_failed_upgrade_changes_nothing(
    postgres_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    PostgresDatabase(postgres_address).close()
    present = schema.SCHEMA_VERSION
    with monkeypatch.context() as patch:
        steps = ("ALTER TABLE agents ADD COLUMN region {text}", "ALTER TABLE nothing ADD COLUMN x {text}")
        patch.setattr(migrations, "UPGRADES", {present: steps})
        patch.setattr(schema, "SCHEMA_VERSION", present + 1)
        patch.setattr("gateway.storage.postgres.database.SCHEMA_VERSION", present + 1)
        with pytest.raises(StateError):
            PostgresDatabase(postgres_address)
    database = PostgresDatabase(postgres_address)
    with database.read() as connection:
        assert migrations.read_version(connection) == present
        assert connection.exec_driver_sql("SELECT * FROM agents").keys() == schema.agents.columns.keys()
    database.close()


class Server:
    """Says what a server is."""

    def __init__(self, *facts: object) -> None:
        self._facts = facts

    def exec_driver_sql(self, _: str) -> "Server":
        return self

    def one(self) -> tuple[object, ...]:
        return self._facts


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ((120_022, "12.22", "UTF8", "public"), "is PostgreSQL 12.22, and 13 or later is needed"),
        ((150_000, "15.0", "SQL_ASCII", "public"), "ENCODING 'UTF8'"),
        ((150_000, "15.0", "UTF8", None), "no schema in its search_path"),
    ],
)
def test_servers_that_will_not_do_are_refused(facts: tuple[object, ...], said: str) -> None:
    connection: Connection = Server(*facts)  # type: ignore[assignment]
    with pytest.raises(StateError, match=said):
        tables.check_server(connection, "DB")


def test_making_tables_for_one_database_changes_nothing_for_the_other(
    postgres_address: StoreAddress, tmp_path: Path
) -> None:
    PostgresDatabase(postgres_address).close()
    SqliteDatabase(tmp_path / "after.db").close()
