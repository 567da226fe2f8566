"""When the agent dials again."""

from hypothesis import given
from hypothesis import strategies as st

from shared.link.backoff import (
    MISDIRECTED_ATTEMPTS,
    MISDIRECTED_BASE_S,
    PATIENT_ATTEMPTS,
    STEADY_S,
    Backoff,
)


def test_the_loss_of_a_good_tunnel_is_answered_at_once() -> None:
    backoff = Backoff()
    backoff.lost(STEADY_S)
    assert backoff.delay_s(0.99) == 0.0


def test_waits_are_short_for_a_while_and_then_double_up_to_the_cap() -> None:
    backoff, ceilings = Backoff(), []
    backoff.lost(3600)
    for _ in range(PATIENT_ATTEMPTS + 7):
        ceilings.append(backoff.delay_s(1.0))
        backoff.failed()
    assert ceilings[0] == 0
    assert set(ceilings[1 : PATIENT_ATTEMPTS + 1]) == {1}
    assert ceilings[PATIENT_ATTEMPTS + 1 :] == [2, 4, 8, 16, 30, 30]


def test_where_nobody_listens_it_asks_twice_as_often_for_as_long() -> None:
    backoff, ceilings = Backoff(), []
    for _ in range(2 * PATIENT_ATTEMPTS + 3):
        backoff.failed(refused=True)
        ceilings.append(backoff.delay_s(1.0))
    assert set(ceilings[: 2 * PATIENT_ATTEMPTS]) == {0.5}
    assert ceilings[2 * PATIENT_ATTEMPTS :] == [2, 2, 4]


def test_a_gateway_that_answers_and_fails_is_not_asked_as_often_as_one_that_is_not_there() -> None:
    backoff = Backoff()
    backoff.failed(refused=True)
    backoff.failed()
    assert backoff.delay_s(1.0) == 1.0


def test_waits_are_spread_over_all_of_the_base_where_nobody_listens() -> None:
    backoff = Backoff()
    backoff.failed(refused=True)
    assert [backoff.delay_s(chance) for chance in (0.0, 0.5, 1.0)] == [0.0, 0.25, 0.5]


def test_a_tunnel_that_falls_at_once_counts_as_a_failure() -> None:
    backoff = Backoff()
    for _ in range(3):
        backoff.lost(0.1)
    assert backoff.delay_s(1.0) == 1.0


def test_a_good_tunnel_makes_failures_forgotten() -> None:
    backoff = Backoff()
    for _ in range(9):
        backoff.failed()
    backoff.lost(STEADY_S + 1)
    assert backoff.delay_s(0.5) == 0.0


def test_what_the_gateway_told_wins_and_is_spread() -> None:
    backoff = Backoff()
    backoff.lost(3600)
    assert backoff.delay_s(0.0, retry_after_s=20.0) == 20.0
    assert backoff.delay_s(1.0, retry_after_s=20.0) == 25.0


@given(st.integers(0, 2000), st.floats(0, 1, exclude_max=True))
def test_no_wait_is_longer_than_the_cap_or_negative(failures: int, chance: float) -> None:
    backoff = Backoff()
    for number in range(failures):
        backoff.failed(refused=number % 3 == 0)
    assert 0.0 <= backoff.delay_s(chance) <= 30.0


def test_where_chance_decides_which_process_answers_it_is_tried_again_soon_and_not_for_ever() -> None:
    backoff, ceilings = Backoff(), []
    for _ in range(2 * MISDIRECTED_ATTEMPTS + 2):
        backoff.misdirected(2)
        ceilings.append(backoff.delay_s(1.0))
    assert set(ceilings[: 2 * MISDIRECTED_ATTEMPTS]) == {MISDIRECTED_BASE_S}
    assert set(ceilings[2 * MISDIRECTED_ATTEMPTS :]) == {1.0}


def test_a_gateway_that_is_away_is_not_dialled_faster_because_its_processes_were() -> None:
    backoff = Backoff()
    backoff.misdirected(2)
    backoff.failed()
    assert backoff.delay_s(1.0) == 1.0
    backoff.misdirected(2)
    assert backoff.delay_s(1.0) == 1.0, "until a tunnel is up"
