"""The surface with jobs, over a store and objects in a directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.api.jobs.pages import JobAccess
from gateway.storage import Store
from tests.gateway.api.jobs.access import JobDoer, job_access
from tests.gateway.api.support import Surface


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def access(store: Store, tmp_path: Path) -> JobAccess:
    return job_access(store, tmp_path / "objects", queued=1500)


@pytest.fixture
async def surface(access: JobAccess) -> Surface:
    return Surface(jobs=access)


@pytest.fixture
def doer(store: Store, tmp_path: Path) -> JobDoer:
    return JobDoer(store, tmp_path / "objects")
