"""Fixtures every test may use."""

from collections.abc import AsyncIterator

import pytest

from tests.support.clock import ManualClock
from tests.support.leaks import Snapshot, assert_nothing_leaked


@pytest.fixture
def clock() -> ManualClock:
    """Time that moves only when the test says so."""
    return ManualClock()


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Fails the test if it leaves file descriptors or tasks behind. Name it first among the fixtures."""
    before = Snapshot.take()
    yield
    await assert_nothing_leaked(before)
