"""Administrative acts: noted with what they do, waiting until the audit log has them."""

import asyncio

import pytest

from gateway.storage import Store
from gateway.storage.acts import acting_as, note_act, process_owner


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
