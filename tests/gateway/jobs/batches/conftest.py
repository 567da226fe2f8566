from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.storage import Store
from tests.gateway.jobs.batches.workshop import Workshop


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    with Store.open(tmp_path / "state") as store:
        yield Workshop(tmp_path, store)
