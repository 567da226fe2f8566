from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.exchange.buffers import (
    EMPTY_ACCOUNTS,
    STEP_BYTES,
    BodyReservation,
    BufferBudget,
    BufferOwner,
)
from gateway.domain.errors import BuffersFull
from gateway.runtime.pressure import SMALL_BYTES

MIB = 1024 * 1024
ONE, TWO = BufferOwner("acme", "k1"), BufferOwner("acme", "k2")
OTHER = BufferOwner("globex", "k3")


def fill(budget: BufferBudget, owner: BufferOwner, size_bytes: int = MIB) -> int:
    """As many bodies as ``owner`` may have; how many bytes they hold."""
    held = 0
    while True:
        try:
            BodyReservation(budget, owner).grow(size_bytes)
        except BuffersFull:
            return held
        held += size_bytes


def test_what_is_full_says_so_at_once_and_takes_nothing() -> None:
    budget = BufferBudget(64 * MIB)
    held = fill(budget, ONE)
    assert budget.used_bytes == held
    with pytest.raises(BuffersFull) as caught:
        BodyReservation(budget, ONE).grow(MIB)
    assert caught.value.retry_after_s
    assert budget.used_bytes == held


def test_a_reservation_holds_what_came_and_grows_in_steps_once_it_is_not_small() -> None:
    budget = BufferBudget(64 * MIB)
    reservation = BodyReservation(budget)
    reservation.grow(1)
    assert budget.used_bytes == 1
    reservation.grow(SMALL_BYTES)
    reservation.grow(10)
    assert budget.used_bytes == SMALL_BYTES
    reservation.grow(SMALL_BYTES + 1)
    assert budget.used_bytes == SMALL_BYTES + STEP_BYTES


def test_everything_is_given_back_once() -> None:
    budget = BufferBudget(64 * MIB)
    reservation = BodyReservation(budget, ONE)
    reservation.announce(8 * MIB)
    reservation.grow(8 * MIB)
    reservation.release()
    reservation.release()
    assert budget.used_bytes == 0
    assert len(budget._announced) == 0
    assert budget.large.most(TWO) == budget.longest_bytes


def test_who_holds_nothing_is_forgotten() -> None:
    budget = BufferBudget(64 * MIB)
    held = BodyReservation(budget, ONE)
    held.grow(1)
    for number in range(5 * EMPTY_ACCOUNTS):
        body = BodyReservation(budget, BufferOwner(f"tenant {number}", "k"))
        body.take_small(10)
        body.release()
    pool = budget.large
    assert max(len(pool._accounts), len(pool._tenants)) <= EMPTY_ACCOUNTS + 2
    before = pool.most(ONE)
    held.release()
    assert budget.used_bytes == 0
    assert pool.most(ONE) >= before


def test_accounts_that_hold_something_are_kept_however_many() -> None:
    budget = BufferBudget(64 * MIB)
    bodies = [BodyReservation(budget, BufferOwner(f"t{number}", "k")) for number in range(3 * EMPTY_ACCOUNTS)]
    for body in bodies:
        body.take_small(10)
    assert budget.used_bytes == 10 * len(bodies)
    for body in bodies:
        body.release()
    assert budget.used_bytes == 0


def test_what_is_announced_takes_nothing_from_anybody_else() -> None:
    budget = BufferBudget(64 * MIB)
    for _ in range(3):
        BodyReservation(budget, ONE).announce(8 * MIB)
    assert budget.used_bytes == 0
    assert fill(budget, OTHER) >= 24 * MIB


def test_a_key_announces_no_more_than_it_may_hold() -> None:
    budget = BufferBudget(64 * MIB)
    announced = [BodyReservation(budget, ONE) for _ in range(3)]
    for each in announced:
        each.announce(10 * MIB)
    with pytest.raises(BuffersFull):
        BodyReservation(budget, ONE).announce(10 * MIB)
    announced[0].release()
    BodyReservation(budget, ONE).announce(10 * MIB)


def test_neither_a_key_nor_a_tenant_takes_everything() -> None:
    budget = BufferBudget(64 * MIB)
    assert fill(budget, ONE) < 40 * MIB
    assert fill(budget, TWO) >= MIB, "another key of the tenant finds room"
    assert fill(budget, OTHER) >= 8 * MIB, "another tenant finds more"


def test_tenants_that_want_everything_end_with_equal_parts() -> None:
    budget = BufferBudget(64 * MIB)
    owners = [BufferOwner(f"tenant {number}", "k") for number in range(4)]
    held: dict[BufferOwner, list[BodyReservation]] = {owner: [] for owner in owners}
    for _ in range(400):
        for owner in owners:
            if held[owner]:
                held[owner].pop(0).release()
            for _ in range(2):
                reservation = BodyReservation(budget, owner)
                try:
                    reservation.grow(MIB // 2)
                except BuffersFull:
                    break
                held[owner].append(reservation)
    parts = [len(each) for each in held.values()]
    assert max(parts) - min(parts) <= 2
    assert min(parts) >= 8


def test_small_bodies_have_a_part_that_large_ones_never_get() -> None:
    budget = BufferBudget(64 * MIB)
    for number in range(60):
        fill(budget, BufferOwner(f"tenant {number}", "k"))
    with pytest.raises(BuffersFull):
        BodyReservation(budget, OTHER).grow(10 * MIB)
    small = [BodyReservation(budget, OTHER) for _ in range(32)]
    for each in small:
        each.grow(SMALL_BYTES)


def test_a_body_that_outgrows_the_part_of_the_small_leaves_it() -> None:
    budget = BufferBudget(64 * MIB)
    large = [BodyReservation(budget, BufferOwner(f"tenant {number}", "k")) for number in range(60)]
    for each in large:
        while True:
            try:
                each.grow(each._held_bytes + MIB)
            except BuffersFull:
                break
    body = BodyReservation(budget, OTHER)
    while budget.small.used_bytes == 0:
        body = BodyReservation(budget, OTHER)
        body.grow(SMALL_BYTES)
    for each in large:
        each.release()
    body.grow(MIB)
    assert budget.small.used_bytes == 0
    body.release()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 3 * MIB)), max_size=60))
def test_the_sum_is_kept_whatever_grows_and_goes(steps: list[tuple[int, int, int]]) -> None:
    budget = BufferBudget(8 * MIB)
    bodies: dict[int, BodyReservation] = {}
    held: Counter[int] = Counter()
    for body, owner, size_bytes in steps:
        if body in bodies and size_bytes % 3 == 0:
            bodies.pop(body).release()
            held[body] = 0
            continue
        reservation = bodies.setdefault(
            body, BodyReservation(budget, BufferOwner(f"t{owner % 2}", f"k{owner}"))
        )
        before = budget.used_bytes
        try:
            reservation.grow(size_bytes)
        except BuffersFull:
            assert budget.used_bytes == before
        held[body] = reservation._held_bytes
        assert budget.used_bytes == sum(held.values()) <= budget.limit_bytes
    for each in bodies.values():
        each.release()
    assert budget.used_bytes == 0
