"""A few of many deployments."""

from itertools import pairwise

from gateway.scheduling.policies.sampling import spread
from tests.gateway.scheduling.views import view

VIEWS = [view(f"d{number}") for number in range(100)]


def test_a_sample_is_evenly_spread() -> None:
    places = [VIEWS.index(each) for each in spread(7, VIEWS, 10)]
    assert len(places) == 10
    assert {later - earlier for earlier, later in pairwise(places)} == {10}


def test_other_requests_and_other_seeds_get_other_samples() -> None:
    assert len({spread(number, VIEWS, 10)[0].key for number in range(50)}) == 10
    assert len({spread(1, VIEWS, 10, seed)[0].key for seed in range(50)}) == 10


def test_of_few_all_are_taken() -> None:
    assert spread(3, VIEWS[:5], 10) == VIEWS[:5]
