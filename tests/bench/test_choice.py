"""The measurement of choices, once and small."""

import pytest

from tests.bench.choice import measure


@pytest.mark.parametrize(("waiting", "reading"), [(1, False), (100, False), (64, True)])
def test_choices_are_measured(waiting: int, reading: bool) -> None:
    figures = measure("cost", 4, waiting, rounds=8, reading=reading)
    assert 0 < figures.p50_us <= figures.p99_us
    assert f", {waiting} waiting" in str(figures)
