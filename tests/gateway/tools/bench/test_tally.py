import math
import random

import pytest

from gateway.tools.bench.tally import Histogram


def test_percentiles_are_right_within_a_hundredth() -> None:
    chance = random.Random(3)
    values = sorted(chance.lognormvariate(-4, 2) for _ in range(5000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = values[math.ceil(share * len(values)) - 1]
        assert histogram.percentile_s(share) == pytest.approx(exact, rel=0.01)


def test_short_durations_are_kept_to_the_microsecond() -> None:
    histogram = Histogram()
    for microseconds in range(1, 128):
        histogram.add(microseconds / 1e6 + 1e-9)
    assert histogram.percentile_s(1.0) == pytest.approx(127e-6)
    assert histogram.percentile_s(64 / 127) == pytest.approx(64e-6)


def test_several_at_once_count_as_several() -> None:
    histogram = Histogram()
    histogram.add(0.0, 99)
    histogram.add(1.0)
    assert (histogram.percentile_s(0.5), histogram.percentile_s(0.995)) == (0.0, 1.0)
    summary = histogram.summary_s()
    assert summary is not None
    assert summary["mean"] == pytest.approx(0.01)
    assert summary["max"] == 1.0


def test_nothing_has_no_percentiles() -> None:
    histogram = Histogram()
    assert histogram.summary_s() is None
    with pytest.raises(ValueError, match="no durations"):
        histogram.percentile_s(0.5)


@pytest.mark.parametrize("duration_s", [-1.0, 0.0, 1e-9, 1e12])
def test_whatever_a_clock_says_is_counted(duration_s: float) -> None:
    histogram = Histogram()
    histogram.add(duration_s)
    assert histogram.count == 1
    assert histogram.percentile_s(1.0) >= 0
