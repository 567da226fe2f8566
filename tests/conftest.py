"""Fixtures every test may use."""

import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clock import ManualClock
from tests.support.leaks import Snapshot, assert_nothing_leaked

settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.register_profile(
    "long", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


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
