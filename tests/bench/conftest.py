"""What short runs of the loads have together; ``tests/run bench`` starts every process as users do."""

import pytest

from tests.support.forks import use_forks


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    """Gateways, agents and engines are forked: tests look whether figures come, not at what they are."""
    use_forks()
