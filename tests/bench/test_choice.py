"""The measurement of choices, once and small."""

import pytest

from tests.bench.choice import measure


@pytest.mark.parametrize("waiting", [1, 100])
def test_choices_are_measured(waiting: int) -> None:
    figures = measure("cost", 4, waiting, rounds=8)
    assert 0 < figures.p50_us <= figures.p99_us
    assert f"4 deployments, {waiting} waiting" in str(figures)
