"""The gateway's key and its successor: in files, and named by the database."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from gateway.storage import KEY_NAME, Store, schema
from gateway.storage.errors import BadValue, IdentityUnusable, KeyStillCounts
from gateway.storage.key_files import NEXT_NAME, PREVIOUS_NAME
from shared.identity import GatewayIdentity, GatewayKeys, load_key, save_key
from tests.support.identities import OTHER_GATEWAY

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


def held(path: Path) -> str:
    return GatewayIdentity(load_key(path)).id


def ids(keys: GatewayKeys) -> tuple[str, str | None]:
    return keys.current.id, None if keys.previous is None else keys.previous.id


def test_a_new_key_counts_at_once_and_the_one_before_until_the_overlap_ends(
    store: Store, state_dir: Path
) -> None:
    before = store.gateway_identity
    keys = store.identity.rotate(30 * DAY_S, NOW_S)
    assert keys.current.id == store.gateway_identity.id != before.id
    assert keys.previous_at(NOW_S + 30 * DAY_S - 1) is keys.previous
    assert ids(keys) == (keys.current.id, before.id)
    assert keys.previous_at(NOW_S + 30 * DAY_S) is None
    assert (held(state_dir / KEY_NAME), held(state_dir / PREVIOUS_NAME)) == (keys.current.id, before.id)
    assert not (state_dir / NEXT_NAME).exists()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in state_dir.glob("*.key")}
    assert modes == {0o600}


def test_whoever_has_the_state_open_sees_the_new_key(store: Store, state_dir: Path) -> None:
    with Store.open(state_dir) as other:
        keys = store.identity.rotate(DAY_S, NOW_S)
        assert ids(other.identity.keys) == ids(keys)
    with Store.open(state_dir) as later:
        assert ids(later.identity.keys) == ids(keys)


def test_without_an_overlap_nothing_is_left_of_the_key_before(store: Store, state_dir: Path) -> None:
    keys = store.identity.rotate(0.0, NOW_S)
    assert (keys.previous, store.identity.keys.previous) == (None, None)
    assert not (state_dir / PREVIOUS_NAME).exists()


def test_a_third_key_waits_for_the_overlap_to_end_or_ends_it(store: Store) -> None:
    first = store.gateway_identity
    second = store.identity.rotate(DAY_S, NOW_S).current
    with pytest.raises(KeyStillCounts, match="still counts"):
        store.identity.rotate(DAY_S, NOW_S + DAY_S - 1)
    assert store.gateway_identity.id == second.id
    third = store.identity.rotate(DAY_S, NOW_S + DAY_S)
    assert ids(third) == (third.current.id, second.id)
    assert store.identity.rotate(0.0, NOW_S + DAY_S).previous is None
    assert first.id not in {second.id, third.current.id}


def test_a_key_that_counts_no_more_is_removed(store: Store, state_dir: Path) -> None:
    store.identity.rotate(DAY_S, NOW_S)
    assert not store.identity.forget_previous(NOW_S + DAY_S - 1)
    assert (state_dir / PREVIOUS_NAME).exists()
    assert store.identity.forget_previous(NOW_S + DAY_S)
    assert not (state_dir / PREVIOUS_NAME).exists()
    assert not store.identity.forget_previous(NOW_S + DAY_S)


@pytest.mark.parametrize("overlap_s", [-1.0, 367 * DAY_S])
def test_an_overlap_that_makes_no_sense_changes_nothing(store: Store, overlap_s: float) -> None:
    before = store.identity.keys
    with pytest.raises(BadValue):
        store.identity.rotate(overlap_s, NOW_S)
    assert store.identity.keys == before


class Died(BaseException):
    """The process, at this call."""


def dying(at: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps functions so that the call number ``at`` of all of them together is not made."""
    calls = iter(range(at, -1, -1))

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if next(calls, 1) == 0:
                raise Died
            return function(*arguments, **named)

        return called

    return wrap


@pytest.mark.parametrize("at", range(11))
def test_a_change_that_was_cut_off_anywhere_leaves_one_key_that_counts(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    with Store.open(state_dir) as store:
        before = store.gateway_identity.id
        wrap = dying(at)
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "fsync"):
                patch.setattr(os, name, wrap(getattr(os, name)))
            with pytest.raises(Died):
                store.identity.rotate(DAY_S, NOW_S)
    with Store.open(state_dir) as again:
        keys = again.identity.keys
        old = keys.current if keys.previous is None else keys.previous
        assert old.id == before
        final = again.identity.rotate(0.0, NOW_S + 1)
        assert final.current.id not in {before, keys.current.id}
    assert {path.name for path in state_dir.glob("gateway*.key")} == {KEY_NAME}
    assert held(state_dir / KEY_NAME) == final.current.id


def test_a_database_of_before_a_change_keeps_its_key_at_the_next_change(
    store: Store, state_dir: Path
) -> None:
    before, facts = store.gateway_identity.id, schema.facts
    with store.database.read() as connection:
        known = [row._asdict() for row in connection.execute(select(facts))]
    store.identity.rotate(DAY_S, NOW_S)
    with store.database.write() as connection:  # as when the backup takes a damaged database's place
        connection.execute(delete(facts))
        connection.execute(facts.insert(), known)
    with Store.open(state_dir) as restored:
        assert ids(restored.identity.keys) == (before, None)
        keys = restored.identity.rotate(DAY_S, NOW_S)
    assert ids(keys) == (held(state_dir / KEY_NAME), before)
    assert held(state_dir / PREVIOUS_NAME) == before


def test_a_key_before_that_was_lost_is_no_reason_to_stop(store: Store, state_dir: Path) -> None:
    keys = store.identity.rotate(DAY_S, NOW_S)
    (state_dir / PREVIOUS_NAME).unlink()
    with Store.open(state_dir) as again:
        assert ids(again.identity.keys) == (keys.current.id, None)


def test_files_of_other_keys_are_not_taken_for_ours(store: Store, state_dir: Path) -> None:
    keys = store.identity.rotate(DAY_S, NOW_S)
    save_key(state_dir / PREVIOUS_NAME, OTHER_GATEWAY.private_key)
    with Store.open(state_dir) as again:
        assert ids(again.identity.keys) == (keys.current.id, None)
    save_key(state_dir / KEY_NAME, OTHER_GATEWAY.private_key)
    with pytest.raises(IdentityUnusable, match="restore key and database from the same backup"):
        Store.open(state_dir)


def test_tokens_carry_the_key_before_if_it_counts_for_all_of_their_life(store: Store) -> None:
    keys = store.identity.rotate(10 * DAY_S, NOW_S)
    assert keys.previous is not None

    def token(life_s: float) -> bytes:
        return store.tokens.create(life_s, 1, ["*"], {}, NOW_S)[0].fingerprint

    assert token(DAY_S) == keys.previous.fingerprint
    assert token(11 * DAY_S) == keys.current.fingerprint


def test_a_key_changed_while_the_one_before_is_being_forgotten_keeps_its_overlap(
    store: Store, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = store.identity.rotate(DAY_S, NOW_S).current
    database, write = store.identity._database, store.identity._database.write

    def write_later() -> Any:
        monkeypatch.setattr(database, "write", write)
        with Store.open(state_dir) as other:
            other.identity.rotate(DAY_S, NOW_S + DAY_S)
        return write()

    monkeypatch.setattr(database, "write", write_later)
    assert not store.identity.forget_previous(NOW_S + DAY_S)
    assert ids(store.identity.keys)[1] == second.id == held(state_dir / PREVIOUS_NAME)


def test_keys_that_a_killed_process_was_writing_are_removed_with_the_next_change(
    store: Store, state_dir: Path
) -> None:
    for name in (".gateway.key.0123456789abcdef", ".gateway.next.key.0123456789abcdef"):
        save_key(state_dir / name, OTHER_GATEWAY.private_key)
    store.identity.rotate(DAY_S, NOW_S)
    assert {path.name for path in state_dir.glob("*.key*")} == {KEY_NAME, PREVIOUS_NAME}
    assert not list(state_dir.glob(".*key*"))
