"""Client keys: made once, kept as hashes, revoked."""

import hashlib
from pathlib import Path

import pytest

from gateway.store import DATABASE_NAME, Store
from gateway.store.errors import BadValue, NameTaken, UnknownRecord


def test_a_key_is_kept_as_its_hash_only(store: Store, state_dir: Path) -> None:
    text = store.keys.create("laptop", "acme", 5.0)
    (record,) = store.keys.list()
    assert (record.name, record.tenant, record.created_s, record.revoked_s) == ("laptop", "acme", 5.0, None)
    assert record.digest == hashlib.sha256(text.encode()).digest()
    assert text.endswith(record.hint)
    files = b"".join(path.read_bytes() for path in state_dir.glob(f"{DATABASE_NAME}*"))
    assert record.digest in files
    assert text.encode() not in files
    assert text[6:30].encode() not in files


def test_keys_are_long_and_never_the_same(store: Store) -> None:
    keys = {store.keys.create(f"k{n}", "default", 1.0) for n in range(5)}
    assert len(keys) == 5
    assert {(key[:6], len(key)) for key in keys} == {("sk-tl-", 49)}


def test_an_active_name_is_taken_and_free_again_after_revoking(store: Store) -> None:
    store.keys.create("laptop", "default", 1.0)
    with pytest.raises(NameTaken, match="trunkline key revoke laptop"):
        store.keys.create("laptop", "default", 2.0)
    store.keys.revoke("laptop", 3.0)
    store.keys.create("laptop", "default", 4.0)
    assert [record.revoked_s for record in store.keys.list()] == [3.0, None]


def test_a_key_is_revoked_by_its_id_too(store: Store) -> None:
    store.keys.create("laptop", "default", 1.0)
    assert store.keys.revoke(store.keys.list()[0].id, 2.0).name == "laptop"


def test_only_active_keys_can_be_revoked(store: Store) -> None:
    with pytest.raises(UnknownRecord, match="trunkline key list"):
        store.keys.revoke("laptop", 1.0)
    store.keys.create("laptop", "default", 1.0)
    store.keys.revoke("laptop", 2.0)
    with pytest.raises(UnknownRecord):
        store.keys.revoke("laptop", 3.0)


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "x" * 65, "-rf", "a/b", "é"])
def test_names_that_would_trouble_a_table_or_a_shell_are_refused(store: Store, name: str) -> None:
    with pytest.raises(BadValue):
        store.keys.create(name, "default", 1.0)
    with pytest.raises(BadValue):
        store.keys.create("fine", name, 1.0)


def test_readers_are_told_only_what_changed(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.keys.create(name, "default", 1.0)
    revision, changed = store.keys.changed_since(0)
    assert [record.name for record in changed] == ["a", "b", "c"]
    assert store.keys.changed_since(revision) == (revision, [])
    store.keys.revoke("b", 2.0)
    later, changed = store.keys.changed_since(revision)
    assert later > revision
    assert [(record.name, record.revoked_s) for record in changed] == [("b", 2.0)]
