"""How many slots jobs leave to others."""

from random import Random

import pytest

from gateway.scheduling.interactive_reserve import (
    FREED_GUESS_S,
    LEAST_S,
    MISSED,
    WINDOW_S,
    InteractiveReserve,
)

MANY = 1_000


def reserve_of(per_s: float, seconds: float = 120.0) -> tuple[InteractiveReserve, float]:
    """Requests for ``m`` came evenly for so long; and the time it is then."""
    reserve = InteractiveReserve()
    for number in range(int(per_s * seconds)):
        reserve.came("m", number / per_s)
    return reserve, seconds


def test_nothing_is_kept_where_nobody_asks() -> None:
    reserve = InteractiveReserve()
    reserve.came("other", 0.0)
    assert reserve.kept("m", MANY, 0.0) == 0
    assert reserve.kept_from_new("m", MANY, 5, 0.0) == 0


@pytest.mark.parametrize(("per_s", "kept"), [(0.01, 0), (1.0, 1), (10.0, 3), (100.0, 13), (10_000.0, 568)])
def test_as_many_are_kept_as_come_until_a_slot_is_free(per_s: float, kept: int) -> None:
    reserve, now = reserve_of(per_s)
    assert reserve.freed_s == FREED_GUESS_S
    assert reserve.kept("m", MANY * 10, now) == kept


def test_hardly_ever_do_more_come_than_are_kept() -> None:
    reserve, now = reserve_of(40.0)
    kept, random, tries = reserve.kept("m", MANY, now), Random(1), 20_000
    missed = 0
    for _ in range(tries):
        at_s, count = random.expovariate(40.0), 0
        while at_s < FREED_GUESS_S:
            at_s, count = at_s + random.expovariate(40.0), count + 1
        missed += count > kept
    assert missed / tries <= 2 * MISSED


def test_a_slot_that_takes_longer_to_be_free_needs_more_of_them() -> None:
    reserve, now = reserve_of(10.0)
    before = reserve.kept("m", MANY, now)
    for _ in range(100):
        reserve.freed(1.0)
    assert reserve.freed_s == pytest.approx(1.0, rel=0.01)
    assert reserve.kept("m", MANY, now) == 20 > before


def test_it_is_forgotten_with_time() -> None:
    reserve, now = reserve_of(10.0)
    assert reserve.kept("m", MANY, now + WINDOW_S) < reserve.kept("m", MANY, now)
    assert reserve.kept("m", MANY, now + 10 * WINDOW_S) == 0


def test_the_first_requests_count_at_once() -> None:
    reserve = InteractiveReserve()
    for number in range(10):
        reserve.came("m", number * 0.1)
    known, now = reserve_of(10.0)
    assert reserve.kept("m", MANY, 1.0) == known.kept("m", MANY, now)
    reserve.came("alone", 0.0)
    assert reserve.kept("alone", MANY, LEAST_S) == 2


def test_half_of_the_slots_are_left_to_jobs() -> None:
    reserve, now = reserve_of(100.0)
    assert [reserve.kept("m", slots, now) for slots in (1, 2, 3, 16, 64)] == [0, 1, 1, 8, 13]
    assert [reserve.kept_from_new("m", slots, 9, now) for slots in (1, 2, 16, 64)] == [0, 1, 8, 16]


def held(per_s: float, held_s: float) -> tuple[InteractiveReserve, float]:
    """Requests for ``m`` came for two minutes and had their slots for so long."""
    reserve, now = reserve_of(per_s)
    for _ in range(500):
        reserve.left("m", held_s)
    return reserve, now


@pytest.mark.parametrize(
    ("per_s", "held_s", "pause_s"),
    [
        (10.0, 0.5, 0.224),
        (10.0, 40.0, 2.0),
        (0.1, 5.0, 5.0),
    ],  # one request at a time has no mean to vary about
)
def test_after_a_job_gave_way_one_more_begins_after_a_pause(
    per_s: float, held_s: float, pause_s: float
) -> None:
    reserve, now = held(per_s, held_s)
    assert reserve.more_jobs("m", 6, 16, now) == 16
    reserve.gave_way("m", 6, now)
    assert reserve.more_jobs("m", 6, 16, now + 0.95 * pause_s) == 0
    assert reserve.more_jobs("m", 4, 16, now) == 2  # in the place of those that ended
    now += 1.05 * pause_s
    assert reserve.more_jobs("m", 6, 16, now) == 1
    reserve.began("m", 7, now)
    assert reserve.more_jobs("m", 7, 16, now) == 0
    assert reserve.more_jobs("m", 6, 16, now) == 1
    reserve.began("m", 7, now + 0.5 * pause_s)  # in the place of one, which does not begin the pause anew
    assert reserve.more_jobs("m", 7, 16, now + 1.05 * pause_s) == 1


def test_jobs_that_cannot_give_way_leave_what_others_ever_take() -> None:
    reserve, now = held(9.6, 0.5)
    assert InteractiveReserve().kept_from_lasting("m", 16, now) == 0
    assert reserve.kept("m", 16, now) == 3
    assert reserve.kept_from_lasting("m", 64, now) == 3 + 12  # 4.8 at once in the mean, hardly ever over 12
    assert reserve.kept_from_lasting("m", 16, now) == 14
    assert reserve.kept_from_lasting("other", 16, now) == 0


def test_models_have_nothing_to_do_with_each_other() -> None:
    reserve, now = reserve_of(10.0)
    assert reserve.kept("other", MANY, now) == 0
