"""Commands that work on a state directory, run in this process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.resources import register

Run = Callable[..., Result]
Register = Callable[[typer.Typer], None]

_parser_of = cache(typer.main.get_command)
"""To put one together takes as long as most commands."""


@cache
def _app(*registers: Register) -> typer.Typer:
    app = typer.Typer()
    for each in registers:
        each(app)
    return app


def running(state: Path, monkeypatch: pytest.MonkeyPatch, *more: Register) -> Run:
    """``trunkline ARGUMENTS`` with the state directory in the environment, and with ``more`` commands."""
    app = _app(register, *more)
    monkeypatch.setattr("typer.testing._get_command", _parser_of)
    monkeypatch.setenv("TRUNKLINE_STATE", str(state))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))
