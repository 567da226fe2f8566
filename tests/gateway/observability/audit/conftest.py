"""A key, a log and a store of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.observability.audit import AuditFiles
from gateway.storage import Store
from shared.identity import GatewayIdentity, generate_key


@pytest.fixture(scope="session")
def identity() -> GatewayIdentity:
    return GatewayIdentity(generate_key())


@pytest.fixture
def files(tmp_path: Path, identity: GatewayIdentity) -> AuditFiles:
    return AuditFiles(tmp_path / "audit", lambda: identity)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened
