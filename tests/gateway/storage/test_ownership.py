"""Leases of what one process may do: the rule, and the rows in each kind of database."""

import pytest

from gateway.storage import Store
from gateway.storage.ownership import OwnershipClaim, OwnershipLease

TTL_S = 8.0


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def claim(process: str, incarnation: int = 1, *, ttl_s: float = TTL_S, least: int = 100) -> OwnershipClaim:
    return OwnershipClaim("leader", process, incarnation, ttl_s, least)


def lease(owner: str | None, incarnation: int, epoch: int, until: float) -> OwnershipLease:
    return OwnershipLease("leader", owner, incarnation, epoch, until)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, lease("a", 1, 100, 58.0)),
        (lease("a", 1, 7, 51.0), lease("a", 1, 7, 58.0)),
        (lease("a", 1, 7, 20.0), lease("a", 1, 7, 58.0)),
        (lease("a", 0, 107, 57.0), lease("a", 1, 108, 58.0)),
        (lease("a", 2, 107, 57.0), None),
        (lease(None, 3, 107, 57.0), lease("a", 1, 108, 58.0)),
        (lease("b", 3, 7, 50.0), lease("a", 1, 100, 58.0)),
        (lease("b", 3, 107, 50.1), None),
        (lease("b", 3, 107, 58.0), None),
        (lease("b", 3, 107, 4000.0), lease("b", 3, 107, 58.0)),
    ],
    ids=[
        "nobody had it",
        "it goes on",
        "it was over and nobody else came",
        "the process was started anew",
        "a later incarnation has it",
        "given back",
        "over, and the store had forgotten later epochs",
        "another's",
        "just given to another",
        "another's, of before the clock was set back",
    ],
)
def test_what_a_claim_makes_of_a_lease(before: OwnershipLease | None, after: OwnershipLease | None) -> None:
    assert claim("a").on(before, 50.0) == after


def test_one_has_it_until_it_is_given_back(store: Store) -> None:
    first = store.ownership.claim(claim("a"))
    assert first is not None
    assert first.held_by("a", 1)
    assert first.epoch == 100
    assert store.ownership.claim(claim("b")) == first
    again = store.ownership.claim(claim("a"))
    assert again is not None
    assert again.epoch == 100
    assert again.until >= first.until
    store.ownership.release("leader", "b", 1)
    store.ownership.release("leader", "a", 2)
    assert store.ownership.claim(claim("b")) == again
    store.ownership.release("leader", "a", 1)
    second = store.ownership.claim(claim("b"))
    assert second is not None
    assert second.held_by("b", 1)
    assert second.epoch == 101
    assert store.ownership.read("leader") == second


def test_who_lets_it_run_out_has_lost_it(store: Store) -> None:
    store.ownership.claim(claim("a", ttl_s=0.0))
    taken = store.ownership.claim(claim("b"))
    assert taken is not None
    assert taken.held_by("b", 1)
    assert taken.epoch == 101
    assert store.ownership.claim(claim("a")) == taken


def test_a_refused_claim_writes_nothing_and_waits_for_no_writer(store: Store) -> None:
    taken = store.ownership.claim(claim("a"))
    with store.database.write_concurrently():
        assert store.ownership.claim(claim("b")) == taken
