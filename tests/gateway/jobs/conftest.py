"""What tests of jobs have together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.jobs.shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    await shop.close()
