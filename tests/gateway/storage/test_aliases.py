"""Aliases are kept, each change can be taken back, and readers are told when something changed."""

import sqlite3
from pathlib import Path

import pytest

from gateway.domain.aliases import Alias, AliasMirror, AliasTarget
from gateway.storage import DATABASE_NAME, Store, migrations, schema
from gateway.storage.aliases import CHANGES, MOST_ALIASES
from gateway.storage.errors import BadValue, UnknownRecord

V1, V2 = AliasTarget("m", "v1"), AliasTarget("m", "v2")


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def now(store: Store, name: str = "m") -> Alias | None:
    found = [record.alias for record in store.aliases.list() if record.alias.name == name]
    return found[0] if found else None


def test_an_alias_is_kept_with_all_that_belongs_to_it(state_dir: Path) -> None:
    with Store.open(state_dir) as store:
        store.aliases.set_targets("m", (V1, V2), 1.0, sticky=False)
        store.aliases.set_mirror("m", AliasMirror(AliasTarget("shadow"), 0.25), 2.0)
        store.aliases.set_fallback("m", (AliasTarget("light"), AliasTarget("lighter", "v1")), 3.0)
    with Store.open(state_dir) as store:
        (record,) = store.aliases.list()
    assert (record.created_s, record.changed_s) == (1.0, 3.0)
    assert record.alias == Alias(
        "m",
        (V1, V2),
        False,
        AliasMirror(AliasTarget("shadow"), 0.25),
        (AliasTarget("light"), AliasTarget("lighter", "v1")),
    )


def test_new_targets_leave_stickiness_mirror_and_fallback_as_they_are(store: Store) -> None:
    store.aliases.set_targets("m", (V1,), 1.0, sticky=False)
    store.aliases.set_fallback("m", (AliasTarget("light"),), 2.0)
    alias = store.aliases.set_targets("m", (V2,), 3.0, what="switch")
    assert alias == now(store) == Alias("m", (V2,), False, None, (AliasTarget("light"),))


def test_what_an_alias_stood_for_before_is_one_call_away_and_so_is_the_way_back(store: Store) -> None:
    store.aliases.set_targets("m", (V1,), 1.0)
    store.aliases.set_targets("m", (V1, V2), 2.0)
    store.aliases.set_mirror("m", AliasMirror(AliasTarget("shadow"), 0.1), 3.0)
    assert store.aliases.rollback("m", 4.0).targets == (V1,)
    assert store.aliases.rollback("m", 5.0).targets == (V1, V2)
    alias = now(store)
    assert alias is not None
    assert alias.mirror == AliasMirror(AliasTarget("shadow"), 0.1)
    assert [change.what for change in store.aliases.history("m")] == [
        "set",
        "set",
        "mirror",
        "rollback",
        "rollback",
    ]


def test_any_change_that_is_known_can_be_gone_back_to(store: Store) -> None:
    for second in range(4):
        store.aliases.set_targets("m", (AliasTarget("m", f"v{second}"),), float(second))
    first = store.aliases.history("m")[0]
    assert (first.at_s, first.what) == (0.0, "set")
    assert store.aliases.rollback("m", 9.0, to=first.id).targets == (AliasTarget("m", "v0"),)
    with pytest.raises(UnknownRecord, match="trunkline alias history m"):
        store.aliases.rollback("m", 9.0, to=999)


def test_with_nothing_before_there_is_no_way_back(store: Store) -> None:
    for prepare in (
        lambda: None,
        lambda: store.aliases.set_fallback("m", (AliasTarget("light"),), 1.0),
        lambda: store.aliases.set_targets("m", (V1,), 2.0),
    ):
        prepare()
        with pytest.raises(UnknownRecord, match="trunkline alias switch m"):
            store.aliases.rollback("m", 3.0)


def test_an_alias_that_was_removed_can_be_had_back_whole(store: Store) -> None:
    store.aliases.set_targets("m", (V1,), 1.0)
    before = store.aliases.set_fallback("m", (AliasTarget("light"),), 2.0)
    assert store.aliases.remove("m", 3.0) == before
    assert now(store) is None
    assert store.aliases.rollback("m", 4.0) == before
    with pytest.raises(UnknownRecord, match="no alias 'x'"):
        store.aliases.remove("x", 5.0)


def test_an_alias_that_says_nothing_any_more_is_gone(store: Store) -> None:
    store.aliases.set_fallback("m", (AliasTarget("light"),), 1.0)
    store.aliases.set_fallback("m", (), 2.0)
    assert store.aliases.list() == ()


def test_of_each_alias_the_latest_changes_are_kept(store: Store) -> None:
    store.aliases.set_targets("other", (V1,), 0.0)
    for second in range(CHANGES + 5):
        store.aliases.set_targets("m", (AliasTarget("m", f"v{second}"),), float(second))
    history = store.aliases.history("m")
    assert [change.at_s for change in history] == [float(second) for second in range(5, CHANGES + 5)]
    assert len(store.aliases.history("other")) == 1


def test_what_changes_nothing_is_no_change(store: Store) -> None:
    store.aliases.set_targets("m", (V1,), 1.0)
    revision, _, _ = store.aliases.changed_since(0)
    store.aliases.set_targets("m", (V1,), 2.0)
    assert store.aliases.changed_since(revision) == (revision, None, ())
    assert len(store.aliases.history("m")) == 1


def test_readers_get_everything_once_something_has_changed(store: Store) -> None:
    assert store.aliases.changed_since(0) == (0, None, ())
    store.aliases.set_targets("m", (V1,), 1.0)
    store.aliases.set_targets("n", (V1,), 2.0)
    revision, records, unreadable = store.aliases.changed_since(0)
    assert records is not None
    assert ([record.alias.name for record in records], unreadable) == (["m", "n"], ())
    store.aliases.remove("m", 3.0)
    _, records, _ = store.aliases.changed_since(revision)
    assert records is not None
    assert [record.alias.name for record in records] == ["n"]


def test_values_that_make_no_sense_change_nothing(store: Store) -> None:
    store.aliases.set_targets("prod", (V1,), 1.0)
    for name, targets in (("x y", (V1,)), ("a", (AliasTarget("prod"),)), ("m", (AliasTarget("n"),))):
        with pytest.raises(BadValue):
            store.aliases.set_targets(name, targets, 2.0)
    assert [record.alias.name for record in store.aliases.list()] == ["prod"]


def test_there_is_an_end_to_the_number_of_aliases(store: Store) -> None:
    with store._database.write() as connection:
        definition = {"targets": [], "sticky": True, "mirror": None, "fallback": []}
        times = {"created_s": 1.0, "changed_s": 1.0}
        rows = [{"name": f"a{number}", "definition": definition, **times} for number in range(MOST_ALIASES)]
        connection.execute(schema.aliases.insert(), rows)
    with pytest.raises(BadValue, match="256 aliases"):
        store.aliases.set_targets("one-more", (V1,), 1.0)


def test_what_a_later_version_wrote_is_named_and_keeps_nobody_from_the_others(store: Store) -> None:
    store.aliases.set_targets("m", (V1,), 1.0)
    with store._database.write() as connection:
        connection.exec_driver_sql("INSERT INTO aliases VALUES ('new', '{}', 1.0, 1.0)")
    _, records, unreadable = store.aliases.changed_since(0)
    assert records is not None
    assert ([record.alias.name for record in records], unreadable) == (["m"], ("new",))


def test_a_database_from_before_there_were_aliases_gets_them(state_dir: Path) -> None:
    Store.open(state_dir).close()
    with sqlite3.connect(state_dir / DATABASE_NAME) as raw:
        raw.executescript(
            "DROP TABLE aliases; DROP TABLE alias_changes; DELETE FROM revisions WHERE topic = 'aliases'"
        )
    raw.close()
    with Store.open(state_dir) as store, store._database.write() as connection:
        migrations.upgrade_step(connection, 3)
    with Store.open(state_dir) as store:
        store.aliases.set_targets("m", (V1,), 1.0)
        assert now(store) == Alias("m", (V1,))
        assert len(store.aliases.history("m")) == 1
