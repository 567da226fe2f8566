"""One world for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import Store
from gateway.storage.objects import ObjectStore
from tests.gateway.jobs.queues.fakes import QueueWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[QueueWorld]:
    with Store.open(tmp_path / "state") as store:
        yield QueueWorld(store, ObjectStore.in_directory(tmp_path / "objects"))
