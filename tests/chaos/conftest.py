"""Fixtures of the short runs of chaos; ``tests/run chaos`` starts every process as users do."""

import pytest

from tests.support.forks import use_forks


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    use_forks()
