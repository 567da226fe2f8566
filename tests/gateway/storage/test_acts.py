"""Administrative acts: noted with what they do, waiting until the audit log has them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from gateway.storage import Store, schema
from gateway.storage.acts import CLAIMED_S, ClaimedActions, acting_as, note_act, process_owner


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def test_acts_wait_in_their_order_until_they_are_forgotten(store: Store) -> None:
    for number in range(4):
        store.acts.note("thing.change", name=f"n{number}")
    waiting = store.acts.pending(3)
    assert [(act.kind, act.what) for act in waiting] == [
        ("thing.change", {"name": f"n{n}"}) for n in range(3)
    ]
    store.acts.forget([act.id for act in waiting])
    store.acts.forget([])
    assert [act.what for act in store.acts.pending(10)] == [{"name": "n3"}]


def test_an_act_that_fails_leaves_no_note(store: Store) -> None:
    def fail() -> None:
        with store.acts._database.write() as connection:
            note_act(connection, "thing.change")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.acts.pending(10) == ()


def test_whose_acts_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def over_http() -> None:
        with acting_as("key:key_1"):
            await asyncio.to_thread(store.acts.note, "thing.change")

    asyncio.run(over_http())
    store.acts.note("thing.change")
    first, second = (act.who for act in store.acts.pending(2))
    assert first == "key:key_1"
    assert second.startswith("os:")


def test_whatever_a_user_is_called_it_can_be_written_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "al\udcffice")
    process_owner.cache_clear()
    try:
        assert process_owner().endswith(" (sudo by al?ice)")
    finally:
        process_owner.cache_clear()


def noted(store: Store, *names: str) -> None:
    for name in names:
        store.acts.note("thing.change", name=name)


def names(log: ClaimedActions, most: int = 10) -> list[str]:
    return [act.what["name"] for act in log.pending(most)]


def test_of_several_logs_the_one_that_owns_them_takes_acts_up(store: Store) -> None:
    owners = {"a"}
    a, b = (ClaimedActions(store.acts, name, lambda name=name: name in owners) for name in "ab")  # type: ignore[misc]
    noted(store, "1", "2", "3")
    assert (names(b), names(a, 2)) == ([], ["1", "2"])
    owners.add("b")
    assert names(b) == ["3"], "as when an owner is frozen before it knows that another one is"
    owners.remove("a")
    noted(store, "4")
    assert (names(a), names(b)) == (["1", "2"], ["3", "4"]), "what it claimed is still its own"
    a.forget([act.id for act in a.pending(9)])
    assert (names(a), [act.what["name"] for act in store.acts.pending(9)]) == ([], ["3", "4"])


def test_what_a_log_claimed_that_is_gone_is_taken_up_by_another(store: Store) -> None:
    gone, here = (ClaimedActions(store.acts, name, lambda: True) for name in ("gone", "here"))
    noted(store, "old", "new")
    assert names(gone) == ["old", "new"]
    with store.database.write() as connection:
        old = schema.acts.c.what["name"].as_string() == "old"
        before = schema.acts.c.claimed_s - CLAIMED_S - 1
        connection.execute(update(schema.acts).where(old).values(claimed_s=before))
    assert (names(here), names(gone)) == (["old"], ["new"])


def test_many_that_claim_at_once_have_each_act_once(store: Store) -> None:
    noted(store, *map(str, range(40)))
    logs = [ClaimedActions(store.acts, f"log-{n}", lambda: True) for n in range(4)]

    def take(log: ClaimedActions) -> list[str]:
        for _ in range(5):
            log.pending(3)
        return names(log, 99)

    with ThreadPoolExecutor(len(logs)) as threads:
        taken = list(threads.map(take, logs))
    assert sorted(name for each in taken for name in each) == sorted(map(str, range(40)))
