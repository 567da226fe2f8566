"""What requests wait for at other processes."""

from dataclasses import replace

import pytest

from gateway.cluster.placement_demands import MOST_KEYS, MOST_MODELS, PlacementDemands
from gateway.domain.request import Tier
from gateway.scheduling.placement.data import PlacementDemand
from tests.support.clock import ManualClock

KEYS = frozenset({"a/d1", "b/d1"})
WAITS = PlacementDemand("m", KEYS, 990.0, 3, Tier.STANDARD)
SERVED = PlacementDemand("m", frozenset({"c/d1"}), 980.0, 2, Tier.REALTIME, True, 5.0)


class Process:
    """Its clock is its own."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.clock = ManualClock(1000.0 + ahead_s)
        self.demands = PlacementDemands(self.clock)
        self.events: list[str] = []
        self.demands.changed = lambda: self.events.append("changed")
        self.demands.wake = lambda: self.events.append("wake")

    def waits_for(self, *demands: PlacementDemand) -> str | None:
        self.demands.own = lambda now: demands
        return self.demands.encode()


def test_what_waits_at_one_the_other_knows_on_its_own_clock() -> None:
    here, there = Process(), Process(ahead_s=500.0)
    row = there.waits_for(replace(WAITS, oldest_s=1490.0), replace(SERVED, model="n", oldest_s=1480.0))
    here.demands.take_up([None, row])
    found = here.demands.with_others([], lambda model: KEYS | {"c/d1"})
    assert sorted(found, key=lambda each: each.model) == [WAITS, replace(SERVED, model="n")]
    assert here.demands.with_others([], lambda model: {"b/d1"}) == [
        replace(WAITS, keys=frozenset({"b/d1"}))
    ], "places that this process does not see are none"
    assert here.demands.with_others([], lambda model: ()) == []


def test_who_wants_the_same_wants_it_together() -> None:
    here, there = Process(), Process()
    here.demands.take_up([there.waits_for(SERVED)])
    everything = KEYS | {"c/d1"}
    assert here.demands.with_others([WAITS], lambda model: everything) == [
        PlacementDemand("m", KEYS, 980.0, 5, Tier.REALTIME, False, 5.0)
    ], "for those whom nothing serves"
    here.demands.take_up([there.waits_for(replace(SERVED, served=False))])
    (both,) = here.demands.with_others([WAITS], lambda model: everything)
    assert (both.keys, both.served, both.requests) == (everything, False, 5)


def test_it_is_told_at_once_when_something_new_waits_and_forgotten_when_nothing_does() -> None:
    there = Process()
    there.demands.note([WAITS])
    assert there.events == ["wake"]
    there.waits_for(WAITS)
    there.demands.note([replace(WAITS, requests=9)])
    assert there.events == ["wake"]
    assert there.waits_for() is None
    there.demands.note([WAITS])
    assert there.events == ["wake", "wake"]


def test_who_decides_looks_again_as_long_as_others_wait_and_once_more() -> None:
    here, there = Process(), Process()
    for row in (None, there.waits_for(WAITS), there.waits_for(WAITS), None, None):
        here.demands.take_up([row])
    assert here.events == ["changed"] * 3


def test_a_row_has_a_bounded_size() -> None:
    there, here = Process(), Process()
    keys = frozenset(f"agent-{n}/d" for n in range(2 * MOST_KEYS))
    row = there.waits_for(*(PlacementDemand(f"m{n}", keys, 900.0 - n) for n in range(2 * MOST_MODELS)))
    here.demands.take_up([row])
    found = here.demands.with_others([], lambda model: keys)
    assert {each.model for each in found} == {f"m{n}" for n in range(MOST_MODELS, 2 * MOST_MODELS)}
    assert {len(each.keys) for each in found} == {MOST_KEYS}


@pytest.mark.parametrize("row", ["", "{}", "[1]", '[{"model":"m"}]', "[" * 5000])
def test_a_row_that_cannot_be_read_says_nothing(row: str) -> None:
    here, there = Process(), Process()
    here.demands.take_up([row, there.waits_for(WAITS)])
    assert here.demands.with_others([], lambda model: KEYS) == [WAITS]
