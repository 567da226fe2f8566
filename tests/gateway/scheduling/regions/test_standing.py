"""A region that was away is used again little by little, under a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gateway.scheduling.regions.settings import RegionSettings
from gateway.scheduling.regions.standing import FIRST_SHARE, TRANSITIONS, Event, RegionStanding, Standing

SETTINGS = RegionSettings(
    blip_s=2.0, blips=3, failback_s=60.0, failback_most_s=200.0, ramp_s=40.0, forget_s=900.0
)


def region() -> RegionStanding:
    return RegionStanding(SETTINGS, 0.0)


def lose(each: RegionStanding, at_s: float) -> None:
    """It is away for longer than a blip, from ``at_s`` on."""
    each.lost(at_s)
    each.advance(at_s + SETTINGS.blip_s)
    assert each.standing is Standing.DOWN


def test_a_blip_changes_nothing() -> None:
    each = region()
    assert each.lost(10.0)
    assert (each.standing, each.share(10.5), each.until_s) == (Standing.BLIP, 1.0, 12.0)
    assert each.found(11.0)
    assert (each.standing, each.share(11.0), each.failures) == (Standing.UP, 1.0, 0)


def test_a_region_that_was_lost_is_left_alone_and_comes_back_little_by_little() -> None:
    each = region()
    lose(each, 10.0)
    assert each.share(30.0) == 0.0
    each.found(30.0)
    assert (each.standing, each.share(89.0), each.until_s) == (Standing.HELD, 0.0, 90.0)
    assert not each.advance(89.9)
    assert each.advance(90.0)
    assert (each.standing, each.share(90.0)) == (Standing.RETURNING, FIRST_SHARE)
    assert each.share(110.0) == pytest.approx(FIRST_SHARE + (1 - FIRST_SHARE) / 2)
    each.advance(130.0)
    assert (each.standing, each.share(130.0), each.until_s) == (Standing.UP, 1.0, None)


def test_one_that_goes_again_is_left_alone_twice_as_long_up_to_a_bound() -> None:
    each, now, held = region(), 0.0, []
    for _ in range(4):
        lose(each, now)
        each.found(now + 5.0)
        assert each.until_s is not None
        held.append(each.until_s - now - 5.0)
        now += 20.0
    assert held == [60.0, 120.0, 200.0, 200.0]


def test_what_is_long_ago_is_forgotten() -> None:
    each = region()
    lose(each, 0.0)
    each.found(5.0)
    each.advance(500.0)
    assert each.standing is Standing.UP
    lose(each, 1000.0)
    assert (each.failures, each.hold_s) == (1, 60.0)


def test_blips_in_quick_succession_count_as_a_failure() -> None:
    each = region()
    for at_s in (10.0, 20.0):
        each.lost(at_s)
        each.found(at_s + 1.0)
        assert each.standing is Standing.UP
    each.lost(30.0)
    each.found(31.0)
    assert (each.standing, each.until_s) == (Standing.HELD, 91.0)


def test_it_goes_while_it_is_left_alone_or_returns() -> None:
    each = region()
    lose(each, 0.0)
    each.found(5.0)
    assert each.lost(6.0)
    assert (each.standing, each.failures) == (Standing.DOWN, 2)
    each.found(7.0)
    each.advance(127.0)
    assert each.standing is Standing.RETURNING
    assert each.lost(130.0)
    assert (each.standing, each.failures) == (Standing.DOWN, 3)


def test_what_is_not_in_the_table_changes_nothing() -> None:
    each = region()
    assert not each.found(1.0)
    assert not each.advance(1000.0)
    assert (each.standing, each.since_s) == (Standing.UP, 0.0)
    assert all(before is not after for (before, _), after in TRANSITIONS.items())


@given(some.lists(some.tuples(some.sampled_from(Event), some.floats(0.0, 300.0)), max_size=40))
def test_whatever_happens_its_share_is_one_and_time_never_leaves_it_out_for_ever(
    happening: list[tuple[Event, float]],
) -> None:
    each, now = region(), 0.0
    for event, after_s in happening:
        now += after_s
        each.advance(now)
        if event is not Event.DUE:
            (each.lost if event is Event.LOST else each.found)(now)
        assert 0.0 <= each.share(now) <= 1.0
        assert (each.until_s is None) == (each.standing in (Standing.UP, Standing.DOWN))
    each.advance(now + SETTINGS.blip_s)
    each.found(now + SETTINGS.blip_s)
    each.advance(now + SETTINGS.blip_s + SETTINGS.failback_most_s + SETTINGS.ramp_s + 1.0)
    assert each.standing is Standing.UP
