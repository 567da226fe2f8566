import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway import cli
from gateway.cli_gateway import first_key
from gateway.store import Store
from shared.cli import Root


def run(*arguments: str, **environment: str) -> Result:
    root = Root()
    cli.commands(root)
    return CliRunner().invoke(root, arguments, env=environment)


def test_every_command_of_the_package_is_there() -> None:
    shown = run("--help").output
    for name in ("gateway", "token", "key", "agents", "quickstart"):
        assert name in shown


def test_help_says_the_options_and_an_example() -> None:
    shown = run("gateway", "--help").output
    for text in ("--listen", "--state", "--behind-tls-terminator", "example:"):
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


def test_the_first_key_is_made_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        key = first_key(store)
        assert key is not None
        assert key.startswith("sk-tl-")
        assert first_key(store) is None
        store.keys.revoke("first", 0.0)
        assert first_key(store) is None
