"""Until when a process takes itself to be the owner."""

import pytest

from gateway.cluster.ownership import MARGIN_S, TTL_S, LeasedOwnership, SoleOwner
from gateway.storage.ownership import OwnershipLease
from tests.support.clock import ManualClock


def lease(owner: str | None, epoch: int, incarnation: int = 1) -> OwnershipLease:
    return OwnershipLease("leader", owner, incarnation, epoch, 5000.0)


@pytest.fixture
def ownership(clock: ManualClock) -> LeasedOwnership:
    return LeasedOwnership("a", 1, clock)


def test_one_process_owns_everything_and_has_no_epochs() -> None:
    assert (SoleOwner().owns, SoleOwner().epoch) == (True, None)


def test_it_ends_before_the_lease_does(ownership: LeasedOwnership, clock: ManualClock) -> None:
    assert (ownership.owns, ownership.epoch) == (False, None)
    asked_s = clock()
    clock.advance(1.0)
    ownership.answered(lease("a", 7), asked_s)
    assert (ownership.owns, ownership.epoch) == (True, 7)
    clock.advance(TTL_S - MARGIN_S - 1.1)
    assert ownership.owns
    clock.advance(0.1)
    assert not ownership.owns, "counted from before it was asked for"
    assert ownership.epoch == 7


def test_an_answer_that_came_too_late_is_worth_nothing(
    ownership: LeasedOwnership, clock: ManualClock
) -> None:
    asked_s = clock()
    clock.advance(TTL_S - MARGIN_S)
    ownership.answered(lease("a", 7), asked_s)
    assert not ownership.owns


@pytest.mark.parametrize("other", [lease("b", 8), lease(None, 7), lease("a", 8, 2)])
def test_who_hears_of_another_owner_stops_at_once(
    ownership: LeasedOwnership, clock: ManualClock, other: OwnershipLease
) -> None:
    ownership.answered(lease("a", 7), clock())
    ownership.answered(None, clock())
    assert ownership.owns, "nothing was said of it"
    ownership.answered(other, clock())
    assert not ownership.owns
    assert ownership.latest == other
