"""Which regions a request may use: by price, wait, shift, pilot light and standing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gateway.dispatch.decisions.words import EXCLUDED, REGIONS
from gateway.scheduling.base import DeploymentView
from gateway.scheduling.regions.choice import RegionChoice, RegionOffer, Waiting, choose, is_nearer
from gateway.scheduling.regions.settings import RegionSettings
from gateway.scheduling.regions.standing import Standing

NOW = 100.0
PRICED = RegionSettings(home="eu", prices={"us": 2.0, "ap": 10.0})


def full(region: str, *ends_s: float, rtt_s: float = 0.0, **more: Any) -> RegionOffer:
    """All slots taken, one for each of the expected ends."""
    view = DeploymentView(f"{region}/m", region, "m", frozenset({"chat"}), len(ends_s), len(ends_s))
    for number, end_s in enumerate(ends_s):
        view.load.begun(number, NOW, kv_tokens=0, output_s=end_s)
    return RegionOffer(region, rtt_s, 0, views=[view], **more)


def open_(region: str, free: int = 1, rtt_s: float = 0.0, reads_s: float = 0.0, **more: Any) -> RegionOffer:
    view = DeploymentView(f"{region}/m", region, "m", frozenset({"chat"}), free)
    view.load.ready_s = NOW + reads_s
    return RegionOffer(region, rtt_s, free, views=[view], **more)


def ask(
    *offers: RegionOffer,
    settings: RegionSettings = PRICED,
    waited_s: float = 0.0,
    behind: int = 0,
    shifted_to: str | None = None,
    drawn: Mapping[str, float] | None = None,
) -> RegionChoice:
    return choose(offers, Waiting(waited_s, behind, shifted_to, drawn or {}), settings, NOW)


def test_the_nearest_is_taken_while_it_has_room() -> None:
    settings = RegionSettings()
    choice = ask(open_("us", rtt_s=0.09), open_("eu", rtt_s=0.01), settings=settings)
    assert (choice.barred, choice.reason("eu")) == ({"us": "dearer"}, "nearest")


def test_round_trips_that_hardly_differ_are_equal() -> None:
    assert ask(open_("a", rtt_s=0.011), open_("b", rtt_s=0.014), settings=RegionSettings()).barred == {}


def test_the_round_trip_may_be_left_to_the_policy() -> None:
    offers = open_("us", rtt_s=0.09), open_("eu", rtt_s=0.01)
    assert ask(*offers, settings=RegionSettings(nearest_first=False)).barred == {}


def test_work_goes_elsewhere_only_when_waiting_here_costs_more() -> None:
    soon = ask(full("eu", 1.5), open_("us"))
    assert soon.barred == {"us": "dearer"}
    assert soon.look_in_s == pytest.approx(2.0)
    late = ask(full("eu", 2.5), open_("us"))
    assert (late.barred, late.reason("us")) == ({}, "spilled_over")


def test_who_has_waited_as_long_as_the_price_goes_whatever_is_predicted() -> None:
    assert ask(full("eu", 0.5), open_("us"), waited_s=1.9).barred == {"us": "dearer"}
    assert ask(full("eu", 0.5), open_("us"), waited_s=2.1).barred == {}


def test_the_wait_is_that_of_the_last_in_the_queue() -> None:
    assert ask(full("eu", 1.0), open_("us"), behind=0).barred == {"us": "dearer"}
    assert ask(full("eu", 1.0), open_("us"), behind=5).barred == {}


def test_of_those_elsewhere_the_dearer_waits_for_the_cheaper() -> None:
    choice = ask(full("eu", 50.0), open_("us"), open_("ap"))
    assert choice.barred == {"ap": "dearer"}
    assert ask(full("eu", 50.0), full("us", 50.0), open_("ap")).barred == {}


def test_an_engine_with_prompts_to_read_has_no_room_for_so_long() -> None:
    near = RegionSettings()
    assert ask(open_("eu", reads_s=0.1), open_("us", rtt_s=0.2), settings=near).barred == {"us": "dearer"}
    assert ask(open_("eu", reads_s=0.5), open_("us", rtt_s=0.2), settings=near).barred == {}


def test_a_slot_without_room_for_the_context_is_none() -> None:
    eu, us = open_("eu", free=2), open_("us")
    eu.views[0].kv_free_tokens = 1000
    assert eu.for_context(900) is eu
    assert eu.for_context(1100).free == 0
    assert ask(eu.for_context(1100), us, waited_s=3.0).barred == {}


def test_a_slot_that_one_gets_is_taken_for_the_next() -> None:
    eu, us = open_("eu", free=1), open_("us", free=2)
    eu.views[0].load.begun(1, NOW, kv_tokens=0, output_s=9.0)
    found = [ask(eu, us).barred for _ in range(2)]
    assert found == [{"us": "dearer"}, {}]


def test_a_pilot_light_is_for_when_the_others_fail_or_are_full() -> None:
    settings = RegionSettings(prices={"us": 5.0}, pilot=frozenset({"dr"}), pilot_wait_s=1.0)
    assert ask(open_("us"), open_("dr"), settings=settings).barred == {"dr": "pilot"}
    assert ask(full("us", 0.4), open_("dr"), settings=settings).barred == {"dr": "pilot"}
    used = ask(full("us", 3.0), open_("dr"), settings=settings)
    assert (used.barred, used.reason("dr")) == ({}, "pilot_light")
    assert ask(open_("dr"), settings=settings).barred == {}


def test_who_is_moved_goes_there_and_elsewhere_only_when_that_is_full() -> None:
    moved = ask(open_("eu"), open_("us"), shifted_to="us")
    assert (moved.barred, moved.reason("us")) == ({"eu": "shifted_away"}, "shifted")
    assert ask(open_("eu"), full("us", 9.0), shifted_to="us").barred == {}
    assert ask(open_("eu"), open_("ap"), shifted_to="us").barred == {"ap": "dearer"}


def test_a_region_that_was_lost_is_left_alone_unless_there_is_no_other() -> None:
    held: dict[str, Any] = {"standing": Standing.HELD, "share": 0.0}
    choice = ask(open_("eu", **held), open_("us"))
    assert (choice.barred, choice.reason("us")) == ({"eu": "held"}, "failed_over")
    assert ask(open_("eu", **held)).barred == {}
    assert ask(open_("eu", **held), full("us", 90.0)).barred == {"eu": "held"}


def test_what_goes_elsewhere_while_a_nearer_one_is_lost_says_so() -> None:
    settings = RegionSettings(prices={"ap": 3.0}, pilot=frozenset({"dr"}))
    us, dr = open_("us", rtt_s=0.09), open_("dr")
    choice = ask(us, settings=settings)
    found = [is_nearer(lost, choice, [us], settings) for lost in ({"eu": 0.01}, {"ap": 0.01}, {"sa": 0.2})]
    assert found == [True, False, False]
    assert replace(choice, nearer_lost=True).reason("us") == "failed_over"
    lit = ask(dr, settings=settings)
    assert is_nearer({"ap": 0.01}, lit, [dr], settings)
    assert replace(lit, nearer_lost=True).reason("dr") == "pilot_light"


def test_one_that_returns_gets_its_share() -> None:
    back: dict[str, Any] = {"standing": Standing.RETURNING, "share": 0.4}
    assert ask(open_("eu", **back), open_("us"), drawn={"eu": 0.3}).barred == {"us": "dearer"}
    assert ask(open_("eu", **back), open_("us"), drawn={"eu": 0.5}).barred == {"eu": "returning"}


@given(
    some.lists(
        some.tuples(
            some.sampled_from(("eu", "us", "ap", "dr", "sa")),
            some.integers(0, 3),
            some.floats(0.0, 0.3),
            some.sampled_from((Standing.UP, Standing.DOWN, Standing.HELD, Standing.RETURNING)),
            some.floats(0.0, 1.0),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda each: each[0],
    ),
    some.floats(0.0, 30.0),
    some.integers(0, 20),
    some.sampled_from((None, "us", "dr", "nowhere")),
    some.floats(0.0, 0.999),
)
def test_whatever_is_there_some_region_is_left_and_a_wait_that_is_long_enough_ends(
    regions: list[tuple[str, int, float, Standing, float]],
    waited_s: float,
    behind: int,
    shifted_to: str | None,
    drawn: float,
) -> None:
    settings = RegionSettings(home="eu", prices={"us": 2.0, "sa": 7.0}, pilot=frozenset({"dr"}))
    offers = [
        replace(
            open_(region, free, rtt_s) if free else full(region, 5.0, rtt_s=rtt_s),
            standing=standing,
            share=1.0 if standing is Standing.UP else share,
        )
        for region, free, rtt_s, standing, share in regions
    ]
    draws = dict.fromkeys((each.region for each in offers), drawn)
    choice = ask(
        *offers, settings=settings, waited_s=waited_s, behind=behind, shifted_to=shifted_to, drawn=draws
    )
    left = [each for each in offers if each.region not in choice.barred]
    assert left
    assert choice.look_in_s is None or choice.look_in_s >= 0.0
    alone = {region for region, why in choice.barred.items() if why in ("down", "held", "returning")}
    if waited_s > 20.0 and any(each.free > 0 for each in offers if each.region not in alone):
        assert any(view.free > 0 for each in left for view in each.views)
    assert all(choice.reason(each.region) in REGIONS for each in left)
    assert all(f"region_{why}" in EXCLUDED for why in choice.barred.values())


def test_a_region_that_costs_infinitely_is_like_others_to_who_asked_for_it() -> None:
    never = RegionSettings(home="eu", prices={"us": float("inf")})
    assert ask(open_("us"), settings=never).barred == {}
    assert ask(open_("us"), open_("ap"), settings=never).look_in_s is None
