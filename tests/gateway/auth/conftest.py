"""A store of its own for each test, and another one on the same state, as a command would open it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def command(store: Store) -> Iterator[Store]:
    with Store.open(store.state_dir) as opened:
        yield opened
