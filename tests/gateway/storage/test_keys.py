"""Client keys: made once, kept as hashes, revoked."""

import contextlib
import hashlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine

from gateway.domain.scopes import AdminRole, Scopes, limited
from gateway.storage import DATABASE_NAME, KeyStore, Store, migrations
from gateway.storage.errors import BadValue, NameTaken, UnknownRecord
from gateway.storage.keys import KeyState, digest_of
from gateway.storage.sqlite import SqliteDatabase


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def test_a_key_is_kept_as_its_hash_only(file_store: Store, state_dir: Path) -> None:
    store = file_store
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


# --- scopes, ends, roles ---


def test_a_key_keeps_what_it_may_ask_for_its_role_and_its_end(store: Store) -> None:
    scopes = limited(["llama-*", "b"], ["chat"], ["batch", "standard"])
    store.keys.create("ci", "acme", 5.0, scopes=scopes, role=AdminRole.OPERATOR, life_s=60.0)
    store.keys.create("free", "acme", 6.0)
    limits_, free = store.keys.list()
    assert (limits_.scopes, limits_.role, limits_.expires_s) == (scopes, AdminRole.OPERATOR, 65.0)
    assert (free.scopes, free.role, free.expires_s) == (None, None, None)


def test_a_key_is_expired_from_its_end_on_and_revoked_whatever_its_end(store: Store) -> None:
    store.keys.create("ci", "acme", 5.0, life_s=60.0)
    (record,) = store.keys.list()
    assert [record.state(wall_s) for wall_s in (64.9, 65.0)] == [KeyState.ACTIVE, KeyState.EXPIRED]
    store.keys.revoke("ci", 10.0)
    assert store.keys.list()[0].state(11.0) is KeyState.REVOKED


UNFIT: list[tuple[Scopes | None, float | None, str]] = [
    (limited([]), None, "0 model patterns"),
    (limited(["a b\n"]), None, "no model has such a name"),
    (limited(routes=["chat", "chats"]), None, "there is no route 'chats'"),
    (limited(routes=[]), None, "no route is named"),
    (limited(tiers=["urgent"]), None, "there is no tier 'urgent'; tiers are batch, realtime, standard"),
    (None, 0.0, "lasts 1 second to 3660 days"),
    (None, float("nan"), "lasts 1 second"),
    (None, 4e8, "lasts 1 second"),
]


def test_scopes_and_ends_that_cannot_be_are_refused(store: Store) -> None:
    for scopes, life_s, complaint in UNFIT:
        with pytest.raises(BadValue, match=complaint):
            store.keys.create("ci", "acme", 1.0, scopes=scopes, life_s=life_s)
    assert store.keys.list() == ()


# --- rotation ---


def test_rotating_keeps_all_but_the_secret(file_store: Store, state_dir: Path) -> None:
    store = file_store
    old = store.keys.create("ci", "acme", 1.0, scopes=limited(["a"]), life_s=1000.0)
    before = store.keys.list()[0]
    record, new = store.keys.rotate("ci", 60.0, 10.0)
    assert new != old
    assert (record.digest, record.hint) == (digest_of(new), new[-4:])
    assert (record.previous_digest, record.previous_until_s) == (digest_of(old), 70.0)
    assert (record.id, record.scopes, record.expires_s) == (before.id, before.scopes, before.expires_s)
    assert store.keys.list() == (record,)
    assert new.encode() not in b"".join(path.read_bytes() for path in state_dir.glob(f"{DATABASE_NAME}*"))


def test_a_second_rotation_ends_the_secret_before_the_last_at_once(store: Store) -> None:
    store.keys.create("ci", "acme", 1.0)
    _, second = store.keys.rotate("ci", 60.0, 10.0)
    record, _ = store.keys.rotate("ci", 60.0, 20.0)
    assert (record.previous_digest, record.previous_until_s) == (digest_of(second), 80.0)


def test_without_overlap_nothing_of_the_old_secret_is_left(store: Store) -> None:
    store.keys.create("ci", "acme", 1.0)
    record, _ = store.keys.rotate("ci", 0.0, 10.0)
    assert (record.previous_digest, record.previous_until_s) == (None, None)


def test_only_keys_that_work_are_rotated_and_overlaps_are_bounded(store: Store) -> None:
    store.keys.create("ci", "acme", 1.0, life_s=10.0)
    with pytest.raises(BadValue, match="works for 1 second to 90 days"):
        store.keys.rotate("ci", 91 * 86_400.0, 2.0)
    with pytest.raises(BadValue):
        store.keys.rotate("ci", -1.0, 2.0)
    with pytest.raises(UnknownRecord, match="has expired"):
        store.keys.rotate("ci", 60.0, 11.0)
    store.keys.revoke("ci", 12.0)
    with pytest.raises(UnknownRecord, match="no active key"):
        store.keys.rotate("ci", 60.0, 13.0)


def test_last_use_is_noted_without_being_a_change_and_never_goes_back(store: Store) -> None:
    store.keys.create("ci", "acme", 1.0)
    revision, (record,) = store.keys.changed_since(0)
    store.keys.touch({record.id: 50.0, "key_unknown": 1.0})
    store.keys.touch({record.id: 40.0})
    assert store.keys.list()[0].last_used_s == 50.0
    assert store.keys.changed_since(revision) == (revision, [])


def test_keys_of_a_database_of_the_version_before_have_no_limits(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    database = SqliteDatabase(path)
    KeyStore(database).create("ci", "acme", 1.0)
    database.close()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        for column in ("scopes", "role", "expires_s", "previous_digest", "previous_until_s", "last_used_s"):
            raw.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
        raw.commit()
    engine = create_engine(URL.create("sqlite", database=str(path)))
    with engine.begin() as connection:
        migrations.upgrade_step(connection, 4)
    engine.dispose()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        rows = raw.execute("SELECT scopes, role, expires_s, previous_digest, last_used_s FROM api_keys")
        assert rows.fetchall() == [(None, None, None, None, None)]


def test_a_store_is_empty_until_its_first_key_and_never_again(store: Store) -> None:
    assert store.keys.is_empty()
    store.keys.create("only", "acme", 5.0)
    store.keys.revoke("only", 6.0)
    assert not store.keys.is_empty()
