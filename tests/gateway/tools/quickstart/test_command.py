"""What quickstart says before it starts anything."""

import pytest
import typer
from typer.testing import CliRunner

from gateway.tools.quickstart import command


def test_without_the_packages_of_its_model_it_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "torch" else object())
    app = typer.Typer()
    command.register(app)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("pip install 'trunkline[torch]'")
    assert "\n" not in result.stderr.strip()
