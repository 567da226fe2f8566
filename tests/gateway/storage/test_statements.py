from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.sql.compiler import SQLCompiler

from gateway.storage.statements import StatementCache, sharing_statements
from gateway.storage.store import Store


@pytest.fixture
def table() -> Table:
    """One that no statement was compiled for."""
    return Table("names", MetaData(), Column("id", Integer, primary_key=True), Column("name", String))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of each statement that is compiled meanwhile."""
    found: list[str] = []
    make = SQLCompiler.__init__

    def noted(self: SQLCompiler, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        found.append(self.string)

    monkeypatch.setattr(SQLCompiler, "__init__", noted)
    return found


def engine() -> Engine:
    made = sharing_statements(create_engine("sqlite://"))
    with made.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT)")
    return made


def names_of(table: Table, engine: Engine, *given: str) -> list[str]:
    """What is in the table once these are."""
    with engine.begin() as connection:
        for name in given:
            connection.execute(insert(table), {"name": name})
        found = list(connection.scalars(select(table.c.name).where(table.c.name.in_(given))))
    engine.dispose()
    return found


def test_a_statement_is_compiled_once_for_all_engines_and_each_gets_its_own_rows(
    table: Table, compiled: list[str]
) -> None:
    assert names_of(table, engine(), "a") == ["a"]
    assert names_of(table, engine(), "b", "c") == ["b", "c"]
    assert len(compiled) == len(set(compiled)) == 2


def test_a_store_that_is_opened_after_another_one_compiles_nothing_to_open(
    tmp_path: Path, compiled: list[str]
) -> None:
    for directory in ("one", "another"):
        compiled.clear()
        with Store.open(tmp_path / directory) as store:
            store.keys.create("k", "t", 1.0)
    assert compiled == []


def test_databases_drivers_and_versions_of_servers_have_statements_of_their_own() -> None:
    kept = StatementCache(10)
    kinds = [
        ("postgresql", "psycopg", (17, 1)),
        ("postgresql", "psycopg", (18, 0)),
        ("sqlite", "pysqlite", None),
    ]
    for number, (name, driver, version) in enumerate(kinds):
        kept[(SimpleNamespace(name=name, driver=driver, server_version_info=version), "statement")] = number
    for number, (name, driver, version) in enumerate(kinds):
        same = SimpleNamespace(name=name, driver=driver, server_version_info=version)
        assert kept.get((same, "statement")) == number
        assert kept.get((same, "another")) is None
