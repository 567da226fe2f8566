"""Commands that work on a state directory, run in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import (
    agents as cli_agents,
)
from gateway.cli import (
    identity as cli_identity,
)
from gateway.cli import (
    keys as cli_keys,
)
from gateway.cli import (
    tenants as cli_tenant,
)
from gateway.cli import (
    tokens as cli_tokens,
)

Run = Callable[..., Result]


def running(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``trunkline ARGUMENTS`` with the state directory in the environment."""
    app = typer.Typer()
    for module in (cli_tokens, cli_keys, cli_agents, cli_identity, cli_tenant):
        module.register(app)
    monkeypatch.setenv("TRUNKLINE_STATE", str(state))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))
