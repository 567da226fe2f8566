"""Sums on disk: added to what is there, and totalled by key, tenant, model and day."""

import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway.domain.store_address import StoreAddress
from gateway.storage import DATABASE_NAME, Account, Amount, Store, Total, UsageGrouping, schema
from gateway.storage.errors import StateUnwritable
from gateway.storage.usage import BATCHES_KEPT_S, MOST
from tests.gateway.storage.fillers import full_database


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def facts(totals: tuple[Total, ...]) -> list[tuple[str, str | None, int, int]]:
    return [(total.name, total.tenant, total.amount.requests, total.amount.prompt_tokens) for total in totals]


def test_sums_grow_and_survive_reopening(store: Store, any_address: StoreAddress | None) -> None:
    account = Account("2026-11-21", "k", "t", "m")
    store.usage.add({account: Amount(1, 10, 5, 2)})
    store.usage.add({account: Amount(2, 1, 1, 1)})
    store.usage.add({})
    with Store.open(store.state_dir, address=any_address) as again:
        assert again.usage.totals(UsageGrouping.MODEL) == (Total("m", None, Amount(3, 11, 6, 3)),)


def test_a_batch_that_is_added_again_counts_once(store: Store) -> None:
    day = Account("2026-11-21", "k", "t", "m")
    store.usage.add({day: Amount(1, 10)}, 1)
    store.usage.add({day: Amount(1, 10)}, 1)
    store.usage.add({day: Amount(2, 20)}, 2)
    store.usage.add({day: Amount(2, 20)}, 2)
    assert [total.amount for total in store.usage.totals(UsageGrouping.DAY)] == [Amount(3, 30)]


def test_batches_of_other_processes_have_numbers_of_their_own(
    store: Store, any_address: StoreAddress | None
) -> None:
    day = Account("2026-11-21", "k", "t", "m")
    store.usage.add({day: Amount(1)}, 1)
    with Store.open(store.state_dir, address=any_address) as other:
        other.usage.add({day: Amount(1)}, 1)
    assert store.usage.totals(UsageGrouping.DAY)[0].amount.requests == 2


def test_the_latest_batch_of_each_process_is_remembered_and_those_that_ended_long_ago_are_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known() -> list[tuple[str, int]]:
        with store._database.read() as connection:
            rows = connection.execute(select(schema.usage_batches).order_by(schema.usage_batches.c.process))
            return [(row.process, row.batch) for row in rows]

    day, ours = Account("2026-11-21", "k", "t", "m"), store.usage.process
    store.usage.process = "ended"
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    store.usage.add({day: Amount(1)}, 5)
    monkeypatch.setattr(time, "time", lambda: 1001.0 + BATCHES_KEPT_S)
    store.usage.process = ours
    store.usage.add({day: Amount(1)}, 998)
    store.usage.add({day: Amount(1)}, 999)
    assert sorted(known()) == sorted([("ended", 5), (ours, 999)])
    store.usage.add({day: Amount(1)}, 1000)
    assert known() == [(ours, 1000)]


def test_totals_by_tenant_model_and_day_since_a_day(store: Store) -> None:
    store.usage.add(
        {
            Account("2026-11-20", "k1", "a", "big"): Amount(1, 1),
            Account("2026-11-21", "k1", "a", "small"): Amount(1, 10),
            Account("2026-11-21", "k2", "b", "big"): Amount(1, 100),
        }
    )
    assert facts(store.usage.totals(UsageGrouping.TENANT)) == [("a", None, 2, 11), ("b", None, 1, 100)]
    assert facts(store.usage.totals(UsageGrouping.MODEL)) == [("big", None, 2, 101), ("small", None, 1, 10)]
    assert facts(store.usage.totals(UsageGrouping.DAY)) == [
        ("2026-11-20", None, 1, 1),
        ("2026-11-21", None, 2, 110),
    ]
    assert facts(store.usage.totals(UsageGrouping.TENANT, "2026-11-21")) == [
        ("a", None, 1, 10),
        ("b", None, 1, 100),
    ]
    assert store.usage.totals(UsageGrouping.DAY, "2026-11-22") == ()


def test_totals_by_key_name_keys_that_are_known_revoked_or_gone(store: Store) -> None:
    store.keys.create("alice", "a", 1.0)
    old = store.keys.list()[0].id
    store.keys.revoke("alice", 2.0)
    store.keys.create("alice", "a", 3.0)
    new = next(key.id for key in store.keys.list() if key.id != old)
    day = "2026-11-21"
    store.usage.add(
        {
            Account(day, old, "a", "m"): Amount(1, 1),
            Account(day, new, "a", "m"): Amount(1, 10),
            Account(day, "zz-gone", "b", "m"): Amount(1, 100),
        }
    )
    totals = store.usage.totals(UsageGrouping.KEY)
    assert facts(totals)[2] == ("zz-gone", "b", 1, 100)
    assert {(t.name, t.key_id, t.amount.prompt_tokens) for t in totals[:2]} == {
        ("alice", old, 1),
        ("alice", new, 10),
    }


def test_a_sum_stays_where_numbers_end(store: Store) -> None:
    account = Account("2026-11-21", "k", "t", "m")
    store.usage.add({account: Amount(1, 2**80)})
    store.usage.add({account: Amount(1, 2**80)})
    assert store.usage.totals(UsageGrouping.MODEL)[0].amount == Amount(2, MOST)


def test_however_much_agents_say_was_used_a_gateway_can_read_what_its_tenants_spent(store: Store) -> None:
    rows = {Account("2026-11-21", "k", "t", "m", f"a/{n}"): Amount(1, MOST, MOST) for n in range(600)}
    store.usage.add(rows)
    ((tenant, day, tokens, gpu_s, cost),) = store.usage.spent("2026-11-01")
    assert (tenant, day, gpu_s, cost) == ("t", "2026-11-21", 0.0, 0.0)
    assert isinstance(tokens, int)
    assert tokens == 600 * 2 * MOST
    assert store.usage.totals(UsageGrouping.TENANT)[0].amount.prompt_tokens == 600 * MOST


def test_a_write_that_fails_adds_nothing(file_store: Store) -> None:
    store = file_store
    kept = Account("2026-11-21", "k", "t", "m")
    store.usage.add({kept: Amount(1, 1)})
    many = {Account("2026-11-21", "k", "t", f"{'m' * 200}{n}"): Amount(1, 1) for n in range(2000)}
    with full_database(store), pytest.raises(StateUnwritable, match="is full"):
        store.usage.add({kept: Amount(1, 1), **many})
    assert store.usage.totals(UsageGrouping.MODEL) == (Total("m", None, Amount(1, 1)),)
    store.usage.add(many)
    assert len(store.usage.totals(UsageGrouping.MODEL)) == 2001


@pytest.mark.parametrize("by", UsageGrouping)
def test_totals_are_given_in_parts_that_make_up_the_whole(store: Store, by: UsageGrouping) -> None:
    store.keys.create("alice", "acme", 1.0)
    alice = store.keys.list()[0].id
    store.usage.add(
        {
            Account(f"2026-11-{day}", key, tenant, f"m{day}", f"gpu/{day}"): Amount(1, 1)
            for day in range(20, 23)
            for key in (alice, "gone", "none")
            for tenant in ("acme", "other")
        }
    )
    whole = store.usage.totals(by)
    parts: list[Total] = []
    while part := store.usage.totals(by, after=parts[-1].place if parts else (), most=1):
        parts += part
    assert tuple(parts) == whole
    assert len(whole) > 1


VERSION_1 = """
CREATE TABLE facts (name VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (name));
CREATE TABLE revisions (topic VARCHAR NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (topic));
CREATE TABLE join_tokens (id VARCHAR NOT NULL, verifier BLOB NOT NULL, created_s DOUBLE NOT NULL,
    expires_s DOUBLE NOT NULL, uses_allowed INTEGER NOT NULL, uses INTEGER NOT NULL, models JSON NOT NULL,
    labels JSON NOT NULL, revoked_s DOUBLE, PRIMARY KEY (id));
CREATE TABLE api_keys (id VARCHAR NOT NULL, name VARCHAR NOT NULL, tenant VARCHAR NOT NULL,
    digest BLOB NOT NULL, hint VARCHAR NOT NULL, created_s DOUBLE NOT NULL, revoked_s DOUBLE,
    revision BIGINT NOT NULL, PRIMARY KEY (id), UNIQUE (digest));
CREATE UNIQUE INDEX api_keys_active_name ON api_keys (name) WHERE revoked_s IS NULL;
CREATE INDEX ix_api_keys_revision ON api_keys (revision);
CREATE TABLE agents (id INTEGER NOT NULL, name VARCHAR NOT NULL, public_key BLOB NOT NULL,
    models JSON NOT NULL, labels JSON NOT NULL, token_id VARCHAR NOT NULL, joined_s DOUBLE NOT NULL,
    last_seen_s DOUBLE, revoked_s DOUBLE, revoked_reason VARCHAR NOT NULL, revision BIGINT NOT NULL,
    PRIMARY KEY (id), UNIQUE (public_key));
CREATE INDEX ix_agents_revision ON agents (revision);
CREATE UNIQUE INDEX agents_active_name ON agents (name) WHERE revoked_s IS NULL;
CREATE TABLE certificates (serial VARCHAR NOT NULL, agent_id INTEGER NOT NULL, issued_s DOUBLE NOT NULL,
    expires_s DOUBLE NOT NULL, PRIMARY KEY (serial), FOREIGN KEY(agent_id) REFERENCES agents (id));
CREATE INDEX ix_certificates_agent_id ON certificates (agent_id);
INSERT INTO revisions VALUES ('keys', 1), ('agents', 0);
INSERT INTO api_keys VALUES ('key_1', 'laptop', 'default', x'00', 'abcd', 1.0, NULL, 1);
PRAGMA application_id = 1414288212;
PRAGMA user_version = 1;
"""
"""As the first released gateway made it."""


def names(store: Store, most: int = 100) -> list[str]:
    return [fact.name for fact in store.models.list(most)]


def test_a_model_keeps_when_it_was_first_served(store: Store) -> None:
    store.models.note({"a": 5.0}, ["a"], 10.0, 100)
    store.models.note({"a": 20.0}, ["a"], 30.0, 100)
    (fact,) = store.models.list(100)
    assert (fact.name, fact.first_s, fact.last_s) == ("a", 5.0, 30.0)


def test_those_served_last_are_kept_and_listed(store: Store) -> None:
    for wall_s, name in enumerate("abcd"):
        store.models.note({}, [name], float(wall_s), 3)
    assert names(store) == ["b", "c", "d"]
    store.models.note({}, ["b"], 9.0, 3)
    assert names(store) == ["c", "d", "b"]
    assert names(store, 2) == ["d", "b"]


def test_no_model_is_no_write(store: Store) -> None:
    before = store.changes.read()
    store.models.note({}, [], 1.0, 3)
    assert store.changes.read() == before


def test_a_database_of_the_first_version_is_brought_up_to_date_with_what_it_holds(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / DATABASE_NAME)
    raw.executescript(VERSION_1)
    raw.close()
    with Store.open(tmp_path) as store:
        assert [(record.name, record.where) for record in store.keys.list()] == [("laptop", None)]
        store.models.note({}, ["a"], 1.0, 3)
    with Store.open(tmp_path) as store:
        assert names(store) == ["a"]
