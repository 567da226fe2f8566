import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.scaling.capacity import Fleet, can_meet, is_enough, late_share, wait_chance
from gateway.scheduling.scaling.data import ScalingRule
from tests.gateway.scheduling.scaling.facts import H100, L4, classes_named, rules


def _erlang_c(servers: int, offered: float) -> float:
    """The exact chance to wait of M/M/c, by the usual recursion."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    used = offered / servers
    return blocked / (1 - used * (1 - blocked))


@pytest.mark.parametrize("slots", [4, 16, 64, 256])
@pytest.mark.parametrize("used", [0.5, 0.8, 0.9, 0.97])
def test_the_chance_to_wait_is_near_that_of_erlang(slots: int, used: float) -> None:
    assert wait_chance(slots, used) == pytest.approx(_erlang_c(slots, slots * used), abs=0.09)


@given(st.integers(1, 10_000), st.floats(0, 2))
def test_the_chance_to_wait_is_a_chance_and_falls_with_more_slots(slots: int, used: float) -> None:
    chance = wait_chance(slots, used)
    assert 0.0 <= chance <= 1.0
    assert wait_chance(slots + 1, used) <= chance + 1e-12


def test_a_fleet_adds_up_what_its_replicas_do() -> None:
    fleet = Fleet([(L4, 2), (H100, 1)])
    assert fleet.slots == 80
    assert fleet.per_s == pytest.approx(12.0)
    assert fleet.first_s == L4.first_s
    assert Fleet([(L4, 0), (H100, 1)]).first_s == H100.first_s


def test_all_are_late_where_more_comes_than_is_done() -> None:
    assert late_share(Fleet([(L4, 1)]), 1.0, 100.0) == 1.0
    assert late_share(Fleet([]), 0.0, 1.0) == 1.0
    assert late_share(Fleet([(L4, 1)]), 0.0, 0.0) == 0.0


def test_a_class_that_reads_too_slowly_can_never_meet_the_rule() -> None:
    assert "to read" in can_meet(L4, ScalingRule(first_token_s=0.3))
    assert "answer" in can_meet(L4, ScalingRule(latency_s=5.0))
    assert can_meet(L4, ScalingRule(latency_s=20.0)) == ""


@given(classes_named("a"), rules, st.integers(0, 50), st.floats(0, 100), st.floats(0, 50), st.floats(0, 50))
def test_what_is_enough_is_enough_for_less_and_with_more(
    facts: object, rule: ScalingRule, count: int, arriving: float, drained: float, less: float
) -> None:
    fleet = Fleet([(facts, count)])  # type: ignore[list-item]
    if is_enough(fleet, rule, arriving, drained):
        assert is_enough(Fleet([(facts, count + 1)]), rule, arriving, drained) or not count  # type: ignore[list-item]
        assert is_enough(fleet, rule, max(0.0, arriving - less), drained)
        assert is_enough(fleet, rule, arriving, max(0.0, drained - less))


def test_work_must_fit_below_the_utilisation_that_is_wanted() -> None:
    rule = ScalingRule(utilisation=0.5, first_token_s=math.inf)
    assert is_enough(Fleet([(L4, 4)]), rule, 2.0, 0.0)
    assert not is_enough(Fleet([(L4, 4)]), rule, 2.1, 0.0)
    assert not is_enough(Fleet([(L4, 4)]), rule, 2.0, 2.1)
