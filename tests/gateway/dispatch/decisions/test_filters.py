"""Filters tell the truth, or are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.decisions.filters import (
    MOST,
    SCHEMAS,
    BadFilter,
    RecordFilter,
    cursor_of,
    position_of,
)
from tests.gateway.dispatch.decisions.kept import facts, records

TWO = {"model": "m", "alias": "best", "tenant": "t2", "key_id": "key_2", "deployments": ["b/d", "c/d"]}


def taken(query: dict[str, str]) -> list[str]:
    book = records(recent=10)
    rows: list[dict[str, Any]] = [
        {},
        TWO,
        {"status": 503, "error": "no_deployment", "total_s": 30.0, "first_byte_s": None},
        {"status": 499, "model": "other"},
    ]
    for number, row in enumerate(rows, 1):
        book.add(facts(number, **row), f"name-{number}", 1, 2, None)
    asked = RecordFilter.read(query)
    return [each.facts.id for each in book.over() if asked.takes(each, 5.0)]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, "r4 r3 r2 r1"),
        ({"kind": "slow"}, "r3"),
        ({"kind": "failed"}, "r3"),
        ({"state": "answered"}, "r2 r1"),
        ({"state": "cancelled"}, "r4"),
        ({"state": "queued"}, ""),
        ({"model": "m"}, "r3 r2 r1"),
        ({"model": "best"}, "r2"),
        ({"tenant": "t2"}, "r2"),
        ({"key": "key_2"}, "r2"),
        ({"key": "name-1"}, "r1"),
        ({"agent": "b"}, "r2"),
        ({"agent": "b/d"}, ""),
        ({"since": "1002.5"}, "r4"),
        ({"slow_than": "20"}, "r3"),
        ({"model": "m", "state": "answered", "tenant": "t2"}, "r2"),
    ],
)
def test_a_filter_takes_what_it_says(query: dict[str, str], ids: str) -> None:
    assert taken(query) == ids.split()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "some"),
        ("state", ""),
        ("state", "Queued"),
        ("model", ""),
        ("tenant", "x" * 600),
        ("since", "noon"),
        ("since", "nan"),
        ("slow_than", "-1"),
        ("slow_than", "inf"),
        ("limit", "0"),
        ("limit", "501"),
        ("limit", "1.5"),
        ("limit", "²"),
        ("after", "1"),
        ("after", "x|p|r"),
        ("after", "1||r"),
        ("colour", "red"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadFilter) as raised:
        RecordFilter.read({name: value})
    assert raised.value.parameter == name
    assert value not in str(raised.value) or len(value) < 2, "values are not repeated"


@given(
    arrived=st.lists(st.integers(0, 5), max_size=30),
    limit=st.integers(1, 7),
)
def test_pages_have_every_record_once_and_in_order(arrived: list[int], limit: int) -> None:
    book = records(recent=100)
    for number, at_s in enumerate(arrived):
        book.add(facts(number, at_s=1000.0 + at_s), "k", 1, 2, None)
    everything = sorted((position_of(each, "p|q".replace("|", "-")) for each in book.over()), reverse=True)
    found = []
    after: dict[str, str] = {}
    while True:
        asked = RecordFilter.read({"limit": str(limit)} | after)
        rows = asked.first((position_of(each, "p-q"), each) for each in book.over())
        found += [position for position, _ in rows[:limit]]
        if len(rows) <= limit:
            break
        after = {"after": cursor_of(rows[limit - 1][0])}
    assert found == everything


def test_every_parameter_is_described() -> None:
    good = {
        "kind": "slow",
        "state": "failed",
        "since": "1",
        "slow_than": "2",
        "limit": str(MOST),
        "after": "1|p|r",
    }
    found = RecordFilter.read(good | dict.fromkeys(("model", "tenant", "key", "agent"), "x"))
    assert set(SCHEMAS) == {*good, "model", "tenant", "key", "agent"}
    assert (found.limit, found.after) == (MOST, (1, "p", "r"))
