"""The gateway that is asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.api.admin.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "state")
    yield made
    made.store.close()
