"""Room for context in policies that look at nothing else of what a request costs."""

import pytest

from gateway.scheduling import policy_named
from gateway.scheduling.base import Assignment
from gateway.scheduling.policies.fitting import RESERVE_S
from tests.gateway.scheduling.views import request, view

POLICIES = ("least-outstanding", "least-connections")


@pytest.mark.parametrize("name", POLICIES)
def test_a_context_goes_where_there_is_room_for_it_though_another_is_emptier(name: str) -> None:
    views = [view("a", kv_free_tokens=500), view("b", in_flight=3, kv_free_tokens=5000)]
    assert policy_named(name).assign([request(1)], views, 0.0) == [Assignment(1, "b")]


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_given_in_one_round_counts(name: str) -> None:
    views = [view("a", kv_free_tokens=2500)]
    assignments = policy_named(name).assign([request(number) for number in range(4)], views, 0.0)
    assert assignments == [Assignment(0, "a"), Assignment(1, "a")]


@pytest.mark.parametrize("name", POLICIES)
def test_small_ones_pass_a_large_one_only_for_a_while(name: str) -> None:
    views = [view("a", kv_free_tokens=2500), view("b", kv_free_tokens=1200)]
    views[0].kv_tokens, views[1].kv_tokens = 8000, 2000
    waiting = [request(1, 6000), request(2), request(3)]
    policy = policy_named(name)
    assert len(policy.assign(waiting, views, RESERVE_S / 2)) == 2
    assert policy.assign(waiting, views, RESERVE_S) == [Assignment(2, "b")]
