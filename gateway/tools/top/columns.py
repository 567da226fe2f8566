"""Columns of tables that a terminal shows: which fit, how rows are sorted and filtered. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from shared.process.excerpt import printable

Row = TypeVar("Row")

GAP = 1
"""Blank cells between two columns."""

Sortable = tuple[int, Any]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column. ``text`` is what it shows of a row, ``sort`` what rows are sorted by: a number or a text,
    None where nothing is known, which comes last."""

    title: str
    width: int
    text: Callable[[Row], str]
    sort: Callable[[Row], float | str | None]
    meaning: str = ""
    right: bool = False
    """Its text is aligned to the right, as numbers are."""
    need: int = 1
    """Where not all columns fit, those of greater need stay."""
    keep_end: bool = False
    """Of a text that is too long the end is shown, not the beginning."""
    flexible: int = 0
    """It takes such a share of the room that is left."""
    descending: bool = False
    """It is sorted so at first."""
    tone: Callable[[Row], str] = lambda row: ""
    """How its text is shown: ``good``, ``warn``, ``bad``, ``dim``, ``bar`` or nothing."""

    def order(self, row: Row) -> float | str | None:
        """A text sorts regardless of case."""
        value = self.sort(row)
        return value.casefold() if isinstance(value, str) else value


@dataclass(frozen=True)
class Placed(Generic[Row]):
    """A column and the cells that it has."""

    column: Column[Row]
    width: int

    def cell(self, row: Row) -> str:
        """The text, cut and padded to the width. What could steer a terminal is ``?``."""
        text = printable(self.column.text(row))
        if self.column.keep_end and len(text) > self.width:
            text = "…" + text[1 - self.width :]
        return fitted(text, self.width, right=self.column.right)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """``text`` in exactly so many cells; of one that is too long the beginning, with an ellipsis."""
    if not text.isascii():
        return _fitted_cells(text, width, right=right)
    if len(text) > width:
        text = text[: max(0, width - 1)] + "…" if width else ""
    return text.rjust(width) if right else text.ljust(width)


def _fitted_cells(text: str, width: int, *, right: bool) -> str:
    """Where a character may take two cells, or none."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)) + "…" if width else ""
    blank = " " * (width - cell_len(text))
    return blank + text if right else text + blank


def place(columns: Sequence[Column[Row]], width: int, wanted: str = "") -> list[Placed[Row]]:
    """The columns that fit into so many cells, in their order. The one whose title is ``wanted`` is among
    them if any is."""
    chosen: list[Column[Row]] = []
    left = width + GAP
    for each in sorted(columns, key=lambda each: (each.title != wanted, -each.need)):
        if each.width + GAP <= left:
            chosen.append(each)
            left -= each.width + GAP
    shares = sum(each.flexible for each in chosen)
    placed, given, so_far = [], 0, 0
    for column in (each for each in columns if each in chosen):
        so_far += column.flexible
        more = left * so_far // shares - given if shares else 0
        given += more
        placed.append(Placed(column, column.width + more))
    return placed


def sort_rows(rows: Iterable[Row], column: Column[Row], *, descending: bool) -> list[Row]:
    """By this column; those of which it knows nothing come last, and equal ones keep their order."""
    known: list[tuple[Any, int, Row]] = []
    unknown: list[Row] = []
    for number, row in enumerate(rows):
        value = column.order(row)
        if value is None:
            unknown.append(row)
        else:
            known.append((value, -number if descending else number, row))
    known.sort(key=lambda each: each[:2], reverse=descending)
    return [row for *_, row in known] + unknown


class RowFilter(Generic[Row]):
    """What a user types: words that a row's texts hold, all of them. ``column:word`` looks into one column,
    and a word behind ``!`` is one that the row must not hold."""

    def __init__(self, text: str, columns: Sequence[Column[Row]]) -> None:
        self._terms: list[tuple[bool, str, Sequence[Column[Row]]]] = []
        by_title = {each.title.casefold(): each for each in columns}
        for word in text.casefold().split():
            wanted = not word.startswith("!")
            term = word if wanted else word[1:]
            name, colon, rest = term.partition(":")
            if colon and name in by_title:
                self._terms.append((wanted, rest, (by_title[name],)))
            elif term:
                self._terms.append((wanted, term, columns))

    def __bool__(self) -> bool:
        return bool(self._terms)

    def takes(self, row: Row) -> bool:
        """Whether a row is to be shown."""
        return all(
            any(term in each.text(row).casefold() for each in columns) is wanted
            for wanted, term, columns in self._terms
        )
