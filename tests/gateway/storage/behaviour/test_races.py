"""Processes that change the same thing at once, on PostgreSQL: the outcome is as if one came after the other.

Both begin while a third holds the write lock, so that without it each would read before the other wrote.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from gateway.domain.aliases import AliasTarget
from gateway.domain.jobs import JobNote
from gateway.domain.store_address import StoreAddress
from gateway.storage import Account, Amount, Enrolment, Store, UsageGrouping, aliases, limits, schema
from gateway.storage.administration import init_store
from gateway.storage.errors import BadValue, EnrolmentRefused, KeyStillCounts, NameTaken, UnknownRecord
from gateway.storage.jobs import JobBounds, Submission
from gateway.storage.postgres import PostgresDatabase
from shared.protocol.progress import Progress
from tests.gateway.storage.jobs.conftest import StandingClock
from tests.gateway.storage.jobs.desk import JobDesk
from tests.support.processes import until

NOW_S = 1_800_000_000.0
Outcome = object | Exception


@pytest.fixture
def stores(tmp_path_factory: pytest.TempPathFactory, postgres_address: StoreAddress) -> Iterator[list[Store]]:
    """What three processes have open."""
    directory = tmp_path_factory.mktemp("state")
    init_store(directory, postgres_address)
    with ExitStack() as stack:
        opened = [stack.enter_context(Store.open(directory, address=postgres_address)) for _ in range(3)]
        opened[0].tokens.create(60.0, 1, ["*"], {}, NOW_S)
        yield opened


def at_once(stores: list[Store], *acts: Callable[[Store], Any]) -> list[Outcome]:
    """What each returned or raised, that which failed last; each in a process of its own."""
    outcomes: list[Outcome] = []

    def run(act: Callable[[Store], Any], store: Store) -> None:
        try:
            outcomes.append(act(store))
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(acts, stores[1:], strict=True)]
    with stores[0]._database.write():
        for thread in threads:
            thread.start()
        until("both wait", lambda: waiting(stores[0]) == len(threads))
    for thread in threads:
        thread.join()
    return sorted(outcomes, key=lambda outcome: isinstance(outcome, Exception))


def waiting(store: Store) -> int:
    database = store._database
    assert isinstance(database, PostgresDatabase)
    query = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND objid = current_schema()::regnamespace::oid"
    )
    return int(database._ask(query))


def one_failed(outcomes: list[Outcome], kind: type[Exception]) -> None:
    first, second = outcomes
    assert not isinstance(first, Exception)
    assert isinstance(second, kind)


def test_a_key_name_is_given_once(stores: list[Store]) -> None:
    one_failed(at_once(stores, *[lambda store: store.keys.create("a", "t", NOW_S)] * 2), NameTaken)


def test_a_key_is_revoked_once(stores: list[Store]) -> None:
    stores[0].keys.create("a", "t", NOW_S)
    one_failed(at_once(stores, *[lambda store: store.keys.revoke("a", NOW_S)] * 2), UnknownRecord)


def test_a_key_that_is_rotated_and_changed_is_both(stores: list[Store]) -> None:
    stores[0].keys.create("a", "t", NOW_S)
    before = stores[0].keys.get("a")
    at_once(
        stores,
        lambda store: store.keys.rotate("a", 60.0, NOW_S),
        lambda store: store.keys.change("a", {"rpm": 5}),
    )
    after = stores[0].keys.get("a")
    assert (after.previous_digest, after.rates and after.rates.rpm) == (before.digest, 5)


def test_two_changes_of_one_key_are_both_made(stores: list[Store]) -> None:
    stores[0].keys.create("a", "t", NOW_S)
    at_once(
        stores,
        lambda store: store.keys.change("a", {"rpm": 5}),
        lambda store: store.keys.change("a", {"tpm": 7}),
    )
    rates = stores[0].keys.get("a").rates
    assert rates is not None
    assert (rates.rpm, rates.tpm) == (5, 7)


def enrol(token_id: str, name: str, key: int) -> Callable[[Store], Any]:
    enrolment = Enrolment(token_id, name, bytes([key]) * 32, f"{key:x}", NOW_S + 60)
    return lambda store: store.agents.enrol(enrolment, NOW_S)


def test_the_last_use_of_a_token_is_taken_once(stores: list[Store]) -> None:
    token, _ = stores[0].tokens.create(60.0, 1, ["*"], {}, NOW_S)
    acts = (enrol(token.id_text, "a", 1), enrol(token.id_text, "b", 2))
    one_failed(at_once(stores, *acts), EnrolmentRefused)
    assert len(stores[0].agents.list()) == 1


def test_a_token_that_is_revoked_and_used_lets_nobody_in_afterwards(stores: list[Store]) -> None:
    token, _ = stores[0].tokens.create(60.0, 5, ["*"], {}, NOW_S)
    at_once(stores, enrol(token.id_text, "a", 1), lambda store: store.tokens.revoke(token.id_text, NOW_S))
    record = stores[0].tokens.get(token.id_text)
    assert record is not None
    assert record.uses == len(stores[0].agents.list())
    with pytest.raises(EnrolmentRefused, match="revoked"):
        enrol(token.id_text, "b", 2)(stores[0])


def test_an_agents_name_is_given_once(stores: list[Store]) -> None:
    token, _ = stores[0].tokens.create(60.0, 5, ["*"], {}, NOW_S)
    acts = (enrol(token.id_text, "a", 1), enrol(token.id_text, "a", 2))
    one_failed(at_once(stores, *acts), EnrolmentRefused)
    record = stores[0].tokens.get(token.id_text)
    assert record is not None
    assert record.uses == 1


def test_an_agent_that_is_revoked_is_not_renewed_afterwards(stores: list[Store]) -> None:
    token, _ = stores[0].tokens.create(60.0, 5, ["*"], {}, NOW_S)
    agent = enrol(token.id_text, "a", 1)(stores[0])
    at_once(
        stores,
        lambda store: store.agents.revoke("a", "gone", NOW_S),
        lambda store: store.agents.renew(agent.id, "ff", NOW_S + 99, NOW_S),
    )
    assert stores[0].agents.get("a") is None
    with pytest.raises(UnknownRecord):
        stores[0].agents.renew(agent.id, "fe", NOW_S + 99, NOW_S)


def test_the_bounds_on_aliases_and_tenants_hold(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "MOST_ALIASES", 1)
    monkeypatch.setattr(limits, "MOST_ROWS", 1)
    target = (AliasTarget("m", None, 1.0),)
    of_aliases = at_once(
        stores,
        lambda store: store.aliases.set_targets("a", target, NOW_S),
        lambda store: store.aliases.set_targets("b", target, NOW_S),
    )
    one_failed(of_aliases, BadValue)
    of_tenants = at_once(
        stores,
        lambda store: store.limits.tenants.change("a", {"rpm": 1}, NOW_S),
        lambda store: store.limits.tenants.change("b", {"rpm": 1}, NOW_S),
    )
    one_failed(of_tenants, BadValue)


def test_two_changes_of_one_tenant_are_both_made(stores: list[Store]) -> None:
    at_once(
        stores,
        lambda store: store.limits.tenants.change("a", {"rpm": 1}, NOW_S),
        lambda store: store.limits.tenants.change("a", {"tpm": 2}, NOW_S),
    )
    (tenant,) = stores[0].limits.tenants.list()
    assert (tenant.limits.rates.rpm, tenant.limits.rates.tpm) == (1, 2)


def test_the_gateways_key_is_changed_once(stores: list[Store]) -> None:
    one_failed(at_once(stores, *[lambda store: store.identity.rotate(60.0, NOW_S)] * 2), KeyStillCounts)
    assert stores[0].identity.keys.current.id == stores[1].identity.keys.current.id


def test_acts_are_numbered_in_the_order_in_which_they_are_committed(stores: list[Store]) -> None:
    """So whoever takes up all there are misses none that comes later with a smaller number."""
    for number in range(5):
        at_once(stores, *[lambda store, n=number: store.acts.note(f"act.{n}")] * 2)
    with stores[0]._database.read() as connection:
        rows = connection.execute(
            schema.acts.select().order_by(schema.acts.c.number).with_only_columns(schema.acts.c.kind)
        )
        kinds = [kind for kind in rows.scalars() if kind.startswith("act.")]
    assert kinds == [f"act.{number}" for number in range(5) for _ in range(2)]


def test_readers_miss_no_change_whoever_commits_first(stores: list[Store]) -> None:
    """Changes of one topic commit in the order of their revisions."""
    revision, _ = stores[0].keys.changed_since(0)
    seen: set[str] = set()
    for number in range(5):
        at_once(
            stores,
            lambda store, n=number: store.keys.create(f"a{n}", "t", NOW_S),  # type: ignore[misc]
            lambda store, n=number: store.keys.create(f"b{n}", "t", NOW_S),  # type: ignore[misc]
        )
        revision, changed = stores[0].keys.changed_since(revision)
        seen |= {key.name for key in changed}
    assert len(seen) == 10


def run_all(*works: Callable[[], None]) -> None:
    failed: list[Exception] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_usage_that_processes_add_in_opposite_order_is_summed_without_a_deadlock(stores: list[Store]) -> None:
    accounts = [Account("2026-11-21", f"k{n}", "t", "m") for n in range(60)]

    def add(store: Store, order: int) -> None:
        amounts: Mapping[Account, Amount] = {account: Amount(1) for account in accounts[::order]}
        for batch in range(1, 21):
            store.usage.add(amounts, batch)

    run_all(*(lambda s=store, o=order: add(s, o) for store, order in zip(stores, (1, -1, 1), strict=True)))
    totals = stores[0].usage.totals(UsageGrouping.KEY)
    assert {total.amount.requests for total in totals} == {60}


def test_a_batch_that_is_just_being_added_by_a_lost_connection_counts_once(stores: list[Store]) -> None:
    """The first attempt's answer was lost; the second comes while the server still works at the first."""
    store, day = stores[1], Account("2026-11-21", "k", "t", "m")
    again = threading.Thread(target=lambda: store.usage.add({day: Amount(1)}, 7))
    with stores[0]._database.write_concurrently() as connection:
        note = {"process": store.usage.process, "batch": 7, "added_s": NOW_S}
        connection.execute(schema.usage_batches.insert(), note)
        row = dict.fromkeys(schema.usage.columns.keys()[5:], 0) | day._asdict() | {"requests": 1}
        connection.execute(schema.usage.insert(), row)
        again.start()
        until("it waits", lambda: blocked(stores[2]) == 1)
    again.join()
    assert [total.amount.requests for total in store.usage.totals(UsageGrouping.DAY)] == [1]


def blocked(store: Store) -> int:
    """Who waits for another's transaction in the schema's tables."""
    database = store._database
    assert isinstance(database, PostgresDatabase)
    query = (
        "SELECT count(DISTINCT waiting.pid) FROM pg_locks waiting JOIN pg_locks held USING (pid) "
        "WHERE waiting.locktype = 'transactionid' AND NOT waiting.granted "
        "AND held.relation = 'usage_batches'::regclass"
    )
    return int(database._ask(query))


def test_times_and_models_that_processes_note_at_once_make_no_deadlock(stores: list[Store]) -> None:
    token, _ = stores[0].tokens.create(60.0, 30, ["*"], {}, NOW_S)
    names = [f"agent-{n}" for n in range(20)]
    for number, name in enumerate(names):
        enrol(token.id_text, name, number + 1)(stores[0])
        stores[0].keys.create(name, "t", NOW_S)
    ids = [key.id for key in stores[0].keys.list()]

    def note(store: Store, order: int) -> None:
        for round_ in range(15):
            store.agents.touch(names[::order], NOW_S + round_)
            store.keys.touch(dict.fromkeys(ids[::order], NOW_S + round_))
            store.models.note({}, names[::order], NOW_S + round_, 10)

    def revoke(store: Store) -> None:
        for name in names[:5]:
            store.agents.revoke(name, "", NOW_S)
            store.keys.revoke(name, NOW_S)

    run_all(lambda: note(stores[0], 1), lambda: note(stores[1], -1), lambda: revoke(stores[2]))
    assert len(stores[0].models.list(100)) == 10
    assert {key.last_used_s for key in stores[0].keys.list()} == {NOW_S + 14}
    active = [agent for agent in stores[0].agents.list() if agent.revoked_s is None]
    assert all(agent.last_seen_s is not None for agent in active)


def test_progress_of_several_jobs_waits_for_who_changes_them_and_not_in_a_circle(stores: list[Store]) -> None:
    desk = JobDesk(stores[0], StandingClock())
    jobs = tuple(replace(desk.new(), id=name) for name in ("z", "a"))
    desk.jobs.submit(Submission("t", jobs, None), JobBounds(), NOW_S)
    notes = [JobNote(job.id, job.lease, Progress(0.5)) for job in desk.claim("p", 2) if job.lease is not None]
    noted: list[object] = []
    noting = threading.Thread(target=lambda: noted.append(stores[1].job_claims.note_progress(notes)))
    with stores[2].database.write_concurrently() as connection:
        locked = select(schema.jobs.c.number).order_by(schema.jobs.c.number).with_for_update()
        connection.execute(locked.where(schema.jobs.c.id == "z"))
        process: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        noting.start()
        until("it waits", lambda: blocked_by(stores[0], process))
        connection.execute(locked)
    noting.join()
    assert noted == [{"z", "a"}]


def blocked_by(store: Store, process: int) -> bool:
    database = store._database
    assert isinstance(database, PostgresDatabase)
    query = (
        f"SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND {process} = ANY(pg_blocking_pids(pid)))"
    )
    return bool(database._ask(query))
