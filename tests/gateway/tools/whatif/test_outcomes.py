"""Figures of what came of requests."""

import pytest

from gateway.tools.whatif.outcomes import (
    FleetCost,
    Outcomes,
    ServiceLevel,
    figures_of,
    measured,
    percentiles,
    series_of,
    step_s,
)
from tests.gateway.tools.whatif.kit import BEGIN_S, fact

LEVEL = ServiceLevel(0.5, 0.1)


def test_percentiles_are_of_the_values_themselves() -> None:
    assert percentiles([float(each) for each in range(100, 0, -1)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}


def test_the_level_is_kept_by_streams_and_by_answers_in_one_piece() -> None:
    assert LEVEL.is_kept(0.5, 0.5 + 0.1 * 9, 10, whole=False)
    assert not LEVEL.is_kept(0.6, 0.7, 10, whole=False)
    assert not LEVEL.is_kept(0.1, 0.1 + 0.1 * 9.5, 10, whole=False)
    assert LEVEL.is_kept(1.4, 1.4, 10, whole=True)
    assert not LEVEL.is_kept(1.5, 1.5, 10, whole=True)


def test_what_was_measured_has_the_figures_of_a_fleet() -> None:
    facts = [
        fact(0.0, gpu_s=6.0),
        fact(30.0, first_s=None, total_s=4.0, tokens_out=80, gpu_s=9.0),
        fact(40.0, outcome="refused", gpu_s=0.0),
        fact(41.0, outcome="failed", gpu_s=0.0),
        fact(42.0, outcome="cancelled", gpu_s=0.0),
    ]
    found = figures_of(measured(facts, BEGIN_S, LEVEL), FleetCost(2, 8, 3.0), 3600.0, 3600.0)
    counts = ("requests", "answered", "refused", "failed", "cancelled")
    assert [found[name] for name in counts] == [5, 2, 1, 1, 1]
    assert found["first_token_s"] == {"p50": 0.2, "p90": 4.0, "p99": 4.0}
    assert found["slo_kept"] == pytest.approx(2 / 3)
    assert found["utilisation"] == pytest.approx(15 / 7200)
    assert (found["gpu_hours"], found["cost"]) == (2.0, 3.0)
    assert found["output_tokens_per_s"] == pytest.approx(100 / 43)


def test_without_a_price_there_is_no_cost() -> None:
    found = figures_of(Outcomes(LEVEL), FleetCost(2, 8, None), 3600.0, 3600.0)
    assert (found["cost"], found["slo_kept"], found["first_token_s"]["p50"]) == (None, None, None)


def test_a_course_has_a_point_for_each_step_and_none_where_nothing_came() -> None:
    outcomes = measured([fact(0.0), fact(1.0, first_s=0.4), fact(119.0)], BEGIN_S, LEVEL)
    found = series_of(outcomes, 0.0, 120.0)
    step = step_s(120.0)
    assert (step, {len(each) for each in found.values()}) == (2, {60})
    assert found["first_token_p90_s"][:2] == [0.4, None]
    assert found["output_tokens_per_s"][0] == 20.0
    assert step_s(3600.0) == 60
