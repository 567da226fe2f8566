"""The backup beside the database: fresh after changes that matter, and what a damaged state goes on from."""

import contextlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.storage import DATABASE_NAME, Store, backup
from gateway.storage.errors import StateBusy, StateCorrupt, StateMissing
from gateway.storage.locks import Holding
from gateway.storage.sqlite import backup_path, copies, restoring_path


@pytest.fixture
def path(state_dir: Path) -> Path:
    """A database of one key, with a backup that has it, and another key made later."""
    with Store.open(state_dir) as store:
        store.keys.create("early", "t", 1.0)
        store.backup.keep(0.0)
        store.keys.create("late", "t", 1.0)
    return state_dir / DATABASE_NAME


def damage(path: Path) -> bytes:
    """Overwrite every page but the first; the damaged content."""
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    return bytes(content)


def names(state_dir: Path, *, serve: bool = True) -> set[str]:
    with Store.open(state_dir, serve=serve) as store:
        return {key.name for key in store.keys.list()}


def set_aside(path: Path) -> list[Path]:
    return [
        found
        for found in path.parent.glob(f"{DATABASE_NAME}.damaged-*")
        if found.suffix not in ("-wal", "-shm")
    ]


@pytest.mark.parametrize("how", ["pages", "header", "cut", "empty"])
def test_a_damaged_database_is_set_aside_and_the_backup_takes_its_place(path: Path, how: str) -> None:
    if how == "pages":
        damage(path)
    else:
        content = path.read_bytes()
        path.write_bytes({"header": b"\0" * 100 + content[100:], "cut": content[:9000], "empty": b""}[how])
    content = path.read_bytes()
    with capture_logs() as logs:
        assert names(path.parent) == {"early"}
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("state_restored_from_backup", "error")
    assert Path(line["set_aside"]).read_bytes() == content
    with capture_logs() as logs:
        assert names(path.parent) == {"early"}
    assert logs == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_sound_database_is_left_as_it_is(path: Path) -> None:
    with capture_logs() as logs:
        assert names(path.parent) == {"early", "late"}
    assert logs == []
    assert set_aside(path) == []


def test_without_a_backup_a_damaged_database_is_refused_and_nothing_is_changed(path: Path) -> None:
    backup_path(path).unlink()
    content = damage(path)
    with pytest.raises(StateCorrupt, match=r"is damaged .* there is no gateway\.db\.bak .* join again"):
        Store.open(path.parent, serve=True)
    assert path.read_bytes() == content
    assert set_aside(path) == []


def test_with_a_damaged_backup_a_damaged_database_is_refused(path: Path) -> None:
    damage(backup_path(path))
    content = damage(path)
    with pytest.raises(StateCorrupt, match=r"nor can gateway\.db\.bak"):
        Store.open(path.parent, serve=True)
    assert path.read_bytes() == content


def test_a_command_restores_nothing(path: Path) -> None:
    content = damage(path)
    with pytest.raises(StateCorrupt, match="is damaged"):
        names(path.parent, serve=False)
    assert path.read_bytes() == content
    assert set_aside(path) == []


def test_nothing_is_restored_while_another_has_the_state_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "BUSY_TIMEOUT_S", 0.01)
    with Store.open(path.parent):
        path.write_bytes(b"x" * 20_000)
        with pytest.raises(StateCorrupt, match="another process has it open"):
            Store.open(path.parent, serve=True)
    assert set_aside(path) == []


def test_a_state_that_is_being_restored_opens_for_nobody_else(tmp_path: Path) -> None:
    one, other = Holding(tmp_path / "lock"), Holding(tmp_path / "lock")
    assert one.alone(0.0)
    with pytest.raises(StateBusy, match="is being restored"):
        other.share(0.0)
    one.share(0.0)
    other.share(0.0)
    assert not one.alone(0.0)
    for holding in (one, other):
        holding.close()


def test_a_restoring_that_was_interrupted_is_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)

    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", power_cut)
        with pytest.raises(KeyboardInterrupt):
            Store.open(path.parent, serve=True)
    path.unlink()
    with pytest.raises(StateCorrupt, match="half restored: start the gateway"):
        Store.open(path.parent)
    assert names(path.parent) == {"early"}
    assert not restoring_path(path).exists()


def test_a_backup_follows_changes_of_rights_soon_and_others_daily(store: Store) -> None:
    saved = backup_path(store.state_dir / DATABASE_NAME)

    def made(now_s: float) -> bool:
        saved.unlink(missing_ok=True)
        store.backup.keep(now_s)
        return saved.exists()

    assert made(0.0)
    store.keys.create("a", "t", 1.0)
    assert not made(backup.SOON_S - 1)
    assert made(backup.SOON_S)
    assert not made(backup.SOON_S * 2)
    token, _ = store.tokens.create(60, 1, ["*"], {}, 1.0)
    assert made(backup.SOON_S * 3)
    store.tokens.revoke(token.id_text, 2.0)
    assert made(backup.SOON_S * 4)
    assert not made(backup.SOON_S * 4 + backup.DAILY_S - 1)
    assert made(backup.SOON_S * 4 + backup.DAILY_S)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_a_damaged_database_does_not_overwrite_its_backup(path: Path) -> None:
    good = backup_path(path).read_bytes()
    damage(path)
    with contextlib.closing(sqlite3.connect(path)) as source, pytest.raises(StateCorrupt, match="is damaged"):
        copies.make_backup(path, source)
    assert backup_path(path).read_bytes() == good
    assert not list(path.parent.glob("*-new"))


@pytest.mark.parametrize("log_files", [False, True])
def test_a_missing_database_is_restored_from_its_backup(path: Path, log_files: bool) -> None:
    path.unlink()
    for name in ("-wal", "-shm"):
        if log_files:
            path.with_name(path.name + name).write_bytes(b"of the database that was here")
    with capture_logs() as logs:
        assert names(path.parent) == {"early"}
    assert [(line["event"], line["damage"], line["set_aside"]) for line in logs] == [
        ("state_restored_from_backup", "it is missing", None)
    ]
    assert names(path.parent, serve=False) == {"early"}


def test_a_missing_database_with_a_damaged_backup_is_refused(path: Path) -> None:
    path.unlink()
    damage(backup_path(path))
    with pytest.raises(StateCorrupt, match=r"it is missing.* nor can gateway\.db\.bak"):
        Store.open(path.parent, serve=True)
    assert not path.exists()


def test_a_state_whose_files_were_moved_away_is_begun_anew(path: Path) -> None:
    for each in (path, backup_path(path)):
        each.rename(each.with_name(f"old-{each.name}"))
    with capture_logs() as logs:
        assert names(path.parent) == set()
    assert logs == []


@pytest.mark.parametrize("create", [False, True])
def test_a_command_begins_no_state_anew_whose_database_is_missing(path: Path, create: bool) -> None:
    path.unlink()
    with pytest.raises(StateMissing, match=r"is missing: start the gateway, .*gateway\.db\.bak"):
        Store.open(path.parent, create=create)
    assert not path.exists()


def test_a_database_deleted_under_a_gateway_is_noticed_once_and_nothing_of_it_is_lost(path: Path) -> None:
    state_dir = path.parent
    with Store.open(state_dir, serve=True) as store:
        store.backup.keep(0.0)
        for each in state_dir.glob(f"{DATABASE_NAME}*"):
            each.unlink()
        with capture_logs() as logs:
            store.backup.keep(1.0)
            store.keys.create("later", "t", 1.0)
            store.backup.keep(2.0)
        assert [(line["event"], line["log_level"]) for line in logs] == [("state_deleted", "error")]
        for create in (False, True):
            with pytest.raises(
                StateMissing, match=rf"was deleted while a gateway runs on it \(process {os.getpid()} "
            ):
                Store.open(state_dir, create=create)
        assert not path.exists()
        store.keys.create("last", "t", 1.0)
        store.backup.last()
    with capture_logs() as logs:
        assert names(state_dir) == {"early", "late", "later", "last"}
    assert [line["event"] for line in logs] == ["state_restored_from_backup"]


def test_another_database_in_its_place_is_noticed_too(path: Path) -> None:
    with Store.open(path.parent, serve=True) as store:
        store.backup.keep(0.0)
        backup_path(path).rename(path)
        with capture_logs() as logs:
            store.backup.keep(1.0)
        assert [line["event"] for line in logs] == ["state_deleted"]


def test_no_connection_makes_a_database_where_one_was_deleted(path: Path) -> None:
    with Store.open(path.parent, serve=True) as store:
        path.unlink()
        with store._database.read(), pytest.raises(StateMissing, match="deleted while it was in use"):
            store.keys.list()
        assert not path.exists()
