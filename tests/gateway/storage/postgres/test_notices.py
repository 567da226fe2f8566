"""Another process's change is known at once, and surely after the next look."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage.errors import StateError, StateUnreachable
from gateway.storage.job_notices import JobEvent, JobNotice
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.postgres.connections import BoundedConnection, Connector
from gateway.storage.postgres.notices import ChangeWatch
from tests.support.postgres import PostgresServer

LONG_S = 20.0


@pytest.fixture
def watch(database: PostgresDatabase, postgres_address: StoreAddress) -> Iterator[ChangeWatch]:
    made = ChangeWatch(Connector(postgres_address, serve=False))
    made.wait(0.0, threading.Event())  # it listens from now on
    yield made
    made.close()


def waited_s(watch: ChangeWatch, at_most_s: float) -> float:
    began_s = time.monotonic()
    watch.wait(at_most_s, threading.Event())
    return time.monotonic() - began_s


def test_an_administrative_commit_moves_the_counter_and_ends_a_wait(
    database: PostgresDatabase, watch: ChangeWatch
) -> None:
    before = watch.read()
    with database.write():
        assert watch.read() == before, "not before the commit"
    assert waited_s(watch, LONG_S) < LONG_S / 2
    assert watch.read() == before + 1


def test_usage_is_announced_to_nobody(database: PostgresDatabase, watch: ChangeWatch) -> None:
    before = watch.read()
    with database.write_concurrently():
        pass
    assert waited_s(watch, 0.3) >= 0.3
    assert watch.read() == before


def test_what_is_told_of_jobs_is_passed_on_and_moves_nothing(
    database: PostgresDatabase, postgres_address: StoreAddress
) -> None:
    heard: list[str] = []
    watch = ChangeWatch(Connector(postgres_address, serve=False), heard.append)
    watch.wait(0.0, threading.Event())
    before = watch.read()
    notices = [JobNotice(JobEvent.QUEUED), JobNotice(JobEvent.CANCELLED, "job-1 'é'")]

    def tell_and_fail() -> None:
        with database.write_concurrently() as connection:
            database.tell(connection, JobNotice(JobEvent.QUEUED))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        tell_and_fail()
    with database.write_concurrently() as connection:
        for notice in notices:
            database.tell(connection, notice)
    assert waited_s(watch, 0.3) >= 0.3, "nobody needs to look at the counter"
    assert heard == [notice.text for notice in notices]
    assert watch.read() == before
    with database.write() as connection:
        database.tell(connection, notices[0])
    assert waited_s(watch, LONG_S) < LONG_S / 2, "beside it something was changed"
    watch.close()


def test_a_write_that_fails_is_announced_to_nobody(database: PostgresDatabase, watch: ChangeWatch) -> None:
    before = watch.read()
    with pytest.raises(RuntimeError), database.write():
        raise RuntimeError
    assert watch.read() == before


def test_stores_in_schemas_of_one_database_do_not_wake_each_other(
    postgres_server: PostgresServer, watch: ChangeWatch
) -> None:
    with postgres_server.schema() as url:
        other = PostgresDatabase(StoreAddress(url))
        with other.write():
            pass
        other.close()
    assert waited_s(watch, 0.3) >= 0.3


def test_connections_that_were_ended_are_made_again(
    database: PostgresDatabase, watch: ChangeWatch, postgres_server: PostgresServer
) -> None:
    before = watch.read()
    assert watch._looking is not None
    assert watch._listening is not None
    pids = [watch._looking.info.backend_pid, watch._listening.info.backend_pid]
    with psycopg.connect(postgres_server.database_url(), autocommit=True) as other:
        for pid in pids:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    again = watch.read()
    assert again != before, "another server may have come to the same value with other changes"
    assert watch.read() == again
    watch.wait(0.1, threading.Event())  # notices the loss
    watch.wait(0.1, threading.Event())  # listens again
    with database.write():
        pass
    assert waited_s(watch, LONG_S) < LONG_S / 2


class RefusedConnector(Connector):
    """Its connections refuse every statement: they are in a transaction that has failed."""

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(address, serve=False)
        self.made: list[BoundedConnection] = []

    def connect(self, **options: Any) -> BoundedConnection:
        connection = super().connect(**options)
        self.made.append(connection)
        connection.execute("BEGIN")
        with contextlib.suppress(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        return connection


def test_a_connection_on_which_it_cannot_listen_is_closed(postgres_address: StoreAddress) -> None:
    connector = RefusedConnector(postgres_address)
    watch = ChangeWatch(connector)
    watch.wait(0.0, threading.Event())
    watch.wait(0.0, threading.Event())
    assert [connection.closed for connection in connector.made] == [True, True]


def test_a_wait_ends_when_it_is_told_to(watch: ChangeWatch) -> None:
    stopping = threading.Event()
    stopping.set()
    began_s = time.monotonic()
    watch.wait(LONG_S, stopping)
    assert time.monotonic() - began_s < LONG_S / 2


def test_a_server_that_is_not_there_is_unreachable_and_a_store_without_counter_no_store(
    postgres_address: StoreAddress,
) -> None:
    nobody = ChangeWatch(Connector(StoreAddress("postgresql://u:s3cret@127.0.0.1:1/d"), serve=False))
    with pytest.raises(
        StateUnreachable, match=r"cannot reach PostgreSQL at 127.0.0.1:1, database d"
    ) as caught:
        nobody.read()
    assert "s3cret" not in str(caught.value)
    empty = ChangeWatch(Connector(postgres_address, serve=False))
    with pytest.raises(StateError, match="tables are missing"):
        empty.read()
    empty.close()
