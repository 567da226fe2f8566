"""The surface with jobs, over a store and objects in a directory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.api.jobs.pages import JobAccess
from gateway.storage import Store
from tests.gateway.api.jobs.access import JobDoer, job_access
from tests.gateway.api.jobs.deferral_shop import Shop, until
from tests.gateway.api.support import Surface


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def access(store: Store, tmp_path: Path) -> JobAccess:
    return job_access(store, tmp_path / "objects", queued=150)


@pytest.fixture
async def surface(access: JobAccess) -> Surface:
    return Surface(jobs=access)


@pytest.fixture
def doer(store: Store, tmp_path: Path) -> JobDoer:
    return JobDoer(store, tmp_path / "objects")


@pytest.fixture
async def shop(store: Store, access: JobAccess, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(store, access, tmp_path / "objects")
    running = asyncio.create_task(shop.runner.run())
    await until(shop.runner.new_lease)
    yield shop
    shop.runner.stop()
    async with asyncio.timeout(60):
        await running
    assert shop.surface.budget.used_bytes == 0
