"""``trunkline whatif`` against files, and against a server that says what a gateway says."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.tools.whatif.command import register
from gateway.tools.whatif.recording import export, write_facts
from tests.gateway.cli.test_live import KEY, Server, server
from tests.gateway.tools.whatif.kit import deployment, fact, fleet_json, recording
from tests.gateway.tools.whatif.test_run import busy

__all__ = ["server"]


def run(*arguments: str, url: str = "http://127.0.0.1:1") -> Result:
    app = typer.Typer()
    register(app)
    environment = {"TRUNKLINE_URL": url, "TRUNKLINE_KEY": KEY, "TERM": "dumb", "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.jsonl"
    write_facts(path, export(recording(busy()), fleet_json()))
    return path


def test_facts_are_replayed_here_as_text_and_as_json(facts: Path) -> None:
    arguments = ("--facts", str(facts), "--add", "2*l4@m,slots=8,tokens_per_s=40,gpu_hour=0.8")
    shown = run(*arguments)
    assert shown.exit_code == 0, shown.stderr
    assert "What is different: 2 more deployments of m on l4, 8 slots each." in shown.stdout
    assert "first token p90" in shown.stdout
    assert "As you said: 40 tokens/s for one request alone." in shown.stdout
    found = json.loads(run(*arguments, "--json").stdout)
    assert found["total"]["after"]["slots"] == 18


def test_without_changes_only_the_error_of_the_simulation_is_shown(facts: Path) -> None:
    shown = run("--facts", str(facts))
    assert shown.exit_code == 0, shown.stderr
    heads = next(line for line in shown.stdout.splitlines() if "MEASURED" in line)
    assert heads.split() == ["MEASURED", "SIMULATED", "AS", "NOW", "ERROR"]
    assert "WITH THE CHANGES" not in shown.stdout
    with_changes = run("--facts", str(facts), "--scale", "2").stdout
    assert "WITH THE CHANGES" in with_changes
    assert "ERROR" not in with_changes


def test_a_rate_of_few_tokens_is_not_shown_as_none(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    hour = recording([fact(3590.0, tokens_out=900)], span_s=3600.0)
    write_facts(path, export(hour, fleet_json()))
    shown = run("--facts", str(path)).stdout
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("tokens written a second"))
    assert row[4] == "0.25"


def test_who_names_no_model_where_several_are_served_is_shown_how(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    both = [deployment(1), deployment(2, model="n")]
    write_facts(path, export(recording(busy()), fleet_json(*both)))
    refused = run("--facts", str(path), "--add", "2*l4")
    assert refused.exit_code == 2
    assert "2*l4@m" in " ".join(refused.stderr.replace("│", " ").split())
    assert run("--facts", str(path), "--add", "2*l4@m").exit_code == 0


def test_the_examples_of_the_help_name_the_model() -> None:
    """They work however many models are served."""
    shown = " ".join(run("--help").stdout.split())
    examples = shown.count("Example: trunkline whatif"), shown.count("--add '2*l4@MODEL'")
    assert examples[0] >= 4
    assert "--add '2*l4' " not in shown
    assert examples[1] >= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--add", "two"), "nothing is known of a device"),
        (("--add", "2*l4,colour=red"), "no member is called 'colour'"),
        (("--add", "2*l4,slots=x"), "slots is a number"),
        (("--add", "2*l4@x"), "nothing serves a model 'x' now"),
        (("--remove", "1*any"), "no deployment of m would be left"),
        (("--remove", "1*any,slots=2"), "members that only --add takes"),
        (("--slots", "m"), "'m' is not MODEL=N"),
        (("--policy", "best"), "no policy is called 'best'"),
        (("--minutes", "99999"), "minutes must be less than or equal to 1440"),
    ],
)
def test_what_cannot_be_is_wrong_usage(facts: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run("--facts", str(facts), *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_a_file_that_holds_no_facts_is_wrong_usage(tmp_path: Path) -> None:
    assert run("--facts", str(tmp_path / "none")).exit_code == 2


def test_facts_of_a_gateway_are_written_into_a_file(server: Server, tmp_path: Path) -> None:
    exported: dict[str, Any] = export(recording(busy()), fleet_json())
    server.answers["GET", "/admin/whatif/facts?minutes=60"] = [(200, exported)]
    path = tmp_path / "facts.jsonl"
    result = run("--export", str(path), url=server.url)
    assert result.exit_code == 0, result.stderr
    assert len(path.read_text().splitlines()) == 61
    assert run("--facts", str(path), "--scale", "2").exit_code == 0
