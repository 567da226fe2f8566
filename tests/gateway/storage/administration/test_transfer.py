"""A state directory moves to a server whole, and stays as it is."""

import hashlib
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.domain.aliases import AliasTarget
from gateway.domain.store_address import StoreAddress
from gateway.storage import DATABASE_NAME, Account, Amount, Enrolment, Store, UsageGrouping, schema
from gateway.storage.administration import import_files, transfer
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, StateBusy, StateError, StateInUse, StateMissing
from gateway.storage.postgres import PostgresDatabase

NOW_S = 1_800_000_000.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Something of everything."""
    directory = tmp_path / "state"
    with Store.open(directory) as store:
        for name in ("a", "b"):
            store.keys.create(name, "t", NOW_S, life_s=60.0)
        store.keys.revoke("b", NOW_S)
        token, _ = store.tokens.create(3600.0, 5, ["*"], {"region": "eu"}, NOW_S)
        for number, name in enumerate(("gpu-1", "gpu-2", "gpu-3")):
            enrolment = Enrolment(token.id_text, name, bytes([number]) * 32, f"{number:x}", NOW_S + 60)
            store.agents.enrol(enrolment, NOW_S)
        store.agents.revoke("gpu-2", "sold", NOW_S)
        for model in ("m", "n"):
            store.aliases.set_targets("chat", (AliasTarget(model, None, 1.0),), NOW_S)
        store.limits.tenants.change("t", {"rpm": 5, "money_per_day": 1.5}, NOW_S)
        store.limits.prices.set("m", 1.0, 2.0, 0.5, NOW_S)
        store.models.note({"m": 1.0}, ["m"], NOW_S, 10)
        days = [
            Account(f"2026-11-{day:02}", "k", "t", "m", f"gpu-1/{n}")
            for day in range(1, 29)
            for n in range(50)
        ]
        store.usage.add({day: Amount(1, 2, 3, 1, 0.5, 0.25) for day in days}, 3)
        store.identity.rotate(3600.0, time.time())
    return directory


def rows_of(database: Database) -> Mapping[str, list[Any]]:
    """Everything but what differs by design: the tables' own facts, wrapped keys, counters."""
    found = {}
    with database.read() as connection:
        for table in schema.metadata.sorted_tables:
            if table is schema.revisions:
                continue
            query = select(table).order_by(*table.primary_key)
            if table is schema.facts:
                query = query.where(table.c.name.contains("fingerprint"))
            found[table.name] = [tuple(row) for row in connection.execute(query)]
    return found


def digest(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.suffix in (".db", ".key") and path.name != "cluster.key"
    }


def test_everything_arrives_and_the_files_stay(state: Path, postgres_address: StoreAddress) -> None:
    with Store.open(state) as files:
        before, keys = rows_of(files.database), files.identity.keys
    untouched = digest(state)
    counts = import_files(state, postgres_address)
    assert digest(state) == untouched
    database = PostgresDatabase(postgres_address)
    assert rows_of(database) == before
    database.close()
    assert counts["usage"] == 1400
    with Store.open(state, address=postgres_address, serve=True) as store:
        moved = store.identity.keys
        assert (moved.current.id, moved.previous and moved.previous.id) == (
            keys.current.id,
            keys.previous and keys.previous.id,
        )
        assert store.usage.totals(UsageGrouping.KEY)[0].amount.requests == 1400


def test_secrets_of_webhooks_can_be_read_with_another_cluster_key(
    state: Path, tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with Store.open(state) as store:
        old = store.webhook_secrets.create("acme", NOW_S)
        _, new = store.webhook_secrets.rotate("acme", 60.0, NOW_S)
    address = replace(postgres_address, cluster_key=tmp_path / "another.key")
    import_files(state, address)
    with Store.open(tmp_path / "elsewhere", address=address) as store:
        assert store.webhook_secrets.signers("acme", NOW_S) == (new, old)
    with Store.open(state) as store:
        assert store.webhook_secrets.signers("acme", NOW_S) == (new, old)


def test_numbers_go_on_where_they_were_and_readers_see_the_change(
    state: Path, postgres_address: StoreAddress
) -> None:
    import_files(state, postgres_address)
    with Store.open(state, address=postgres_address) as store:
        revision, changed = store.keys.changed_since(0)
        assert len(changed) == 2
        store.keys.create("c", "t", NOW_S)
        assert [key.name for key in store.keys.changed_since(revision)[1]] == ["c"]
        token, _ = store.tokens.create(3600.0, 5, ["*"], {}, NOW_S)
        agent = store.agents.enrol(Enrolment(token.id_text, "new", bytes([9]) * 32, "99", NOW_S), NOW_S)
        assert agent.id == max(each.id for each in store.agents.list())
        store.aliases.rollback("chat", NOW_S)
        store.acts.note("after")
        assert store.acts.pending(1000)[-1].kind == "after"


def test_a_store_that_holds_something_is_kept_unless_it_is_to_be_replaced(
    state: Path, postgres_address: StoreAddress
) -> None:
    with Store.open(state / "other", address=postgres_address) as store:
        store.keys.create("theirs", "t", NOW_S)
    with pytest.raises(StateError, match=r"is not empty \(.*api_keys.*--replace"):
        import_files(state, postgres_address)
    with Store.open(state / "other", address=postgres_address) as store:
        assert [key.name for key in store.keys.list()] == ["theirs"]
        before, _ = store.keys.changed_since(0)
    import_files(state, postgres_address, replace=True)
    with Store.open(state, address=postgres_address) as store:
        assert {key.name for key in store.keys.list()} == {"a", "b"}
        assert store.keys.changed_since(0)[0] > before


def test_an_import_that_fails_on_its_way_leaves_nothing(
    state: Path, postgres_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_copy_revisions", lambda *_: 99)
        with pytest.raises(StateError, match="nothing was kept"):
            import_files(state, postgres_address)
    raw = sqlite3.connect(state / DATABASE_NAME)
    raw.execute("UPDATE api_keys SET name = 'nul' || char(0) WHERE name = 'a'")
    raw.commit()
    raw.close()
    with pytest.raises(BadValue, match="cannot be stored"):
        import_files(state, postgres_address)
    database = PostgresDatabase(postgres_address)
    assert all(not rows for rows in rows_of(database).values())
    database.close()


def test_nothing_is_imported_while_a_gateway_runs_on_either(
    state: Path, tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with Store.open(state, serve=True), pytest.raises(StateInUse):
        import_files(state, postgres_address)
    with (
        Store.open(tmp_path / "there", address=postgres_address, serve=True),
        pytest.raises(StateBusy, match="stop every gateway"),
    ):
        import_files(state, postgres_address)


def test_a_directory_without_a_database_is_named(tmp_path: Path, postgres_address: StoreAddress) -> None:
    with pytest.raises(StateMissing, match="give the --state"):
        import_files(tmp_path, postgres_address)
