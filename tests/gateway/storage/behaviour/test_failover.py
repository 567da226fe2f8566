"""A standby takes a PostgreSQL server's place, without the latest changes that the primary had."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from tests.support.postgres import DATABASE, OwnPostgresServer, own_postgres
from tests.support.processes import until

NOW_S = 1_800_000_000.0


@pytest.fixture
def servers() -> Iterator[tuple[OwnPostgresServer, OwnPostgresServer]]:
    """A primary and its standby."""
    with own_postgres() as primary, own_postgres(primary) as standby:
        yield primary, standby


def test_what_is_changed_at_the_new_primary_is_known_though_its_counters_have_the_old_values(
    servers: tuple[OwnPostgresServer, OwnPostgresServer], tmp_path: Path
) -> None:
    primary, standby = servers
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    address = StoreAddress(f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write")
    with Store.open(tmp_path, address=address, serve=True) as gateway:
        gateway.keys.create("kept", "tests", NOW_S)
        until("the standby has the key", lambda: _counter(standby) == _counter(primary))
        standby.stop()
        gateway.keys.create("only at the primary", "tests", NOW_S)
        known, value = gateway.changes.cached(), _counter(primary)
        revision, _ = gateway.keys.changed_since(0)
        limits_revision, _ = gateway.limits.changed_since(-1)
        primary.kill()
        until("the primary is known to be away", lambda: gateway.changes.away is not None)
        standby.start()
        standby.promote()
        with Store.open(tmp_path, address=address) as other:
            other.keys.revoke("kept", NOW_S)
        assert _counter(standby) == value, "nothing would be seen by the value alone"
        until("the standby is in use", lambda: gateway.changes.away is None)
        assert gateway.changes.cached() not in (known, None)
        again, changed = gateway.keys.changed_since(revision)
        assert again != revision
        assert [(key.name, key.revoked_s) for key in changed] == [("kept", NOW_S)]
        assert gateway.keys.changed_since(again) == (again, [])
        assert gateway.limits.changed_since(limits_revision)[1] is not None


def _counter(server: OwnPostgresServer) -> int:
    with psycopg.connect(server.database_url(), autocommit=True) as connection:
        try:
            row = connection.execute("SELECT value FROM revisions").fetchone()
        except psycopg.errors.UndefinedTable:  # a standby that has not got so far
            row = None
    return -1 if row is None else int(row[0])
