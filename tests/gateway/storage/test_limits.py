"""Limits, budgets and prices in the store: each change whole or not at all, and seen by whoever asks."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine

from gateway.domain.quotas import Budgets, Price, Rates, TenantLimits
from gateway.domain.scopes import AdminRole, limited
from gateway.storage import Account, Amount, Store, migrations
from gateway.storage.errors import BadValue, StateCorrupt, UnknownRecord
from gateway.storage.sqlite import SqliteDatabase


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def test_a_tenant_keeps_what_is_not_named_and_loses_what_is_named_with_nothing(store: Store) -> None:
    tenants = store.limits.tenants
    tenants.change("acme", {"rpm": 60, "tokens_per_day": 1000, "queue_share": 0.2, "weight": 3.0}, 1.0)
    changed = tenants.change("acme", {"rpm": None, "money_per_month": 9.5}, 2.0)
    assert changed.limits == TenantLimits(
        Rates(), Budgets(tokens_per_day=1000, money_per_month=9.5), queue_share=0.2, weight=3.0
    )
    assert list(tenants.list()) == [changed]


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("acme", {"rpm": 0}, "rpm 0: 1 to"),
        ("acme", {"tpm": -5}, "tpm -5"),
        ("acme", {"money_per_day": 0.0}, "money_per_day 0: more than 0"),
        ("acme", {"money_per_day": float("nan")}, "money_per_day nan"),
        ("acme", {"queue_share": 1.5}, "queue_share 1.5"),
        ("acme", {"weight": 0.0}, "weight 0: 0.001 to 1000"),
        ("-acme", {"rpm": 1}, "tenant '-acme' cannot be used"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    store: Store, name: str, changes: dict[str, object], why: str
) -> None:
    store.limits.tenants.change("acme", {"rpm": 7}, 1.0)
    before = store.limits.tenants.list()
    with pytest.raises(BadValue, match=why):
        store.limits.tenants.change(name, changes, 2.0)
    assert store.limits.tenants.list() == before


def test_a_key_is_made_with_rates_and_given_others(store: Store) -> None:
    store.keys.create("ci", "acme", 1.0, rates=Rates(rpm=5, tpm=100))
    store.keys.create("free", "acme", 1.0)
    revision, records = store.keys.changed_since(0)
    assert [each.rates for each in records] == [Rates(5, 100), None]
    store.keys.change("ci", {"tpm": None, "concurrency": 2})
    _, (changed,) = store.keys.changed_since(revision)
    assert changed.rates == Rates(rpm=5, concurrency=2)
    with pytest.raises(BadValue, match="concurrency 0"):
        store.keys.change("ci", {"concurrency": 0})
    with pytest.raises(UnknownRecord):
        store.keys.change("nobody", {"rpm": 1})
    assert store.keys.change("ci", dict.fromkeys(("rpm", "tpm", "concurrency"))).rates is None


def test_limits_and_prices_are_read_again_when_one_of_them_has_changed(store: Store) -> None:
    limits = store.limits
    revision, terms = limits.changed_since(-1)
    assert terms is not None
    assert (terms.tenants, terms.prices) == ({}, {})
    assert limits.changed_since(revision) == (revision, None)
    limits.prices.set("*", 1.0, 2.0, 0.5, 1.0)
    limits.prices.set("m", 1.0, 2.0, 0.0, 1.0)
    limits.prices.set("m", 0.5, 1.5, 0.002, 2.0)
    limits.tenants.change("acme", {"tpm": 5}, 3.0)
    revision, terms = limits.changed_since(revision)
    assert terms is not None
    assert terms.prices == {"*": Price(1.0, 2.0, 0.5), "m": Price(0.5, 1.5, 0.002)}
    assert terms.tenants == {"acme": TenantLimits(Rates(tpm=5))}
    limits.prices.remove("m")
    limits.tenants.remove("acme")
    _, terms = limits.changed_since(revision)
    assert terms is not None
    assert (terms.tenants, list(terms.prices)) == ({}, ["*"])


def test_prices_that_cannot_be_and_what_is_not_there_are_said(store: Store) -> None:
    with pytest.raises(BadValue, match="price output -1"):
        store.limits.prices.set("m", 0.0, -1.0, 0.0, 1.0)
    with pytest.raises(BadValue, match="no model has such a name"):
        store.limits.prices.set(" ", 0.0, 1.0, 0.0, 1.0)
    with pytest.raises(UnknownRecord, match="price list"):
        store.limits.prices.remove("m")
    with pytest.raises(UnknownRecord, match="tenant list"):
        store.limits.tenants.remove("acme")


def test_what_tenants_spent_is_summed_by_day(store: Store) -> None:
    def account(day: str, key: str, model: str = "m") -> Account:
        return Account(day, key, "acme", model)

    store.usage.add({account("2026-10-31", "k"): Amount(1, 5, 5, 0, 1.0, 1.0)})
    store.usage.add({account("2026-11-01", "k"): Amount(1, 10, 5, 2, 1.5, 0.25)})
    store.usage.add({account("2026-11-01", "k2", "n"): Amount(1, 1, 1, 0, 0.5, 0.5)})
    store.usage.add({account("2026-11-02", "k"): Amount(1, 3, 0, 0)})
    assert sorted(store.usage.spent("2026-11-01")) == [
        ("acme", "2026-11-01", 17, 2.0, 0.75),
        ("acme", "2026-11-02", 3, 0.0, 0.0),
    ]


def test_a_database_of_the_version_before_has_no_limits_and_its_usage_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    SqliteDatabase(path).close()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        made = dict(raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        raw.execute("INSERT INTO usage VALUES ('2026-11-01', 'k', 't', 'm', '', 1, 2, 3, 4, 0, 0)")
        for column in ("rpm", "tpm", "concurrency"):
            raw.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
        for column in ("gpu_s", "cost"):
            raw.execute(f"ALTER TABLE usage DROP COLUMN {column}")
        for table in ("tenants", "prices"):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("DELETE FROM revisions WHERE topic = 'limits'")
        raw.commit()
    engine = create_engine(URL.create("sqlite", database=str(path)))
    with engine.begin() as connection:
        migrations.upgrade_step(connection, 5)
    engine.dispose()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        upgraded = dict(raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        assert raw.execute("SELECT gpu_s, cost FROM usage").fetchall() == [(0.0, 0.0)]
        assert raw.execute("SELECT value FROM revisions WHERE topic = 'limits'").fetchall() == [(0,)]
        for table in ("tenants", "prices"):
            as_made = " ".join(made[table].split()).replace("DOUBLE", "DOUBLE PRECISION")
            assert upgraded[table].replace(" ", "") == as_made.replace(" ", "")


def test_limits_and_prices_that_somebody_else_wrote_and_that_cannot_be_are_named(store: Store) -> None:
    with store._database.write() as connection:
        connection.exec_driver_sql("INSERT INTO tenants (name, rpm, changed_s) VALUES ('acme', -1, 1.0)")
        connection.exec_driver_sql("INSERT INTO prices VALUES ('m', -1.0, 0.0, 0.0, 1.0)")
    with pytest.raises(StateCorrupt, match="tenant 'acme' cannot be read"):
        store.limits.changed_since(-1)
    with pytest.raises(StateCorrupt, match="price of 'm' cannot be read"):
        store.limits.prices.list()


def test_a_key_is_given_other_routes_and_a_role_and_keeps_the_rest(store: Store) -> None:
    scopes = limited(models=["llama-*"], tiers=["batch"])
    store.keys.create("ci", "acme", 1.0, scopes=scopes, rates=Rates(tpm=100))
    changed = store.keys.change("ci", {"routes": ["any", "chat"], "role": "operator"})
    assert changed.scopes == limited(["llama-*"], ["any", "chat"], ["batch"])
    assert (changed.role, changed.rates) == (AdminRole.OPERATOR, Rates(tpm=100))
    changed = store.keys.change("ci", {"routes": None, "role": None})
    assert (changed.scopes, changed.role) == (scopes, None)
    for wrong in ({"routes": ["chatt"]}, {"role": "boss"}):
        with pytest.raises(BadValue):
            store.keys.change("ci", wrong)
    store.keys.create("free", "acme", 1.0)
    assert store.keys.change("free", {"routes": ["chat"]}).scopes == limited(routes=["chat"])
    assert store.keys.change("free", {"routes": None}).scopes is None
