"""Which columns fit, and in which order rows come."""

from typing import Any

import pytest
from rich.cells import cell_len

from gateway.tools.top.columns import Column, Placed, RowFilter, fitted, place, sort_rows

Row = dict[str, Any]


def column(title: str, width: int = 4, **more: Any) -> Column[Row]:
    return Column(title, width, lambda row: str(row.get(title, "")), lambda row: row.get(title), **more)


NAME = column("name", 6, need=9, flexible=1)
LOAD = column("load", right=True, need=5)
NOTE = column("note", need=1, flexible=3)
COLUMNS = (NAME, NOTE, LOAD)


@pytest.mark.parametrize(
    ("width", "wanted", "placed"),
    [
        (16, "", [("name", 6), ("note", 4), ("load", 4)]),
        (20, "", [("name", 7), ("note", 7), ("load", 4)]),
        (12, "", [("name", 7), ("load", 4)]),
        (12, "note", [("name", 6), ("note", 5)]),
        (5, "note", [("note", 5)]),
        (2, "", []),
    ],
)
def test_columns_of_greater_need_stay_and_share_what_is_left(
    width: int, wanted: str, placed: list[tuple[str, int]]
) -> None:
    found = [(each.column.title, each.width) for each in place(COLUMNS, width, wanted)]
    assert found == placed


@pytest.mark.parametrize("text", ["", "abc", "abcdefgh", "模型模型模型", "é́x"])
@pytest.mark.parametrize("width", [0, 1, 5])
def test_a_cell_is_exactly_as_wide_as_its_column(text: str, width: int) -> None:
    assert cell_len(fitted(text, width)) == cell_len(fitted(text, width, right=True)) == width


def test_a_text_that_is_too_long_is_cut_at_its_end_or_beginning() -> None:
    assert fitted("abcdef", 4) == "abc…"
    ids = Placed(column("id", keep_end=True), 4)
    assert ids.cell({"id": "abcdef"}) == "…def"
    assert ids.cell({"id": "a\x1b[m"}) == "a?[m"


def test_rows_are_sorted_and_those_of_which_nothing_is_known_come_last() -> None:
    rows: list[Row] = [{"n": 1, "load": 2}, {"n": 2}, {"n": 3, "load": 5}, {"n": 4, "load": 2}]
    ups, downs = (sort_rows(rows, LOAD, descending=each) for each in (False, True))
    assert [each["n"] for each in ups] == [1, 4, 3, 2]
    assert [each["n"] for each in downs] == [3, 1, 4, 2]
    texts = [{"name": "b"}, {"name": "A"}]
    assert sort_rows(texts, NAME, descending=False) == [{"name": "A"}, {"name": "b"}]


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("", True),
        ("gpu llama", True),
        ("GPU-1", True),
        ("gpu other", False),
        ("name:gpu", True),
        ("note:gpu", False),
        ("!other", True),
        ("!note:llama", False),
        ("x:y", False),
        ("!", True),
    ],
)
def test_a_filter_takes_rows_that_hold_all_words(words: str, taken: bool) -> None:
    assert RowFilter(words, COLUMNS).takes({"name": "gpu-1", "note": "Llama"}) is taken
