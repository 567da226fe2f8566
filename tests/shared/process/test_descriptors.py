"""What is said of the limit of open files."""

import pytest

from shared.process.checks import CheckState
from shared.process.descriptors import descriptors_outcome


@pytest.mark.parametrize(
    ("limit", "state"),
    [
        (None, CheckState.OK),
        (1_000_000, CheckState.OK),
        (20_000, CheckState.OK),
        (4096, CheckState.WARNING),
        (256, CheckState.FAILED),
    ],
)
def test_few_descriptors_are_told(limit: int | None, state: CheckState) -> None:
    found = descriptors_outcome("gateway", lambda: limit)
    assert found.state is state
    assert bool(found.remedy) is (state is not CheckState.OK)
