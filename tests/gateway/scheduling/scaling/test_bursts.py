"""Bursts keep their shape in thirty bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.scaling.bursts import PIECES, UNKNOWN, ending_at, packed, shares
from gateway.scheduling.scaling.forecast import STEP_S


@given(st.lists(st.floats(0, 1e6), min_size=PIECES, max_size=PIECES))
def test_shares_have_the_mean_one_and_are_off_by_a_255th_of_the_greatest(loads: list[float]) -> None:
    found = shares(packed(loads))
    if max(loads) <= 0.0:
        assert found is None
        return
    assert found is not None
    assert sum(found) == pytest.approx(PIECES)
    mean = sum(loads) / PIECES
    for share, load in zip(found, loads, strict=True):
        assert share * max(loads) / max(found) == pytest.approx(load, abs=0.5001 * max(loads) / 255)
    assert max(found) == pytest.approx(max(loads) / mean, rel=0.1)


def test_a_piece_that_nobody_saw_is_taken_for_the_mean_of_the_others() -> None:
    found = shares(packed([4.0, None, 0.0] * (PIECES // 3)))
    assert found is not None
    assert found[:3] == pytest.approx([2.0, 1.0, 0.0], abs=0.01)


def test_where_nothing_came_or_was_seen_nothing_is_known() -> None:
    assert packed([None] * PIECES) == packed([0.0] * PIECES) == UNKNOWN
    assert shares(UNKNOWN) is None
    assert shares(b"") is None


@pytest.mark.parametrize(
    ("steps_since", "steps", "expected"),
    [
        (3, 3, b"abc"),
        (3, 2, b"bc"),
        (3, 5, b"__abc"),
        (2, 2, b"ab"),
        (5, 3, b"c__"),
        (9, 3, b"___"),
        (-1, 3, b"___"),
        (1, 3, b"__a"),
    ],
)
def test_the_end_of_them_has_its_length_whatever_is_known(
    steps_since: int, steps: int, expected: bytes
) -> None:
    start_s = 600 * STEP_S
    found = ending_at(start_s, whole(b"abc"), start_s + steps_since * STEP_S, steps)
    assert found == whole(expected)


def whole(letters: bytes) -> bytes:
    return b"".join(UNKNOWN if each == ord("_") else bytes([each]) * PIECES for each in letters)
