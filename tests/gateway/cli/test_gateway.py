import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from gateway import cli
from gateway.cli import gateway as cli_gateway
from gateway.cli.gateway import FIRST_KEY_FILE, first_key
from gateway.domain.scopes import AdminRole
from gateway.runtime import machine
from gateway.runtime.config import load
from gateway.storage import Store
from gateway.storage.errors import StateError
from gateway.storage.keys import digest_of
from shared.process.cli import RootGroup


def run(*arguments: str, **environment: str) -> Result:
    root = RootGroup()
    cli.commands(root)
    return CliRunner().invoke(root, arguments, env=environment)


def test_every_command_of_the_package_is_there() -> None:
    shown = run("--help").output
    for name in ("gateway", "token", "key", "agents", "quickstart"):
        assert name in shown


def test_help_says_the_options_and_an_example() -> None:
    shown = run("gateway", "--help").output
    for text in ("--listen", "--state", "--behind-tls-terminator", "--log-format", "Example:"):
        assert text in shown


def test_the_effective_settings_are_printed() -> None:
    result = run("gateway", "--listen", "127.0.0.1:1", "config", "--show", TRUNKLINE_GATEWAY_DRAIN_S="3")
    assert result.exit_code == 0
    assert 'listen = "127.0.0.1:1"  # flag --listen' in result.stdout
    assert "drain_s = 3.0  # environment" in result.stdout


def test_settings_are_checked_without_showing_them(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("drain_s = 4\n")
    result = run("gateway", "config", "--config", str(file))
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listen", "0.0.0.0:8700"),
        ("--listen", "nowhere"),
        ("--log-level", "loud"),
        ("--config", "/nonexistent.toml"),
        ("--tls-cert", "/nonexistent.pem"),
    ],
)
def test_settings_that_cannot_be_right_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    result = run("gateway", *arguments)
    assert result.exit_code == 2
    assert "trunkline gateway: " in result.stderr


def test_a_state_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = subprocess.run(
        [sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", "--state", str(blocked / "state")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert str(blocked) in process.stderr


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def announced(store: Store, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    """What a gateway says when it listens."""
    said: list[str] = []
    monkeypatch.setattr(cli_gateway, "note", said.append)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    cli_gateway.announce("http://127.0.0.1:8700", store, load({}, None, {}).settings)
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

    monkeypatch.setattr(cli_gateway, "write_secret", full)
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


@pytest.mark.parametrize(("limit", "lines"), [(20_000, 1), (30_000, 0), (None, 0)])
def test_too_few_open_files_are_told_in_a_sentence_and_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, lines: int
) -> None:
    monkeypatch.setattr(machine, "raise_file_limit", lambda wanted: limit)
    with capture_logs() as logs:
        say = machine.make_room(16_384, 4_096)
        assert logs == []
        say()
    assert len(logs) == lines
    for line in logs:
        assert line["event"].startswith(
            "The limit of open files is 20000, which is less than 16384 connections"
        )
        assert (line["code"], line["limit"]) == ("few_descriptors", 20_000)


def test_a_second_gateway_on_one_state_refuses_to_start_and_names_the_first(store: Store) -> None:
    with Store.open(store.state_dir, serve=True):
        process = subprocess.run(
            [sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", "--state", str(store.state_dir)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.splitlines()
    assert line.startswith(
        f"trunkline: a gateway runs on {store.state_dir} already (process {os.getpid()} on "
    )


def test_the_first_key_is_made_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        key = first_key(store)
        assert key is not None
        assert key.startswith("sk-tl-")
        assert first_key(store) is None
        store.keys.revoke("first", 0.0)
        assert first_key(store) is None
