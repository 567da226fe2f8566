"""Opening the state: made once, by whoever comes first; refused clearly when it cannot be trusted."""

import os
import stat
from pathlib import Path

import pytest

from gateway.storage import DATABASE_NAME, KEY_NAME, Store
from gateway.storage.errors import IdentityUnusable, StateMissing, StateUnwritable
from gateway.storage.locks import ServerLock, running_gateway
from shared.identity import save_key
from tests.support.identities import OTHER_GATEWAY
from tests.support.race import race

root_only = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_opening_makes_a_directory_and_files_for_the_owner_only(state_dir: Path) -> None:
    old = os.umask(0)
    try:
        with Store.open(state_dir) as store:
            store.keys.create("a", "default", 1.0)
            modes = {path.name: mode_of(path) for path in state_dir.iterdir()}
    finally:
        os.umask(old)
    assert mode_of(state_dir) == 0o700
    assert set(modes) >= {DATABASE_NAME, KEY_NAME, f"{DATABASE_NAME}-wal"}
    assert set(modes.values()) == {0o600}


def test_a_database_that_others_could_read_is_closed_to_them(state_dir: Path) -> None:
    Store.open(state_dir).close()
    (state_dir / DATABASE_NAME).chmod(0o644)
    Store.open(state_dir).close()
    assert mode_of(state_dir / DATABASE_NAME) == 0o600


def test_what_was_stored_is_there_after_reopening(state_dir: Path) -> None:
    with Store.open(state_dir) as store:
        fingerprint = store.gateway_identity.fingerprint
        token, _ = store.tokens.create(60, 1, ["*"], {}, 1.0)
    with Store.open(state_dir) as store:
        assert store.gateway_identity.fingerprint == fingerprint
        assert [record.id for record in store.tokens.list()] == [token.id_text]


def test_processes_that_open_a_new_state_at_once_agree_on_the_key(state_dir: Path) -> None:
    printed = race(
        "from pathlib import Path; from gateway.storage import Store",
        "with Store.open(Path(sys.argv[1])) as store:\n"
        "    store.tokens.create(60, 1, ['*'], {}, 1.0)\n"
        "    print(store.gateway_identity.id)",
        str(state_dir),
        runners=4,
    )
    assert len(set(printed)) == 1
    with Store.open(state_dir) as store:
        assert store.gateway_identity.id == printed[0].strip()
        assert len(store.tokens.list()) == 4


def test_a_key_that_was_put_there_beforehand_is_taken(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    save_key(state_dir / KEY_NAME, OTHER_GATEWAY.private_key)
    with Store.open(state_dir) as store:
        assert store.gateway_identity.id == OTHER_GATEWAY.id


def test_a_lost_key_is_not_replaced_in_silence(state_dir: Path) -> None:
    Store.open(state_dir).close()
    (state_dir / KEY_NAME).unlink()
    with pytest.raises(IdentityUnusable, match=r"gateway\.key is gone.*restore it from a backup"):
        Store.open(state_dir)
    assert not (state_dir / KEY_NAME).exists()


def test_a_key_of_another_gateway_is_refused(state_dir: Path) -> None:
    Store.open(state_dir).close()
    save_key(state_dir / KEY_NAME, OTHER_GATEWAY.private_key)
    with pytest.raises(IdentityUnusable, match="another key"):
        Store.open(state_dir)


def test_a_key_that_others_can_read_is_refused(state_dir: Path) -> None:
    Store.open(state_dir).close()
    (state_dir / KEY_NAME).chmod(0o644)
    with pytest.raises(IdentityUnusable, match="chmod 600"):
        Store.open(state_dir)


def test_a_state_that_must_exist_is_not_made(state_dir: Path) -> None:
    with pytest.raises(StateMissing, match="trunkline token create"):
        Store.open(state_dir, create=False)
    assert not state_dir.exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnwritable, match="cannot make the state directory"):
        Store.open(tmp_path / "file" / "state")


def test_the_data_version_moves_with_every_change_of_another_store(store: Store, state_dir: Path) -> None:
    before = store.changes.read()
    assert store.changes.read() == before
    with Store.open(state_dir) as other:
        other.keys.create("a", "default", 1.0)
    assert store.changes.read() != before


def test_the_data_version_moves_with_changes_of_the_same_store(store: Store) -> None:
    before = store.changes.read()
    store.keys.create("a", "default", 1.0)
    assert store.changes.read() != before


@root_only
def test_what_root_makes_in_another_users_directory_is_given_to_that_user(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    os.chown(state_dir, 12345, 12345)
    with Store.open(state_dir) as store:
        store.keys.create("a", "default", 1.0)
        assert {path.stat().st_uid for path in state_dir.iterdir()} == {12345}


def test_closing_twice_does_nothing(store: Store) -> None:
    store.close()
    store.close()


@root_only
def test_a_key_that_root_changes_in_another_users_directory_is_that_users(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    os.chown(state_dir, 12345, 12345)
    with Store.open(state_dir) as store:
        store.identity.rotate(60.0, 1.0)
        assert {path.stat().st_uid for path in state_dir.iterdir()} == {12345}


@root_only
def test_root_gives_away_nothing_that_a_link_leads_to(state_dir: Path, tmp_path: Path) -> None:
    state_dir.mkdir(parents=True)
    os.chown(state_dir, 12345, 12345)
    secret = tmp_path / "secret"
    secret.touch()
    (state_dir / "gateway.stolen.key").symlink_to(secret)
    Store.open(state_dir).close()
    assert secret.stat().st_uid == 0


def test_a_database_behind_a_link_is_used_as_it_is_and_not_made(state_dir: Path, tmp_path: Path) -> None:
    state_dir.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.db"
    (state_dir / DATABASE_NAME).symlink_to(elsewhere)
    with pytest.raises(StateUnwritable):
        Store.open(state_dir)
    assert not elsewhere.exists()
    elsewhere.touch(mode=0o644)
    elsewhere.chmod(0o644)
    Store.open(state_dir).close()
    assert mode_of(elsewhere) == 0o644


def test_a_supervisor_keeps_other_gateways_away_and_its_workers_serve_together(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    lock = ServerLock(state_dir)
    with Store.open(state_dir, serve=True, locked=True), Store.open(state_dir, serve=True, locked=True):
        assert running_gateway(state_dir) is not None
    assert running_gateway(state_dir) is not None, "workers that end leave the lock to the supervisor"
    lock.close()
    assert running_gateway(state_dir) is None
