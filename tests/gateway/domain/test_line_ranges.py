"""Ranges of lines are read as they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.line_ranges import LineRanges, missing_lines, read_ranges, write_ranges


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("1-", ((1, None),)),
        ("7", ((7, 7),)),
        ("1-100,205-", ((1, 100), (205, None))),
        ("3-3,2", ((3, 3), (2, 2))),
    ],
)
def test_ranges_are_read(text: str, ranges: LineRanges) -> None:
    assert read_ranges(text) == ranges


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be numbers"),
        ("0-5", "must be numbers"),
        ("-5", "must be numbers"),
        ("1,", "must be numbers"),
        ("1 - 5", "must be numbers"),
        ("\u0661", "must be numbers"),
        ("1\n", "must be numbers"),
        ("9" * 10, "must be numbers"),
        ("5-4", "ends before it begins"),
        (",".join(["1"] * 101), "more than 100 ranges"),
    ],
)
def test_what_is_none_is_told(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_ranges(text)


@given(st.sets(st.integers(1, 60)), st.integers(1, 8))
def test_what_is_missing_is_asked_for_in_so_many_ranges(have: set[int], most: int) -> None:
    ranges = missing_lines(have, most)
    assert len(ranges) <= most
    assert read_ranges(write_ranges(ranges)) == ranges
    asked = {line for line in range(1, 80) for first, last in ranges if first <= line <= (last or 99)}
    absent = set(range(1, 80)) - have
    assert absent <= asked
    if len(ranges) < most:
        assert asked == absent
