"""A store of its own for each test, on each kind of database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from tests.support.postgres import PostgresServer
from tests.support.prepared_store import PreparedStore, prepared_store

BOTH = ("sqlite", "postgres")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Where the store is; not made yet."""
    return tmp_path / "deep" / "state"


@pytest.fixture
def file_store(state_dir: Path) -> Iterator[Store]:
    """On SQLite, for what is of its files."""
    with Store.open(state_dir) as opened:
        yield opened


@pytest.fixture
def store(file_store: Store) -> Store:
    """A module whose tests hold of every database has ``any_store`` instead."""
    return file_store


@pytest.fixture(scope="session")
def prepared(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PreparedStore]:
    """The store on PostgreSQL of all tests that have one."""
    with prepared_store(postgres_server, tmp_path_factory.mktemp("prepared")) as made:
        yield made


@pytest.fixture(params=BOTH)
def any_address(request: pytest.FixtureRequest, state_dir: Path) -> StoreAddress | None:
    """Where ``any_store`` is, or where a store is to be: each kind of database in its turn."""
    found: StoreAddress | None = None
    if request.param == "postgres":
        if "any_store" in request.fixturenames:
            prepared: PreparedStore = request.getfixturevalue("prepared")
            found = prepared.fresh(state_dir)
        else:
            found = request.getfixturevalue("postgres_address")
    return found


@pytest.fixture
def any_store(state_dir: Path, any_address: StoreAddress | None) -> Iterator[Store]:
    """A store on each kind of database, with the gateway's key."""
    with Store.open(state_dir, address=any_address) as opened:
        yield opened
