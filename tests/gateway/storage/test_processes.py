"""The rows of gateway processes, in each kind of database."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from gateway.storage import Store, schema
from gateway.storage.processes import HEAD_CHARS, KEPT_S, ProcessRecord

A = ProcessRecord("a", 5, "https://a.example", "host-1", "1.0", 1_700_000_000.0)
B = ProcessRecord("b", 7, None, "host-2", "1.0", 1_700_000_000.0)


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def heard(store: Store, process: str, before_s: float) -> None:
    """The row was written so long before now."""
    with store.database.write() as connection:
        now = store.database.interval_s(connection)
        mine = schema.processes.c.id == process
        connection.execute(update(schema.processes).where(mine).values(heard=now - before_s))


def test_each_reads_all_rows_on_one_clock(store: Store) -> None:
    store.processes.beat(B)
    report = store.processes.beat(A)
    assert not report.superseded
    assert [replace(each, heard=0.0) for each in report.records] == [A, B]
    assert all(0.0 <= report.now - each.heard < 5.0 for each in report.records)
    heard(store, "a", 30.0)
    assert {each.id: round(report.now - each.heard) for each in store.processes.list().records} == {
        "a": 30,
        "b": 0,
    }
    store.processes.beat(A)
    after = store.processes.list()
    assert all(after.now - each.heard < 5.0 for each in after.records)


def test_a_later_incarnation_has_the_row_and_the_earlier_one_is_told(store: Store) -> None:
    store.processes.beat(A)
    later = replace(A, incarnation=6, host="host-3")
    assert not store.processes.beat(later).superseded
    assert store.processes.beat(A).superseded
    (row,) = store.processes.list().records
    assert (row.incarnation, row.host) == (6, "host-3")
    store.processes.leave("a", 5)
    assert store.processes.list().records, "it was another's row"
    store.processes.leave("a", 6)
    assert not store.processes.list().records


def test_an_incarnation_is_higher_than_the_one_before_whatever_the_clock_says(store: Store) -> None:
    assert store.processes.next_incarnation("a", 3) == 3
    store.processes.beat(A)
    assert store.processes.next_incarnation("a", 3) == 6
    assert store.processes.next_incarnation("a", 900) == 900


def test_rows_that_nobody_writes_any_more_go_at_last(store: Store) -> None:
    for name, before_s in (("gone", KEPT_S + 60), ("future", -KEPT_S - 60), ("dead", KEPT_S - 60)):
        store.processes.beat(replace(B, id=name))
        heard(store, name, before_s)
    store.processes.beat(A)
    assert len(store.processes.list().records) == 4
    assert [each.id for each in store.processes.beat(A, sweep=True).records] == ["a", "dead"]


def test_a_beat_says_where_to_ask_and_what_was_learnt_and_the_list_has_both(store: Store) -> None:
    store.processes.beat(replace(A, address="https://10.0.0.1:8443", knowledge="[1]"))
    (row,) = store.processes.beat(A).records
    assert (row.address, row.knowledge) == (None, None), "a beat reads nobody's knowledge"
    (row,) = store.processes.list().records
    assert row.knowledge == "[1]", "a beat that has none leaves it"
    store.processes.beat(replace(A, knowledge="[2]"))
    (row,) = store.processes.list().records
    assert row.knowledge == "[2]"


def test_a_beat_says_who_tells_something_new_and_that_is_read_by_name(store: Store) -> None:
    store.processes.beat(B)
    assert store.processes.beat(A).heads == {}
    told = "head " * 40
    store.processes.beat(replace(B, knowledge=told))
    assert store.processes.beat(A).heads == {"b": told[:HEAD_CHARS]}
    assert store.processes.knowledge(["a", "b", "c"], 1000) == {"b": told}
    assert store.processes.knowledge(["b"], 7) == {"b": told[:7]}
    assert store.processes.knowledge([], 7) == {}
