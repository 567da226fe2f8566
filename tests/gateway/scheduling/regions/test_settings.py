"""What regions cost, which never get what did not ask for them, and which requests are moved."""

from math import inf

import pytest

from gateway.domain.residency import read_where
from gateway.scheduling.regions.settings import NeverRegions, RegionSettings, TrafficShift, draw

LABELS: tuple[dict[str, str], ...] = ({}, {"region": "eu"}, {"region": "us"}, {"region": "ap"})


def test_a_pair_counts_before_a_region_and_that_before_all() -> None:
    settings = RegionSettings(
        home="eu", price_s=3.0, prices={"us": 2.0, "eu>us": 1.0, "ap>us": 9.0, "ap": 5.0}
    )
    assert [settings.price_of(region) for region in ("eu", "us", "ap", "sa")] == [0.0, 1.0, 5.0, 3.0]


def allowed(never: NeverRegions, text: str | None) -> list[bool]:
    where = never.constrained(None if text is None else read_where(text))
    return [where is None or where.allows(labels) for labels in LABELS]


def test_who_names_no_region_never_goes_where_it_costs_infinitely() -> None:
    never = NeverRegions(RegionSettings(home="eu", prices={"us": inf, "ap>sa": inf}))
    assert allowed(never, None) == [True, True, False, True]
    assert allowed(never, "region=us,region=ap") == [False, False, False, True]
    assert allowed(never, "tier=gold") == [False] * 4
    assert never.constrained(read_where("region=eu")) == read_where("region=eu")


def test_who_asks_for_such_a_region_by_name_gets_it_and_no_other() -> None:
    never = NeverRegions(RegionSettings(prices={"us": inf}))
    assert allowed(never, "region=us") == [False, False, True, False]


def test_without_such_prices_nothing_is_constrained() -> None:
    never = NeverRegions(RegionSettings(prices={"us": 100.0}))
    assert never.constrained(None) is None
    assert str(NeverRegions(RegionSettings(prices={"us": inf})).constrained(None)) == "region!=us"


def test_a_share_is_moved_and_a_session_stays_together() -> None:
    shifts = (TrafficShift("us", 0.1, "llama*"), TrafficShift("ap", 0.2, tenant="acme"))
    settings = RegionSettings(shifts=shifts)
    keys = [f"session-{number}" for number in range(4000)]
    moved = [settings.shifted_to("llama-8b", "acme", key) for key in keys]
    assert moved.count("us") / 4000 == pytest.approx(0.1, abs=0.02)
    assert moved.count("ap") / 4000 == pytest.approx(0.2, abs=0.02)
    assert moved == [settings.shifted_to("llama-8b", "acme", key) for key in keys]
    assert {settings.shifted_to("qwen", "other", key) for key in keys} == {None}
    assert {settings.shifted_to("qwen", "acme", key) for key in keys} == {None, "ap"}


def test_a_larger_share_moves_who_was_moved_before() -> None:
    keys = [f"session-{number}" for number in range(1000)]
    few, more = (RegionSettings(shifts=(TrafficShift("us", share),)) for share in (0.1, 0.3))
    before = {key for key in keys if few.shifted_to("m", "t", key)}
    assert before < {key for key in keys if more.shifted_to("m", "t", key)}


def test_draws_are_spread_and_differ_by_purpose() -> None:
    draws = [draw(str(number), "shift") for number in range(2000)]
    assert sum(draws) / 2000 == pytest.approx(0.5, abs=0.03)
    assert all(0.0 <= each < 1.0 for each in draws)
    assert draw("a", "shift") != draw("a", "returning eu")
