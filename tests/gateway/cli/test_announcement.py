"""What a gateway says when it serves."""

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import announcement
from gateway.cli.announcement import FIRST_KEY_FILE, announce, first_key
from gateway.domain.scopes import AdminRole
from gateway.runtime.config import load
from gateway.storage import Store
from gateway.storage.errors import StateError
from gateway.storage.keys import digest_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def announced(store: Store, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    """What a gateway says when it listens."""
    said: list[str] = []
    monkeypatch.setattr(announcement, "note", said.append)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    announce("http://127.0.0.1:8700", store, load({}, None, {}).settings)
    return "\n".join(said)


def test_the_first_key_is_shown_on_a_terminal_and_nowhere_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = announced(store, monkeypatch, terminal=True)
    assert "sk-tl-" in said
    assert store.keys.list()[0].hint in said
    assert not (store.state_dir / FIRST_KEY_FILE).exists()
    assert "API key" not in announced(store, monkeypatch, terminal=True)


def test_without_a_terminal_the_first_key_is_in_a_file_for_its_owner_that_one_line_names(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.state_dir / FIRST_KEY_FILE
    path.write_text("of a state that was here before")
    said = announced(store, monkeypatch, terminal=False)
    assert "sk-tl-" not in said
    (line,) = [line for line in said.splitlines() if "API key" in line]
    assert str(path) in line
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    record = store.keys.list()[0]
    assert digest_of(path.read_text().strip()) == record.digest
    assert record.role is AdminRole.ADMIN
    path.unlink()
    assert "API key" not in announced(store, monkeypatch, terminal=False)
    assert not path.exists()


def test_a_first_key_that_cannot_be_written_down_is_not_shown_either(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(announcement, "write_secret", full)
    said = announced(store, monkeypatch, terminal=False)
    assert "sk-tl-" not in said
    assert "No space left on device); make one with: trunkline key create --role admin" in said


def test_a_store_that_is_away_when_the_gateway_listens_does_not_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> bool:
        raise StateError("cannot reach PostgreSQL at 127.0.0.1:1")

    monkeypatch.setattr(store.keys, "is_empty", away)
    said = announced(store, monkeypatch, terminal=False)
    assert "listens     http://127.0.0.1:8700" in said
    assert "API key     not known whether there is one: cannot reach PostgreSQL at 127.0.0.1:1" in said


def test_the_first_key_is_made_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        key = first_key(store)
        assert key is not None
        assert key.startswith("sk-tl-")
        assert first_key(store) is None
        store.keys.revoke("first", 0.0)
        assert first_key(store) is None
