import pytest

from gateway.errors import BuffersFull
from gateway.http.buffers import RESERVE_STEP_BYTES, BufferBudget, Reservation


def test_what_is_full_says_so_at_once_and_takes_nothing() -> None:
    budget = BufferBudget(100)
    Reservation(budget).hold(60)
    with pytest.raises(BuffersFull) as caught:
        Reservation(budget).hold(41)
    assert caught.value.retry_after_s
    assert budget.used_bytes == 60


def test_a_reservation_grows_by_the_difference_and_in_steps() -> None:
    budget = BufferBudget(10 * RESERVE_STEP_BYTES)
    reservation = Reservation(budget)
    reservation.grow(1)
    assert budget.used_bytes == RESERVE_STEP_BYTES
    reservation.grow(RESERVE_STEP_BYTES)
    reservation.hold(10)
    assert budget.used_bytes == RESERVE_STEP_BYTES
    reservation.grow(RESERVE_STEP_BYTES + 1)
    assert budget.used_bytes == 2 * RESERVE_STEP_BYTES


def test_everything_is_given_back_once() -> None:
    budget = BufferBudget(100)
    reservation = Reservation(budget)
    reservation.hold(80)
    reservation.release()
    reservation.release()
    assert budget.used_bytes == 0
