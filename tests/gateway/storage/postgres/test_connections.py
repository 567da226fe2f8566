"""Connections that give up in time, and tell nobody the password."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage.errors import StateUnwritable
from gateway.storage.postgres.connections import COMMAND, SERVING, Connector
from tests.support.postgres import OwnPostgresServer, PostgresServer, own_postgres


@pytest.fixture(scope="module")
def own() -> Iterator[OwnPostgresServer]:
    with own_postgres() as server:
        yield server


def test_the_server_is_told_how_long_it_may_take(postgres_address: StoreAddress) -> None:
    with Connector(postgres_address, serve=True).connect() as connection:
        asked = (
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_session_timeout",
            "application_name",
        )
        said = [connection.execute(f"SHOW {name}").fetchone() for name in asked]
        assert said == [("10s",), ("5s",), ("15s",), (SERVING,)]
        schema = connection.execute("SELECT current_schema()").fetchone()
        assert schema is not None
        assert f"search_path%3D{schema[0]}" in postgres_address.url, "options of the address stay"
    with Connector(postgres_address, serve=False).connect() as connection:
        assert connection.execute("SHOW application_name").fetchone() == (COMMAND,)


def test_a_server_that_is_frozen_is_given_up(own: OwnPostgresServer) -> None:
    connection = Connector(StoreAddress(own.database_url()), serve=False).connect()
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    connection.answer_s = 0.3
    os.kill(row[0], signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.3 s"):
            connection.execute("SELECT 1")
        assert time.monotonic() - began_s >= 0.3
        assert connection.closed
    finally:
        os.kill(row[0], signal.SIGCONT)


def test_an_answer_that_takes_its_time_is_waited_for(postgres_address: StoreAddress) -> None:
    with Connector(postgres_address, serve=False).connect() as connection:
        connection.answer_s = 60.0
        assert connection.execute("SELECT 1 FROM pg_sleep(0.5)").fetchone() == (1,)


def test_a_pool_goes_on_after_the_server_has_ended_its_connections(
    postgres_server: PostgresServer, postgres_address: StoreAddress
) -> None:
    engine = Connector(postgres_address, serve=False).engine(1)
    with engine.connect() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with psycopg.connect(postgres_server.database_url(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != pid
    engine.dispose()


def test_a_pool_has_no_more_connections_than_it_was_told(postgres_address: StoreAddress) -> None:
    engine = Connector(postgres_address, serve=False).engine(1)
    taken, entered = engine.connect(), threading.Event()

    def take() -> None:
        with engine.connect():
            entered.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    assert not entered.wait(0.2)
    taken.close()
    assert entered.wait(60)
    waiting.join()
    engine.dispose()


def test_a_password_comes_from_a_file_and_is_hidden(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    connector = Connector(StoreAddress("postgresql://u@h/d", password_file=path), serve=False)
    assert connector.hide("failed with\n s3cret") == "failed with ***"
    with pytest.raises(StateUnwritable, match="cannot open"):
        Connector(StoreAddress("postgresql://u@h/d", password_file=tmp_path / "none"), serve=False)


def test_options_that_libpq_does_not_know_are_refused() -> None:
    with pytest.raises(StateUnwritable, match="see its options") as caught:
        Connector(StoreAddress("postgresql://u:s3cret@h/d?nonsense=1"), serve=False)
    assert "s3cret" not in str(caught.value)
