"""``trunkline config``."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shared.process.cli import build


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("TRUNKLINE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # what runs on this machine as root is not shown


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["config", *arguments])


def test_both_programs_are_shown_with_the_sources_of_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[store]\nurl = "postgresql://me:hush@db/trunkline"\n')
    monkeypatch.setenv("TRUNKLINE_GATEWAY_HTTP__BODY_BYTES", "4096")
    monkeypatch.setenv("TRUNKLINE_AGENT_ENGINE_KEY", "hush")
    found = json.loads(_run("--json", "--on", "gateway", "--on", "agent", "--config", str(file)).stdout)
    gateway = {each["path"]: each for each in found["gateway"]}
    assert gateway["http.body_bytes"] == {
        "path": "http.body_bytes",
        "value": 4096,
        "from": "environment",
        "name": "TRUNKLINE_GATEWAY_HTTP__BODY_BYTES",
    }
    assert (gateway["store.url"]["from"], gateway["store.url"]["line"]) == ("file", 2)
    assert gateway["listen"]["from"] == "default"
    agent = {each["path"]: each["value"] for each in found["agent"]}
    assert agent["engine_key"] == "**********"
    assert "gateway" not in agent, "nothing says where it is"
    assert "hush" not in json.dumps(found)


def test_lines_are_for_people(tmp_path: Path) -> None:
    result = _run("--show", "--on", "agent")
    assert result.exit_code == 0
    assert "find_engines = (not set)  # default" in result.stdout


def test_without_show_it_only_checks(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('lissten = "127.0.0.1:1"\n')
    assert _run("--on", "gateway").stdout == ""
    result = _run("--on", "gateway", "--config", str(file))
    assert result.exit_code == 1
    assert "lissten" in result.stderr


def test_where_no_program_is_used_there_is_nothing_to_show() -> None:
    assert _run("--show").exit_code == 1
