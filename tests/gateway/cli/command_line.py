"""Commands that work on a state directory, run in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.resources import register

Run = Callable[..., Result]


def running(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``trunkline ARGUMENTS`` with the state directory in the environment."""
    app = typer.Typer()
    register(app)
    monkeypatch.setenv("TRUNKLINE_STATE", str(state))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))
