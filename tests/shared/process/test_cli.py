"""The root command gathers what the packages register."""

import errno
import io
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import pytest
import typer
from typer.testing import CliRunner

from shared.process import cli
from shared.process.build import describe_build

_seen: list[str] = []


def commands(root: cli.RootGroup) -> None:
    """What an installed package offers: found by its path ``tests.shared.process.test_cli:commands``."""

    @root.command()
    def greet(name: str) -> None:
        _seen.append(name)

    root.later("not_there_yet", {"wave": "Wave to somebody.", "nod": "Nod."})


def register(app: typer.Typer) -> None:
    """What a module offers whose commands are imported when they are used."""

    @app.command("wave")
    def wave(name: str, twice: bool = False) -> None:
        """Wave to somebody, once or twice."""
        _seen.extend([name] * (2 if twice else 1))

    nods = typer.Typer(no_args_is_help=True, help="Nod.")
    nods.command("slowly")(lambda: _seen.append("nod"))
    app.add_typer(nods, name="nod")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    _seen.clear()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    entry = EntryPoint("greeter", f"{__name__}:commands", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry, entry])
    return cli.build()


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that is imported late can be imported."""
    module = ModuleType("not_there_yet")
    module.register = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "not_there_yet", module)


def test_commands_are_listed_without_their_modules(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert "Wave to somebody." in shown.stdout
    for name in ("TRUNKLINE_URL", "TRUNKLINE_KEY", "TRUNKLINE_STATE", "--install-completion"):
        assert name in shown.stdout


@pytest.mark.usefixtures("there")
def test_a_command_has_its_own_help_and_options_once_it_is_used(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["wave", "ada", "--twice"]).exit_code == 0
    assert CliRunner().invoke(app, ["nod", "slowly"]).exit_code == 0
    assert _seen == ["ada", "ada", "nod"]
    assert "--twice" in CliRunner().invoke(app, ["wave", "-h"]).stdout
    assert "slowly" in CliRunner().invoke(app, ["nod", "--help"]).stdout


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("trunkline wa", "wave"), ("trunkline nod ", "slowly"), ("trunkline wave --t", "--twice")],
)
def test_a_shell_completes_commands_and_options(app: typer.Typer, typed: str, offered: str) -> None:
    words = {"_TRUNKLINE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    result = CliRunner().invoke(app, [], env=words, prog_name="trunkline")
    assert result.stdout.split() == [offered]


def test_a_command_that_is_misspelt_is_told_what_it_may_have_meant(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["wawe"])
    assert result.exit_code == 2
    assert "Did you mean 'wave'?" in result.stderr


def test_a_registered_command_runs(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["greet", "ada"]).exit_code == 0
    assert _seen == ["ada"]


def test_the_version_is_the_distributions(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--version"])
    first, build = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, f"trunkline {version('trunkline')}")
    assert build == describe_build()


def test_wrong_usage_exits_with_2_and_says_what_is_wrong(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.stderr


def _opened_full(buffering: int) -> BinaryIO:
    return open("/dev/full", "wb", buffering)


def _closed_by_its_reader(buffering: int) -> BinaryIO:
    reads, writes = os.pipe()
    os.close(reads)
    return open(writes, "wb", buffering)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device here")
@pytest.mark.parametrize("shows", [print, typer.echo])
@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize(
    ("opened", "said"),
    [
        (_opened_full, "trunkline: this cannot be written: No space left on device\n"),
        (_closed_by_its_reader, ""),
    ],
)
def test_what_cannot_be_printed_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shows: Callable[[str], None],
    buffering: int,
    opened: Callable[[int], BinaryIO],
    said: str,
) -> None:
    monkeypatch.setattr(cli, "build", lambda: lambda: shows("found"))
    with io.TextIOWrapper(opened(buffering), write_through=not buffering) as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device", "store.db"), OSError(errno.EIO, "Broken")]
)
def test_a_command_that_fails_otherwise_is_not_taken_for_one_that_cannot_print(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "build", lambda: fails)
    with pytest.raises(OSError) as raised:  # noqa: PT011
        cli.main()
    assert raised.value is error
