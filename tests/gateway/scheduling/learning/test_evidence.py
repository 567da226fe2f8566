"""Evidence of several processes adds up to what one would have that had seen all of it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.learning.evidence import MOST_WEIGHT, Evidence, added
from gateway.scheduling.learning.regression import MOST, ShareRegression, bounded
from tests.gateway.scheduling.learning.test_regression import teach

LEANINGS = (1.0, 1.0)
TRUTH = (0.5, 8.0)


def evidence(times: int, truth: tuple[float, ...] = TRUTH, seed: int = 1) -> Evidence:
    shares = ShareRegression(LEANINGS)
    teach(shares, random.Random(seed), times, truth)
    found = shares.evidence()
    assert found is not None
    return found


def hearing(heard: Evidence | None) -> ShareRegression:
    shares = ShareRegression(LEANINGS)
    shares.hear(heard)
    return shares


def test_what_was_heard_is_known_before_anything_is_observed() -> None:
    shares = hearing(evidence(200))
    assert shares.multipliers == pytest.approx(TRUTH, rel=0.1)
    assert (shares.count, shares.known) == (0, 200)
    assert shares.evidence() is None, "it is not told as its own"


def test_what_was_heard_takes_the_place_of_what_was_heard_before() -> None:
    once, often = hearing(evidence(100)), hearing(evidence(100))
    for _ in range(5):
        often.hear(evidence(100))
    assert often.multipliers == once.multipliers
    assert often.known == 100
    often.hear(None)
    assert often.known == 0


def test_the_evidence_of_several_adds_up() -> None:
    """Each has seen another part only; together they know both."""
    first, second = ShareRegression(LEANINGS), ShareRegression(LEANINGS)
    for _ in range(60):
        first.observe([1.0, 0.01], 0.5 + 0.08)
        second.observe([0.01, 1.0], 0.005 + 8.0)
    found = [each.evidence() for each in (first, second)]
    parts = [(each, 1.0) for each in found if each is not None]
    assert hearing(added(parts)).multipliers == pytest.approx(TRUTH, rel=0.1)
    assert hearing(parts[0][0]).multipliers != pytest.approx(TRUTH, rel=0.5)


def test_what_is_observed_here_replaces_what_others_knew_of_former_times() -> None:
    shares = hearing(evidence(300, (1.0, 1.0)))
    teach(shares, random.Random(2), 200, (4.0, 4.0))
    assert shares.multipliers == pytest.approx((4.0, 4.0), rel=0.1)
    assert shares.heard_weight < 0.1


def test_own_evidence_is_that_of_own_outcomes_alone() -> None:
    shares, alone = hearing(evidence(200)), ShareRegression(LEANINGS)
    for each in (shares, alone):
        teach(each, random.Random(3), 100, TRUTH)
    own, other = shares.evidence(), alone.evidence()
    assert own is not None
    assert other is not None
    assert own.count == 100
    assert own.products != other.products, "outcomes are weighed by what was expected"
    assert own.products == pytest.approx(other.products, rel=0.5)


@given(weights=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_the_sum_does_not_depend_on_the_order(weights: list[float], seed: int) -> None:
    parts = [(evidence(20 + number, seed=number), weight) for number, weight in enumerate(weights)]
    other = list(parts)
    random.Random(seed).shuffle(other)
    one, two = added(parts), added(other)
    assert one is not None
    assert two is not None
    assert one == two


def test_of_none_the_sum_is_none() -> None:
    assert added([]) is None


@pytest.mark.parametrize("seed", range(5))
def test_what_outcomes_say_is_accepted_as_it_is_told(seed: int) -> None:
    chance = random.Random(seed)
    told = evidence(chance.randrange(1, 400), (chance.uniform(0.01, 9.0), chance.uniform(0.01, 9.0)), seed)
    assert bounded(told.rounded(), LEANINGS) == told.rounded()


def test_all_alike_is_accepted_too() -> None:
    shares = ShareRegression(LEANINGS)
    for _ in range(500):
        shares.observe([1.0, 3.0], 8.0)
    found = shares.evidence()
    assert found is not None
    assert bounded(found.rounded(), LEANINGS) is not None


def test_no_process_weighs_more_than_it_may() -> None:
    honest = evidence(300)
    boasting = bounded(honest.scaled(1e6), LEANINGS)
    assert boasting is not None
    products = [sum(each.products) / sum(honest.products) for each in (boasting, honest)]
    assert products[0] < 3.0 * products[1]
    assert MOST_WEIGHT < 1e3


@pytest.mark.parametrize(
    "broken",
    [
        Evidence(9, 1.0, (1.0, 9.0, 1.0), (1.0, 1.0)),
        Evidence(9, 1.0, (-5.0, 0.0, 1.0), (1.0, 1.0)),
        Evidence(9, 2 * MOST, (1.0, 0.0, 1.0), (1.0, 1.0)),
        Evidence(9, 1.0, (-0.1, 0.0, -0.1), (0.0, 0.0)),
    ],
)
def test_what_no_outcomes_say_is_refused(broken: Evidence) -> None:
    assert bounded(broken, LEANINGS) is None


def test_several_that_were_rounded_are_solved_together() -> None:
    """Each is as far from a sum of squares as is accepted."""
    found = bounded(Evidence(9, 1.0, (1.0, 1.0 + 9e-6, 1.0), (1.0, 1.0)), LEANINGS)
    assert found is not None
    together = added([(found, 1.0)] * 16)
    assert hearing(together).multipliers == pytest.approx((0.5, 0.5), rel=0.05)


_value = st.floats(-1e15, 1e15)


@given(
    common=st.floats(1e-9, 1e6, exclude_min=True),
    products=st.tuples(_value, _value, _value),
    rest=st.tuples(_value, _value),
    outcomes=st.lists(st.floats(0.1, 10.0), max_size=5),
)
def test_whatever_is_told_speeds_stay_positive_and_finite(
    common: float,
    products: tuple[float, float, float],
    rest: tuple[float, float],
    outcomes: list[float],
) -> None:
    shares = hearing(bounded(Evidence(5, common, products, rest), LEANINGS))
    for outcome in outcomes:
        shares.observe([1.0, 0.5], outcome)
    assert all(0.0 < each < math.inf for each in shares.multipliers)
