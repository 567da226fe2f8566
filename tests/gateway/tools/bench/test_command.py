"""What is told before anything is measured; tests/integration/test_bench.py measures."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gateway.tools.bench import register


@pytest.mark.parametrize(
    ("words", "option", "says"),
    [
        (("--json", "gone/figures.json"), "--json", "there is no such directory"),
        (("--url", "http://127.0.0.1:0"), "URL", "no base URL"),
        (("--prompts", "gone.txt"), "--prompts", "cannot be read"),
        (("--body", "[1]"), "--body", "no JSON object"),
    ],
)
def test_what_cannot_be_done_is_wrong_usage_before_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str], option: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    register(app)
    environment = {"TERM": "dumb", "COLUMNS": "200"}
    result = CliRunner().invoke(app, ["--model", "m", "--duration", "60", *words], env=environment)
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"Invalid value for {option}: " in said
    assert says in said
