"""What quickstart says: before it starts anything, and for the person to copy, which works as it is."""

import json
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.testing import CliRunner

from gateway.tools.quickstart import command
from gateway.tools.quickstart.command import how_to_go_on
from gateway.tools.quickstart.processes import Children


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


class _Started:
    """Keeps what children would be given."""

    def __init__(self) -> None:
        self.given: dict[str, Mapping[str, str | None]] = {}

    def start(self, name: str, *arguments: str, environment: Mapping[str, str | None]) -> None:
        self.given[name] = environment

    def wait_until(self, *_: object) -> None:
        pass


def test_settings_of_another_gateway_are_not_those_of_the_one_that_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_others = ("TRUNKLINE_STORE", "TRUNKLINE_GATEWAY_TLS__CERT", "trunkline_agent_ca_file")
    for name in (*of_others, "TRUNKLINE_NATIVE", "TRUNKLINE_AGENT_JOIN"):
        monkeypatch.setenv(name, "x")
    children = _Started()
    command._start(cast(Children, children), tmp_path, 1, "demo")
    for given in children.given.values():
        assert {name: given[name] for name in of_others} == dict.fromkeys(of_others)
        assert not given.keys() & {"TRUNKLINE_NATIVE", "PATH"}
    assert children.given.keys() == {"gateway", "agent"}
    assert (children.given["agent"]["TRUNKLINE_AGENT_JOIN"] or "").startswith("tlj_")


@pytest.mark.parametrize("model", ["trunkline-demo", 'it\'s a "model"'])
def test_the_curl_line_is_one_shell_command_with_a_json_body(model: str) -> None:
    page = how_to_go_on("http://127.0.0.1:8787/v1", "sk-tl-abc", model)
    command = page.partition("With curl:")[2].partition("With Python")[0].strip()
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8787/v1/chat/completions"]
    assert "authorization: Bearer sk-tl-abc" in words
    assert json.loads(words[-1])["model"] == model


@pytest.mark.parametrize("model", ["trunkline-demo", 'it\'s a "model"'])
def test_the_snippet_is_python(model: str) -> None:
    page = how_to_go_on("http://127.0.0.1:8787/v1", "sk-tl-abc", model)
    snippet = textwrap.dedent(page.partition("(pip install openai):")[2])
    compile(snippet, "snippet", "exec")
    assert 'api_key="sk-tl-abc"' in snippet
