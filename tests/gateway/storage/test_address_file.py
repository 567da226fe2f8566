"""A state directory knows the server that has its store, and no password."""

import stat
from pathlib import Path

import pytest

from gateway.domain.state_dir import ADDRESS_NAME, DATABASE_NAME
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.address_file import note_address, noted_address
from gateway.storage.errors import StateCorrupt, StateError


def test_an_address_is_noted_for_the_owner_only_and_without_its_password(tmp_path: Path) -> None:
    given = StoreAddress("postgresql://u:s3cret@h/d", tmp_path / "k", tmp_path / "p", 5.0)
    note_address(tmp_path, StoreAddress("postgresql://before/d"))
    note_address(tmp_path, given)
    path = tmp_path / ADDRESS_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "s3cret" not in path.read_text()
    assert noted_address(tmp_path) == StoreAddress("postgresql://u@h/d", tmp_path / "k", tmp_path / "p")


def test_workers_that_note_it_at_once_are_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = StoreAddress("postgresql://u@h/first"), StoreAddress("postgresql://u@h/second")
    replace = Path.replace

    def after_another(fresh: Path, path: Path) -> Path:
        monkeypatch.undo()
        note_address(tmp_path, second)
        return replace(fresh, path)

    monkeypatch.setattr(Path, "replace", after_another)
    note_address(tmp_path, first)
    assert noted_address(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [ADDRESS_NAME]


def test_where_nothing_is_noted_there_is_no_address(tmp_path: Path) -> None:
    assert noted_address(tmp_path) is None
    assert noted_address(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"url": "x", "cluster_key": null, "password_file": null}'])
def test_a_note_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / ADDRESS_NAME).write_text(text)
    with pytest.raises(StateCorrupt, match="names no store"):
        noted_address(tmp_path)


def test_commands_on_the_directory_of_a_gateway_work_on_its_store(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with Store.open(tmp_path, address=postgres_address, serve=True) as gateway:
        with Store.open(tmp_path, create=False) as command:
            command.keys.create("made", "t", 1.0)
            assert command.gateway_identity.id == gateway.gateway_identity.id
        assert [key.name for key in gateway.keys.list()] == ["made"]
    with pytest.raises(StateError, match="give it with --store; to begin anew"):
        Store.open(tmp_path, serve=True)
    assert not (tmp_path / DATABASE_NAME).exists()
