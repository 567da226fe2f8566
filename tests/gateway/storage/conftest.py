"""A store of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import Store


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Where the store is; not made yet."""
    return tmp_path / "deep" / "state"


@pytest.fixture
def store(state_dir: Path) -> Iterator[Store]:
    with Store.open(state_dir) as opened:
        yield opened
