"""The database file: every way it can be bad is told apart and says what to do."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from gateway.storage import DATABASE_NAME, Store, migrations, schema
from gateway.storage.errors import StateBusy, StateCorrupt, StateTooNew, StateUnwritable
from gateway.storage.sqlite import SqliteDatabase, database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / DATABASE_NAME


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)


@pytest.fixture
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says " * 100)
    with pytest.raises(StateCorrupt, match="restore the state directory from a backup"):
        SqliteDatabase(path)


def test_a_damaged_page_is_corrupt(path: Path) -> None:
    SqliteDatabase(path).close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StateCorrupt, match="is damaged"), Store.open(path.parent) as store:
        store.tokens.list()


def test_another_programs_database_is_left_alone(path: Path, raw: sqlite3.Connection) -> None:
    raw.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(StateCorrupt, match="another program"):
        SqliteDatabase(path)
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def a_later_version(path: Path, min_reader: int) -> int:
    """Makes the database one that a later program left; its version."""
    SqliteDatabase(path).close()
    later = schema.SCHEMA_VERSION + 1
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {later}")
    raw.execute("UPDATE facts SET value = ? WHERE name = 'schema min reader'", (str(min_reader),))
    raw.execute("ALTER TABLE api_keys ADD COLUMN region VARCHAR DEFAULT '' NOT NULL")
    raw.commit()
    raw.close()
    return later


def test_a_database_of_a_later_version_for_later_programs_is_left_alone(path: Path) -> None:
    later = a_later_version(path, schema.SCHEMA_VERSION + 1)
    said = f"schema {later}, for programs of schema {later} and later; this one is of {later - 1}"
    with pytest.raises(StateTooNew, match=f"{said}.*upgrade Trunkline"):
        SqliteDatabase(path)


def test_a_database_of_a_later_version_that_this_program_can_work_with_is_used_and_stays_what_it_is(
    path: Path,
) -> None:
    later = a_later_version(path, schema.SCHEMA_VERSION)
    database = SqliteDatabase(path)
    with database.write() as connection:
        row = {"id": "k", "name": "n", "tenant": "t", "digest": b"d", "hint": "h"}
        connection.execute(schema.keys.insert().values(**row, created_s=1.0, revision=1))
    database.close()
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (later,)
    assert raw.execute("SELECT id, region FROM api_keys").fetchall() == [("k", "")]
    raw.close()


def test_an_older_database_is_upgraded_step_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteDatabase(path).close()
    present = schema.SCHEMA_VERSION
    add = {
        present: ("ALTER TABLE agents ADD COLUMN region TEXT",),
        present + 1: ("ALTER TABLE agents ADD COLUMN zone TEXT",),
    }
    monkeypatch.setattr(migrations, "UPGRADES", add)
    for module in (schema, database):
        monkeypatch.setattr(module, "SCHEMA_VERSION", present + 2)
    SqliteDatabase(path).close()
    engine = create_engine(f"sqlite:///{path}")
    assert {"region", "zone"} <= {column["name"] for column in inspect(engine).get_columns("agents")}
    engine.dispose()


def test_a_writer_that_never_ends_makes_others_busy_but_not_readers(
    path: Path, raw: sqlite3.Connection, impatient: None
) -> None:
    database = SqliteDatabase(path)
    raw.execute("BEGIN IMMEDIATE")
    with database.read() as connection:
        assert schema.read_revision(connection, schema.Topic.KEYS) == 0
    with pytest.raises(StateBusy, match="stuck trunkline process"), database.write():
        pass
    database.close()


def test_writers_of_one_process_queue_and_the_patient_get_their_turn(path: Path) -> None:
    database = SqliteDatabase(path)

    def bump() -> None:
        for _ in range(20):
            with database.write() as connection:
                schema.next_revision(connection, schema.Topic.KEYS)

    threads = [threading.Thread(target=bump) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert schema.read_revision(connection, schema.Topic.KEYS) == 80
    database.close()


def test_a_block_that_raises_leaves_nothing_behind(path: Path) -> None:
    database = SqliteDatabase(path)

    def fail_half_way() -> None:
        with database.write() as connection:
            schema.next_revision(connection, schema.Topic.KEYS)
            raise LookupError

    with pytest.raises(LookupError):
        fail_half_way()
    with database.read() as connection:
        assert schema.read_revision(connection, schema.Topic.KEYS) == 0
    database.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).mkdir()
    with pytest.raises(StateUnwritable, match="cannot open"):
        SqliteDatabase(tmp_path / DATABASE_NAME)


def test_a_full_disk_is_called_that(path: Path) -> None:
    database = SqliteDatabase(path)

    def fill() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
            connection.exec_driver_sql("CREATE TABLE big (x)")
            connection.exec_driver_sql("INSERT INTO big VALUES (zeroblob(1000000))")

    with pytest.raises(StateUnwritable, match="is full"):
        fill()
    database.close()


def test_durability_is_as_promised(path: Path) -> None:
    database = SqliteDatabase(path)
    with database.read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    database.close()


def _note_act(raw: sqlite3.Connection, name: str) -> None:
    raw.execute("INSERT INTO acts (id, at_s, kind, who, what) VALUES (?, 1.0, 'k', 'w', '{}')", (name,))


def test_the_number_of_changes_moves_with_administrative_ones_whoever_makes_them(
    path: Path, raw: sqlite3.Connection
) -> None:
    database = SqliteDatabase(path)
    numbers = [database.changes.read()]
    with database.write() as connection:
        schema.next_revision(connection, schema.Topic.KEYS)
    numbers.append(database.changes.read())
    raw.execute("UPDATE revisions SET value = value + 1 WHERE topic = 'limits'")
    numbers.append(database.changes.read())
    _note_act(raw, "one")
    numbers.append(database.changes.read())
    raw.execute("DELETE FROM acts")
    _note_act(raw, "another, which has the number of the one before")
    numbers.append(database.changes.read())
    assert numbers == sorted(set(numbers))
    database.close()


def test_the_number_of_changes_stays_while_usage_and_jobs_are_written(
    path: Path, raw: sqlite3.Connection
) -> None:
    database = SqliteDatabase(path)
    before = database.changes.read()
    with database.write_concurrently() as connection:
        connection.execute(schema.models.insert().values(name="m", first_s=1.0, last_s=1.0))
    raw.execute("UPDATE models SET last_s = 2.0")
    assert database.changes.read() == before
    database.close()
