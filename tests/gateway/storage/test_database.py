"""Which database is under the store, one package of it knows and nobody else."""

import ast
import re
from pathlib import Path

import pytest

import gateway
from gateway.domain.store_address import StoreAddress
from gateway.storage import DATABASE_NAME, schema
from gateway.storage.database import Database
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.sqlite import SqliteDatabase

ROOT = Path(gateway.__file__).parent
SPEAKERS = {ROOT / "storage" / name for name in ("sqlite", "postgres", "leases")}
"""Leases are kept in a database of their own, apart from the store."""
MODULES = sorted(path for path in ROOT.rglob("*.py") if not SPEAKERS & set(path.parents))
DIALECT = re.compile(r"sqlite3|psycopg|dialects")
"""In the text of every module that imports one: the others need not be parsed."""


def imported(module: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_no_other_module_speaks_the_dialect() -> None:
    assert len(MODULES) > 100
    for path in MODULES:
        text = path.read_text()
        names = imported(ast.parse(text)) if DIALECT.search(text) else set()
        dialect = {name for name in names if name.startswith(("sqlite3", "psycopg", "sqlalchemy.dialects"))}
        assert not dialect, path
        assert not re.search(r"pragma |sqlite_|func\.(total|min)\(", text.casefold()), path


def test_only_who_opens_the_store_knows_which_database_it_is() -> None:
    storage = [path for path in MODULES if path.parent == ROOT / "storage"]
    knowing = {
        path.name
        for path in storage
        if any(".sqlite" in name or ".postgres" in name for name in imported(ast.parse(path.read_text())))
    }
    assert knowing == {"store.py"}


@pytest.fixture
def database(tmp_path: Path, any_address: StoreAddress | None) -> Database:
    if any_address is not None:
        return PostgresDatabase(any_address)
    return SqliteDatabase(tmp_path / DATABASE_NAME)


def test_an_upsert_inserts_or_merges_what_is_there(database: Database) -> None:
    def price(model: str, input_: float) -> dict[str, object]:
        return {"model": model, "input": input_, "output": 1.0, "gpu_second": 0.0, "changed_s": input_}

    with database.write() as connection:
        replace = database.upsert(schema.prices)
        connection.execute(replace, [price("a", 1.0), price("b", 2.0)])
        connection.execute(replace, price("a", 3.0))
        add = database.upsert(schema.prices, lambda before, given: before + given)
        connection.execute(add, [price("b", 5.0), price("c", 6.0)])
    with database.read() as connection:
        rows = connection.execute(schema.prices.select().order_by(schema.prices.c.model)).all()
    database.close()
    assert [(row.model, row.input, row.output) for row in rows] == [
        ("a", 3.0, 1.0),
        ("b", 7.0, 2.0),
        ("c", 6.0, 1.0),
    ]
