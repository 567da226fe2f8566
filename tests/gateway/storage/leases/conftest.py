"""Every lease engine there is on this machine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.storage.leases.memory import MemoryLeaseEngine
from gateway.storage.leases.rules import LeaseEngine
from gateway.storage.leases.sql import SqlLeaseEngine
from gateway.storage.leases.valkey import ValkeyLeaseEngine
from tests.support.redis_server import redis_server

Clock = Callable[[], float]
MakeEngine = Callable[[Clock | None], LeaseEngine]
"""Makes another connection to the same limits; the clock replaces the engine's own."""


@pytest.fixture(params=["memory", "sqlite", "postgresql", "valkey"])
def kind(request: pytest.FixtureRequest) -> str:
    """The engine's kind."""
    name: str = request.param
    return name


@pytest.fixture
def make_engine(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    """Engines of one kind. Use limits of new names: a server may be another test's too."""
    with ExitStack() as stack:
        if kind == "memory":
            yield lambda clock: MemoryLeaseEngine() if clock is None else MemoryLeaseEngine(clock)
        elif kind == "sqlite":
            yield lambda clock: SqlLeaseEngine(f"sqlite:///{tmp_path / 'limits.db'}", clock)
        elif kind == "postgresql":
            url = request.getfixturevalue("postgres_address").url
            yield lambda clock: SqlLeaseEngine(url, clock)
        else:
            url, prefix = stack.enter_context(redis_server(tmp_path))
            yield lambda clock: ValkeyLeaseEngine(url, prefix, clock)
