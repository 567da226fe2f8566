"""Sums on disk: added to what is there, and totalled by key, tenant, model and day."""

import pytest

from gateway.storage import Account, Amount, By, Store, Total
from gateway.storage.errors import StateUnwritable
from gateway.storage.usage import MOST
from tests.gateway.storage.fillers import full_database


def facts(totals: tuple[Total, ...]) -> list[tuple[str, str | None, int, int]]:
    return [(total.name, total.tenant, total.amount.requests, total.amount.prompt_tokens) for total in totals]


def test_sums_grow_and_survive_reopening(store: Store) -> None:
    account = Account("2026-11-21", "k", "t", "m")
    store.usage.add({account: Amount(1, 10, 5, 2)})
    store.usage.add({account: Amount(2, 1, 1, 1)})
    store.usage.add({})
    with Store.open(store.state_dir) as again:
        assert again.usage.totals(By.MODEL) == (Total("m", None, Amount(3, 11, 6, 3)),)


def test_totals_by_tenant_model_and_day_since_a_day(store: Store) -> None:
    store.usage.add(
        {
            Account("2026-11-20", "k1", "a", "big"): Amount(1, 1),
            Account("2026-11-21", "k1", "a", "small"): Amount(1, 10),
            Account("2026-11-21", "k2", "b", "big"): Amount(1, 100),
        }
    )
    assert facts(store.usage.totals(By.TENANT)) == [("a", None, 2, 11), ("b", None, 1, 100)]
    assert facts(store.usage.totals(By.MODEL)) == [("big", None, 2, 101), ("small", None, 1, 10)]
    assert facts(store.usage.totals(By.DAY)) == [("2026-11-20", None, 1, 1), ("2026-11-21", None, 2, 110)]
    assert facts(store.usage.totals(By.TENANT, "2026-11-21")) == [("a", None, 1, 10), ("b", None, 1, 100)]
    assert store.usage.totals(By.DAY, "2026-11-22") == ()


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
    totals = store.usage.totals(By.KEY)
    assert facts(totals)[2] == ("zz-gone", "b", 1, 100)
    assert {(t.name, t.key_id, t.amount.prompt_tokens) for t in totals[:2]} == {
        ("alice", old, 1),
        ("alice", new, 10),
    }


def test_a_sum_stays_where_numbers_end(store: Store) -> None:
    account = Account("2026-11-21", "k", "t", "m")
    store.usage.add({account: Amount(1, 2**80)})
    store.usage.add({account: Amount(1, 2**80)})
    assert store.usage.totals(By.MODEL)[0].amount == Amount(2, MOST)


def test_however_much_agents_say_was_used_a_gateway_can_read_what_its_tenants_spent(store: Store) -> None:
    rows = {Account("2026-11-21", "k", "t", "m", f"a/{n}"): Amount(1, MOST, MOST) for n in range(600)}
    store.usage.add(rows)
    ((tenant, day, tokens, gpu_s, cost),) = store.usage.spent("2026-11-01")
    assert (tenant, day, gpu_s, cost) == ("t", "2026-11-21", 0.0, 0.0)
    assert isinstance(tokens, int)
    assert tokens == 600 * 2 * MOST
    assert store.usage.totals(By.TENANT)[0].amount.prompt_tokens == 600 * MOST


def test_a_write_that_fails_adds_nothing(store: Store) -> None:
    kept = Account("2026-11-21", "k", "t", "m")
    store.usage.add({kept: Amount(1, 1)})
    many = {Account("2026-11-21", "k", "t", f"{'m' * 200}{n}"): Amount(1, 1) for n in range(2000)}
    with full_database(store), pytest.raises(StateUnwritable, match="is full"):
        store.usage.add({kept: Amount(1, 1), **many})
    assert store.usage.totals(By.MODEL) == (Total("m", None, Amount(1, 1)),)
    store.usage.add(many)
    assert len(store.usage.totals(By.MODEL)) == 2001


@pytest.mark.parametrize("by", By)
def test_totals_are_given_in_parts_that_make_up_the_whole(store: Store, by: By) -> None:
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
