"""Heads of audit logs, in each kind of database."""

from dataclasses import replace

import pytest

from gateway.storage import Store
from gateway.storage.audit_heads import AuditHead
from gateway.storage.errors import UnknownRecord

HEAD = AuditHead("a", 7, "ab" * 32, 1000.0, "host-1")


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def test_each_log_has_its_latest_head_whoever_is_heard_last(store: Store) -> None:
    heads = store.audit_heads
    assert (heads.get("a"), heads.list()) == (None, ())
    later, other = replace(HEAD, seq=9, hash="cd" * 32, at_s=1001.0), replace(HEAD, chain="b", seq=1)
    for head in (HEAD, other, later, HEAD):
        heads.note(head)
    assert heads.get("a") == later
    assert heads.list() == (later, other)


def test_a_head_that_is_forgotten_is_an_act_and_the_next_one_counts(store: Store) -> None:
    store.audit_heads.note(HEAD)
    assert store.audit_heads.forget("a") == HEAD
    (act,) = store.acts.pending(9)
    assert (act.kind, act.what) == ("audit.forget_head", {"chain": "a", "seq": 7, "hash": HEAD.hash})
    with pytest.raises(UnknownRecord, match="'a'"):
        store.audit_heads.forget("a")
    store.audit_heads.note(replace(HEAD, seq=1))
    found = store.audit_heads.get("a")
    assert found is not None
    assert found.seq == 1
