"""Least squares with forgetting, of the shares of a prediction."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.learning.regression import ShareRegression


def taught(times: int, truth: tuple[float, ...], seed: int = 1, noise: float = 0.0) -> ShareRegression:
    shares, chance = ShareRegression((1.0,) * len(truth)), random.Random(seed)
    teach(shares, chance, times, truth, noise)
    return shares


def teach(
    shares: ShareRegression, chance: random.Random, times: int, truth: tuple[float, ...], noise: float = 0.0
) -> None:
    for _ in range(times):
        parts = [chance.expovariate(1.0) for _ in truth]
        outcome = sum(m * part for m, part in zip(truth, parts, strict=True))
        shares.observe(parts, outcome * math.exp(chance.gauss(0.0, noise)))


def test_what_every_part_takes_is_found() -> None:
    assert taught(300, (0.5, 2.0, 8.0)).multipliers == pytest.approx([0.5, 2.0, 8.0], rel=0.05)


def test_noise_is_averaged_out() -> None:
    assert taught(2000, (0.5, 3.0), noise=0.3).multipliers == pytest.approx([0.5, 3.0], rel=0.25)


def test_one_outcome_in_ten_that_is_a_hundred_times_too_long_changes_little() -> None:
    shares, chance = ShareRegression((1.0, 1.0)), random.Random(2)
    for number in range(600):
        parts = [chance.expovariate(1.0), chance.expovariate(1.0)]
        outcome = parts[0] + 2 * parts[1]
        shares.observe(parts, outcome * (100.0 if number % 10 == 0 else 1.0))
    assert shares.multipliers == pytest.approx([1.0, 2.0], rel=0.6)


def test_a_part_that_was_never_seen_is_taken_for_as_far_off_as_the_others() -> None:
    shares = ShareRegression((1.0, 1.0))
    for _ in range(50):
        shares.observe([1.0, 0.0], 5.0)
    assert shares.multipliers == pytest.approx([5.0, 5.0], rel=0.05)


def test_a_change_is_followed() -> None:
    shares = taught(2000, (1.0, 1.0))
    teach(shares, random.Random(3), 1000, (4.0, 4.0))
    assert shares.multipliers == pytest.approx([4.0, 4.0], rel=0.1)


def test_many_updates_that_all_look_alike_do_no_harm() -> None:
    shares = ShareRegression((1.0, 1.0, 1.0))
    for _ in range(5000):
        shares.observe([1.0, 1e-9, 1.0], 4.0)
    shares.observe([1.0, 3.0, 1.0], 5.0)
    assert all(0.01 < each < 100 for each in shares.multipliers)
    assert shares.explained([1.0, 0.0, 1.0]) == pytest.approx(4.0, rel=0.1)


_anything = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.lists(_anything, min_size=3, max_size=3), _anything, _anything), max_size=20))
def test_multipliers_stay_positive_and_finite_whatever_is_observed(
    observations: list[tuple[list[float], float, float]],
) -> None:
    shares = ShareRegression((1.0, 1.0, 0.02))
    for parts, outcome, weight in observations:
        shares.observe([abs(part) for part in parts], outcome, weight)
        assert all(0.0 < each < math.inf for each in (*shares.multipliers, shares.common))
