"""One table of ``trunkline top``: what its rows and columns are made of. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.tools.top.columns import Column
from gateway.tools.top.live_fleet import LiveFleet

Json = dict[str, Any]

KINDS = ("all", "waiting", "running", "slow", "failed")
"""Requests that are shown."""
FULL = 0.9
"""From this share on, what is in use is shown as nearly all."""


class FleetRow(NamedTuple):
    """One row of any table. What is computed for it costs time only when it is asked for."""

    key: str
    facts: Json
    fleet: LiveFleet
    more: Any = None


FleetColumn = Column[FleetRow]


@dataclass(frozen=True)
class View:
    """One table."""

    name: str
    title: str
    columns: tuple[FleetColumn, ...]
    rows: Callable[[LiveFleet, str], Iterator[FleetRow]]
    """Of a state; the second argument is one of :data:`KINDS`, for requests."""
    sorted_by: str
    empty: str
    """What is said where there are no rows."""

    def column(self, title: str) -> FleetColumn:
        """The one of this title; the one that sorts at first where there is none."""
        by_title = {each.title.casefold(): each for each in self.columns}
        return by_title.get(title.casefold()) or by_title[self.sorted_by.casefold()]


def fact(name: str) -> Callable[[FleetRow], str]:
    return lambda row: str(row.facts.get(name) or "")


def fact_number(name: str) -> Callable[[FleetRow], float | None]:
    return lambda row: row.facts.get(name)


def text_column(title: str, name: str, width: int, meaning: str = "", **more: Any) -> FleetColumn:
    return Column(title, width, fact(name), fact(name), meaning, **more)


def number_column(
    title: str,
    width: int,
    value: Callable[[FleetRow], float | None],
    shown: Callable[[float], str],
    meaning: str = "",
    **more: Any,
) -> FleetColumn:
    def text(row: FleetRow) -> str:
        found = value(row)
        return "" if found is None else shown(found)

    return Column(title, width, text, value, meaning, **{"right": True, "descending": True, **more})


def slots_used(row: FleetRow) -> float | None:
    slots = row.facts.get("slots", 0)
    return row.facts.get("in_flight", 0) / slots if slots else None


def slots_text(row: FleetRow) -> str:
    return f"{row.facts.get('in_flight', 0)}/{row.facts.get('slots', 0)}"


def tone_of_share(value: Callable[[FleetRow], float | None]) -> Callable[[FleetRow], str]:
    return lambda row: "warn" if (value(row) or 0.0) >= FULL else ""
