import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from gateway import cli
from gateway.runtime import machine
from gateway.storage import Store
from shared.process.cli import RootGroup
from tests.support.forks import trunkline


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


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_that_is_asked_for_while_it_starts_does_not_end_it(tmp_path: Path, workers: str) -> None:
    """It waits for its settings, and ends because of what they are."""
    settings = tmp_path / "gateway.toml"
    os.mkfifo(settings)
    command = (sys.executable, "-m", "shared.process.cli", "gateway", "--workers", workers, "--config")
    with subprocess.Popen([*command, str(settings)], stderr=subprocess.PIPE, text=True) as process:
        with settings.open("w") as file:
            process.send_signal(signal.SIGHUP)
            file.write("nothing = 1")
        _, said = process.communicate()
    assert (process.returncode, "there is no such key" in said) == (2, True)


def test_a_state_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = trunkline("gateway", "--listen", "127.0.0.1:0", "--state", str(blocked / "state"))
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert str(blocked) in process.stderr


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


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
        process = trunkline("gateway", "--listen", "127.0.0.1:0", "--state", str(store.state_dir))
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.splitlines()
    assert line.startswith(
        f"trunkline: a gateway runs on {store.state_dir} already (process {os.getpid()} on "
    )
