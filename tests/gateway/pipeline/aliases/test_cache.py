"""The aliases in memory are as fresh as the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from gateway.auth import KeyRing
from gateway.domain.aliases import AliasTarget
from gateway.pipeline.aliases import AliasCache
from gateway.storage import Store

V1, V2 = AliasTarget("m", "v1"), AliasTarget("m", "v2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def test_what_another_process_changes_counts_from_the_next_request_on(store: Store) -> None:
    key = store.keys.create("k", "default", 1.0)
    ring, book = KeyRing(store), AliasCache(store.aliases)
    ring.refresher.add(book.read)
    assert not book.choices
    with Store.open(store.state_dir) as command:
        command.aliases.set_targets("prod", (V1,), 1.0)
        ring.authenticate(key)
        assert book.choices["prod"].alias.targets == (V1,)
        command.aliases.set_targets("prod", (V2,), 2.0)
        ring.authenticate(key)
        assert book.choices["prod"].alias.targets == (V2,)
        command.aliases.remove("prod", 3.0)
        ring.authenticate(key)
        assert not book.choices


def test_what_does_not_concern_aliases_leaves_them_as_they_are(store: Store) -> None:
    store.aliases.set_targets("prod", (V1,), 1.0)
    book = AliasCache(store.aliases)
    before = book.choices
    store.keys.create("k", "default", 1.0)
    book.read()()
    assert book.choices is before


def test_an_alias_that_cannot_be_read_is_said_and_the_others_count(store: Store) -> None:
    store.aliases.set_targets("prod", (V1,), 1.0)
    with store._database.write() as connection:
        connection.exec_driver_sql("INSERT INTO aliases VALUES ('new', '{}', 1.0, 1.0)")
    with structlog.testing.capture_logs() as logs:
        book = AliasCache(store.aliases)
    assert set(book.choices) == {"prod"}
    assert [each["alias"] for each in logs if each["event"] == "alias_unreadable"] == ["new"]
    assert "m" in book.versioned
    assert "prod" not in book.versioned
