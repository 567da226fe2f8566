"""The root command gathers what the packages register."""

from importlib.metadata import EntryPoint, version

import pytest
import typer
from typer.testing import CliRunner

from shared import cli

_seen: list[str] = []


def register(app: typer.Typer) -> None:
    """What an installed package offers: found by its path ``tests.shared.test_cli:register``."""

    @app.command()
    def greet(name: str) -> None:
        _seen.append(name)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    entry = EntryPoint("greeter", f"{__name__}:register", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry, entry])
    return cli.build()


def test_a_registered_command_runs(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["greet", "ada"]).exit_code == 0
    assert _seen == ["ada"]


def test_the_version_is_the_distributions(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"trunkline {version('trunkline')}\n")


def test_wrong_usage_exits_with_2_and_says_what_is_wrong(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.stderr
