import json
from dataclasses import replace

import pytest

from tests.bench.half_load import HalfLoad, HalfLoadSizes, Placement, kept_up, placement, saturation

_SEEN = HalfLoad("core 0: all", 0.0, 100.0, 50.0, 5000.0, True, 1.0, 4.0, 0.5, 2.0, 0.1, 0.4, 1.0, 0.5, 0.4)


def test_everybody_has_a_core_where_there_are_four() -> None:
    assert placement([7, 4, 5, 6, 8]) == Placement(4, 5, 6, 7)
    assert placement([0, 1, 2]) == Placement(0, 1, 2, 2)
    assert placement([0, 1]) == Placement(0, 0, 1, 1)
    assert placement([3]) == Placement(3, 3, 3, 3)
    assert placement([0, 1], gateway_apart=True) == Placement(0, 1, 1, 1)
    assert placement([3], gateway_apart=True) == placement([3])
    assert placement([0, 1, 2, 3], gateway_apart=True) == placement([0, 1, 2, 3])
    assert str(placement([0, 1])) == "core 0: gateway, agent; core 1: engine, load"


@pytest.mark.parametrize("carried", [10.0, 79.0, 80.0, 99.0, 500.0])
def test_the_saturation_rate_is_found_within_an_eighth_and_never_above(carried: float) -> None:
    found = saturation(lambda per_s: per_s <= carried, 10.0, 1000.0)
    assert carried * 7 / 8 <= found <= carried


def test_the_search_ends_where_nothing_or_everything_is_carried() -> None:
    assert saturation(lambda per_s: False, 10.0, 1000.0) == 0.0
    assert saturation(lambda per_s: True, 10.0, 1000.0) == 1000.0
    assert 875.0 <= saturation(lambda per_s: per_s < 990.0, 10.0, 1000.0) < 990.0


def test_tokens_that_are_late_missing_or_wrong_are_not_kept_up_with() -> None:
    sizes = HalfLoadSizes(tokens=10, tokens_per_s=100)
    good = {"tokens": 9900, "seconds": 1.0, "errors": {"status": 0}, "one_way_us": {"p50": 900.0}}
    assert kept_up(good, 1000.0, sizes)
    assert kept_up({**good, "tokens": 9000}, 1000.0, sizes), "random times"
    assert not kept_up({**good, "tokens": 8500}, 1000.0, sizes)
    assert not kept_up({**good, "errors": {"status": 1}}, 1000.0, sizes)
    assert not kept_up({**good, "one_way_us": {"p50": 20_000.0}}, 1000.0, sizes)


def test_each_goal_is_told_with_what_was_measured() -> None:
    assert str(_SEEN).count(": met") == 3
    slow = replace(_SEEN, first_added_p99_ms=6.0, one_way_p99_ms=3.5, unary_added_p50_ms=0.6, kept_up=False)
    assert str(slow).count("MISSED") == 3
    assert "FELL BEHIND" in str(slow)
    assert json.loads(_SEEN.to_json())["one_way_p99_ms"] == 2.0
