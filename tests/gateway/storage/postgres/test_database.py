"""The store's database on a server: transactions, the write lock, errors, and a server that goes away."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from gateway.domain.store_address import StoreAddress
from gateway.storage import schema
from gateway.storage.errors import BadValue, StateBusy, StateError, StateUnreachable
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.postgres.connections import SERVING, BoundedConnection, Connector
from gateway.storage.postgres.database import READERS
from gateway.storage.postgres.notices import KNOWN_S, LOOK_S, ChangeWatch
from gateway.storage.sqlite import SqliteDatabase
from tests.support.postgres import OwnPostgresServer, PostgresServer, own_postgres
from tests.support.processes import until


@pytest.fixture
def other(postgres_address: StoreAddress, database: PostgresDatabase) -> Iterator[PostgresDatabase]:
    """What another process has open."""
    opened = PostgresDatabase(postgres_address)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def own() -> Iterator[OwnPostgresServer]:
    with own_postgres() as server:
        yield server


def fact(name: str, value: str = "v") -> dict[str, str]:
    return {"name": name, "value": value}


def names(database: PostgresDatabase) -> set[str]:
    with database.read() as connection:
        found = connection.execute(select(schema.facts.c.name)).scalars()
        return {name for name in found if not name.startswith("schema")}


def test_a_reader_sees_one_state_throughout_and_cannot_write(
    database: PostgresDatabase, other: PostgresDatabase
) -> None:
    count = select(schema.facts.c.name)
    with database.read() as connection:
        before = len(connection.execute(count).all())
        with other.write() as writer:
            writer.execute(schema.facts.insert(), fact("a"))
        assert len(connection.execute(count).all()) == before
    assert names(database) == {"a"}
    with pytest.raises(StateError, match="takes no writes"), database.read() as connection:
        connection.execute(schema.facts.insert(), fact("b"))


def test_a_writer_waits_for_the_one_before_it_and_sees_what_that_has_committed(
    database: PostgresDatabase, other: PostgresDatabase
) -> None:
    seen: list[set[str]] = []

    def write() -> None:
        with other.write() as connection:
            seen.append(set(connection.execute(select(schema.facts.c.name)).scalars()))

    second = threading.Thread(target=write)
    with database.write() as connection:
        connection.execute(schema.facts.insert(), fact("first"))
        second.start()
        until("the other waits for the lock", lambda: waiting(database) == 1)
        assert seen == []
    second.join()
    assert "first" in seen[0]


def waiting(database: PostgresDatabase) -> int:
    """Who waits for the write lock of this store."""
    query = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND objid = current_schema()::regnamespace::oid"
    )
    return int(database._ask(query))


def test_a_writer_that_waits_for_too_long_is_told_so(
    database: PostgresDatabase, other: PostgresDatabase
) -> None:
    with other._writer.connect() as connection:
        connection.exec_driver_sql("SET lock_timeout = 100")
        connection.commit()
    with database.write(), pytest.raises(StateBusy, match="another process has held"), other.write():
        pytest.fail("it must not have entered")
    with other.write():
        pass


def test_usage_is_written_while_somebody_holds_the_write_lock(
    database: PostgresDatabase, other: PostgresDatabase
) -> None:
    with database.write(), other.write_concurrently() as connection:
        connection.execute(schema.facts.insert(), fact("beside"))
    assert names(database) == {"beside"}


def test_stores_in_schemas_of_one_database_do_not_wait_for_each_other(
    database: PostgresDatabase, postgres_server: PostgresServer
) -> None:
    with postgres_server.schema() as url:
        neighbour = PostgresDatabase(StoreAddress(url))
        with database.write(), neighbour.write():
            pass
        neighbour.close()


@pytest.mark.parametrize("text", ["nul\x00", "\udcff"])
def test_what_is_no_text_is_refused(database: PostgresDatabase, text: str) -> None:
    with pytest.raises(BadValue), database.write() as connection:
        connection.execute(schema.facts.insert(), fact(text))
    assert names(database) == set()


def test_what_a_row_clashes_with_is_its_writers_affair(database: PostgresDatabase) -> None:
    with database.write() as connection:
        connection.execute(schema.facts.insert(), fact("twice"))
    with pytest.raises(IntegrityError) as caught, database.write() as connection:
        connection.execute(schema.facts.insert(), fact("twice", "s3cret"))
    assert "s3cret" not in str(caught.value)


def test_the_shared_clock_is_the_servers(
    database: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SqliteDatabase(tmp_path / "gateway.db")
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert own.now_s() == 5.0
    own.close()
    first = database.now_s()
    assert database.now_s() > first > 1_700_000_000


def test_whether_a_gateway_uses_the_store_is_known(own: OwnPostgresServer) -> None:
    address = StoreAddress(own.database_url())
    database, command = PostgresDatabase(address), PostgresDatabase(address)
    command.changes.start_polling()
    assert not database.is_served()
    serving = PostgresDatabase(address, serve=True)
    serving.changes.start_polling()
    assert database.is_served()
    with own.schema() as url:
        neighbour = PostgresDatabase(StoreAddress(url))
        assert not neighbour.is_served()
        neighbour.close()
    serving.close()
    until("it is closed", lambda: not database.is_served())
    command.close()
    database.close()


def test_backups_are_the_servers_and_nobody_is_left_thinking_otherwise(database: PostgresDatabase) -> None:
    assert not database.makes_backups
    with pytest.raises(StateError, match="pg_dump"):
        database.make_backup()
    assert database.is_in_place()


def test_a_server_that_is_stopped_is_said_to_be_and_used_again_when_it_is_back(
    own: OwnPostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[threading.Thread] = []
    connect = Connector.connect

    def told(self: Connector, **options: Any) -> BoundedConnection:
        dialled.append(threading.current_thread())
        return connect(self, **options)

    address = StoreAddress(own.database_url(), stale_s=0.0)
    database = PostgresDatabase(address, serve=True)
    database.hold_open()
    database.changes.start_polling()
    own.stop()
    try:
        until("the counter knows", lambda: database.changes.away is not None)
        assert database.changes.cached() is None
        monkeypatch.setattr(Connector, "connect", told)
        for transaction in (database.read, database.write, database.write_concurrently):
            with pytest.raises(StateUnreachable, match="cannot reach"), transaction():
                pytest.fail("there is no server")
        assert threading.current_thread() not in dialled, "nobody waits for a server that is known to be away"
        with pytest.raises(StateUnreachable):
            PostgresDatabase(address)
    finally:
        own.start()
    until("the counter is back", lambda: database.changes.away is None)
    with database.write() as connection:
        connection.execute(schema.facts.insert(), fact("after"))
    assert names(database) == {"after"}
    database.close()


def test_a_server_that_is_frozen_is_away_and_what_is_known_stays_good(own: OwnPostgresServer) -> None:
    database = PostgresDatabase(StoreAddress(own.database_url(), stale_s=60.0), serve=True)
    database.changes.start_polling()
    number = database.changes.read()
    looking = database._watch._looking
    assert looking is not None
    assert looking.answer_s < 3.0, "an answer that does not come is not waited for longer"
    server = psutil.Process(own.pid)
    frozen = [server, *server.children(recursive=True)]
    for process in frozen:
        process.suspend()
    try:
        assert database.changes.read() == number
        until("it is known to be away", lambda: database.changes.away is not None)
        assert database.changes.read() == database.changes.cached() == number
        with pytest.raises(StateUnreachable, match="no answer within"), database.write():
            pytest.fail("the server does not answer")
    finally:
        for process in reversed(frozen):
            process.resume()
    until("the counter is back", lambda: database.changes.away is None)
    with database.write():
        pass
    database.close()


@pytest.mark.parametrize("told", [True, False], ids=["by its notice", "by the next look"])
def test_the_change_of_another_process_is_known(
    postgres_address: StoreAddress, other: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Within a second: a look is good for no longer, and the thread looks more often than that."""
    assert LOOK_S < KNOWN_S <= 1.0
    monkeypatch.setattr("gateway.storage.postgres.database.KNOWN_S", 3600.0)
    if told:
        monkeypatch.setattr("gateway.storage.postgres.database.LOOK_S", 3600.0)
    else:
        monkeypatch.setattr(ChangeWatch, "wait", lambda watch, at_most_s, stopping: stopping.wait(at_most_s))
    database = PostgresDatabase(postgres_address)
    database.changes.start_polling()
    number = database.changes.cached()
    with other.write():
        pass
    until("it is known", lambda: database.changes.cached() not in (None, number))
    database.close()


def test_a_process_has_few_connections(own: OwnPostgresServer) -> None:
    database = PostgresDatabase(StoreAddress(own.database_url()), serve=True)
    database.changes.start_polling()
    holding = threading.Barrier(READERS)

    def read_together() -> None:
        with database.read():
            holding.wait(60)

    threads = [threading.Thread(target=read_together) for _ in range(3 * READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.hold_open()
    with Connector(StoreAddress(own.database_url()), serve=False).connect() as asking:
        row = asking.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s", (f"{SERVING}%",)
        ).fetchone()
    assert row is not None
    assert READERS <= row[0] <= READERS + 4
    database.close()
