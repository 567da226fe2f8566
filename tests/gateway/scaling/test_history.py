"""Loads become means of steps."""

import pytest

from gateway.scaling import history
from gateway.scaling.history import KEPT_S, LoadHistory
from gateway.scheduling.scaling.bursts import PIECE_S, PIECES, UNKNOWN, shares
from gateway.scheduling.scaling.forecast import STEP_S

START_S = 6000 * STEP_S


def filled(found: LoadHistory, step: int, load: float, model: str = "m") -> None:
    for second in range(0, int(STEP_S), 30):
        found.note(model, "l4", load, START_S + step * STEP_S + second)


def test_a_step_is_the_mean_of_what_was_noted_in_it_once_it_is_over() -> None:
    found = LoadHistory()
    for second, load in ((0, 1.0), (150, 2.0), (299, 6.0)):
        found.note("m", "l4", load, START_S + second)
    assert found.latest("m", "l4") is None
    (noted,) = found.take(START_S + STEP_S, writes=True)
    assert (noted.model, noted.device, noted.at_s, noted.load) == ("m", "l4", START_S + 150, 3.0)
    assert found.latest("m", "l4") == (3.0, START_S + 150)
    assert found.take(START_S + STEP_S, writes=True) == []


def test_a_step_of_which_little_was_seen_is_not_known() -> None:
    found = LoadHistory()
    found.note("m", "l4", 1.0, START_S + 290)
    assert found.take(START_S + STEP_S, writes=True) == []
    seldom = LoadHistory(interval_s=200.0)
    seldom.note("m", "l4", 1.0, START_S + 100)
    assert len(seldom.take(START_S + STEP_S, writes=True)) == 1


def test_who_does_not_write_keeps_a_little_for_when_it_has_to() -> None:
    found = LoadHistory()
    for step in range(10):
        filled(found, step, 1.0)
        assert found.take(START_S + (step + 1) * STEP_S, writes=False) == []
    noted = found.take(START_S + 10 * STEP_S, writes=True)
    assert len(noted) == KEPT_S // STEP_S


def test_what_could_not_be_written_comes_again_in_its_order() -> None:
    found = LoadHistory()
    filled(found, 0, 1.0)
    filled(found, 1, 2.0)
    noted = found.take(START_S + 2 * STEP_S, writes=True)
    filled(found, 2, 3.0)
    found.give_back(noted)
    assert [each.load for each in found.take(START_S + 3 * STEP_S, writes=True)] == [1.0, 2.0, 3.0]


def test_no_more_series_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 1)
    found = LoadHistory()
    filled(found, 0, 1.0)
    filled(found, 0, 1.0, "n")
    assert found.is_full
    filled(found, 5, 1.0, "n")
    assert {each.model for each in found.take(START_S + 6 * STEP_S, writes=True)} == {"m", "n"}


def test_old_series_are_looked_for_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 1)
    found = LoadHistory()
    filled(found, 0, 1.0)
    filled(found, 1, 1.0, "n")
    dropped = found._dropped_at
    assert dropped == (START_S + STEP_S) // STEP_S
    filled(found, 2, 1.0, "n")
    assert found._dropped_at == dropped + 1
    assert {each.model for each in found.take(START_S + 3 * STEP_S, writes=True)} == {"m", "n"}


def test_what_came_in_single_pieces_is_kept_with_the_mean() -> None:
    found = LoadHistory(interval_s=5.0)
    for number in range(2 * PIECES):
        at_s = START_S + number * PIECE_S / 2
        found.note("m", "l4", 2.0, at_s, 30.0 if number // 2 == 7 else 1.0)
        found.note("n", "l4", 2.0, at_s)
    seen, not_seen = found.take(START_S + STEP_S, writes=True)
    within = shares(seen.bursts)
    assert within is not None
    assert [number for number, each in enumerate(within) if each > 10] == [7]
    assert sum(within) == pytest.approx(PIECES)
    assert not_seen.bursts == UNKNOWN


def test_where_decisions_are_further_apart_than_pieces_the_others_are_taken_for_the_mean() -> None:
    found = LoadHistory(interval_s=30.0)
    for number in range(10):
        found.note("m", "l4", 2.0, START_S + number * 30.0, 2.0 * (number % 2))
    (seen,) = found.take(START_S + STEP_S, writes=True)
    within = shares(seen.bursts)
    assert within is not None
    assert within[:6] == pytest.approx([0.0, 1.0, 1.0, 2.0, 1.0, 1.0], abs=0.02)
