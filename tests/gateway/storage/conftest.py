"""A store of its own for each test, on each kind of database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.administration import init_store

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


@pytest.fixture(params=BOTH)
def any_address(request: pytest.FixtureRequest) -> StoreAddress | None:
    """Where a store is to be: each kind of database in its turn."""
    found: StoreAddress | None = None
    if request.param == "postgres":
        found = request.getfixturevalue("postgres_address")
    return found


@pytest.fixture
def any_store(state_dir: Path, any_address: StoreAddress | None) -> Iterator[Store]:
    """A store on each kind of database, with the gateway's key."""
    if any_address is not None:
        init_store(state_dir, any_address)
    with Store.open(state_dir, address=any_address) as opened:
        yield opened
