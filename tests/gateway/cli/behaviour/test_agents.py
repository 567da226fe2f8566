"""``trunkline agents``, as scripts and people use it."""

import json
import time
from pathlib import Path

import pytest

from gateway.storage import Enrolment, Store
from tests.gateway.cli.command_line import Run


def enrol(state: Path, name: str = "gpu-7", uses: int = 1) -> str:
    with Store.open(state) as store:
        token, _ = store.tokens.create(3600, uses, ["llama-*"], {"region": "eu"}, time.time())
        wish = Enrolment(token.id_text, name, name.encode().ljust(32), name, 4e9)
        store.agents.enrol(wish, time.time())
    return token.id_text


@pytest.mark.parametrize("arguments", [["agents"], ["agents", "list"]])
def test_agents_are_listed(run: Run, state: Path, arguments: list[str]) -> None:
    enrol(state)
    assert run(*arguments).stdout.splitlines()[1].split()[:4] == ["gpu-7", "active", "llama-*", "region=eu"]
    (facts,) = json.loads(run(*arguments, "--json").stdout)
    assert (facts["name"], facts["state"], facts["last_seen_s"]) == ("gpu-7", "active", None)
    assert facts["certificate_expires_s"] == 4e9


def test_revoking_an_agent_tells_of_the_token_it_could_come_back_with(run: Run, state: Path) -> None:
    token_id = enrol(state, uses=3)
    result = run("agents", "revoke", "gpu-7", "--reason", "host sold")
    assert result.exit_code == 0
    assert f"still lets 2 in. If that host must stay out: trunkline token revoke {token_id}" in result.stderr
    (facts,) = json.loads(run("agents", "list", "--json").stdout)
    assert (facts["state"], facts["revoked_reason"]) == ("revoked", "host sold")
    assert run("agents", "revoke", "gpu-7").exit_code == 1


def test_an_option_before_the_command_is_not_silently_ignored(run: Run, state: Path) -> None:
    enrol(state)
    result = run("agents", "--state", "/somewhere", "list")
    assert result.exit_code == 2
    assert "put it after 'list'" in result.stderr


def test_an_agent_is_renamed_and_nothing_else_of_it_changes(run: Run, state: Path) -> None:
    enrol(state)
    before = json.loads(run("agents", "--json").stdout)[0]
    result = run("agents", "rename", "gpu-7", "berlin-7")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "'gpu-7' is called 'berlin-7' now" in result.stderr
    assert json.loads(run("agents", "--json").stdout) == [before | {"name": "berlin-7"}]


CANNOT = [
    (("rename", "gpu-9", "gpu-10"), 1, "no active agent is named 'gpu-9'"),
    (("rename", "gpu-7", "GPU"), 2, "cannot name an agent"),
    (("rename", "gpu-7", "gpu-8"), 1, "another agent is named 'gpu-8'"),
    (("set", "gpu-7"), 2, "nothing to set"),
    (("set", "gpu-9", "--model", "*"), 1, "no active agent is named 'gpu-9'"),
    (("set", "gpu-7", "--label", "eu"), 2, "is no label"),
    (("set", "gpu-7", "--label", "a=b", "--no-labels"), 2, "either --label or --no-labels"),
    (("set", "gpu-7", "--models", "a,,b"), 2, "no model has such a name"),
]


def test_what_cannot_be_changed_changes_nothing(run: Run, state: Path) -> None:
    enrol(state)
    enrol(state, "gpu-8")
    before = run("agents", "--json").stdout
    for arguments, code, complaint in CANNOT:
        result = run("agents", *arguments)
        assert (result.exit_code, result.stdout) == (code, ""), arguments
        assert complaint in " ".join(result.stderr.replace("│", " ").split())
    assert run("agents", "--json").stdout == before


def test_what_an_agent_may_serve_is_set_and_what_is_not_named_stays(run: Run, state: Path) -> None:
    enrol(state)

    def rights(*arguments: str) -> tuple[list[str], dict[str, str]]:
        assert run("agents", "set", "gpu-7", *arguments).exit_code == 0
        (facts,) = json.loads(run("agents", "--json").stdout)
        return facts["models"], facts["labels"]

    assert rights("--models", "qwen-*, phi", "--model", "gemma") == (
        ["qwen-*", "phi", "gemma"],
        {"region": "eu"},
    )
    assert rights("--label", "region=us", "--label", "rack=7")[1] == {"region": "us", "rack": "7"}
    assert rights("--no-labels") == (["qwen-*", "phi", "gemma"], {})
    assert "qwen-* phi gemma" in run("agents").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["revoke", "gpu-\udcff"],
        ["revoke", "gpu-7", "--reason", "sold\udcff"],
        ["revoke", "gpu-7", "--reason", "two\nlines"],
        ["revoke", "gpu-7", "--reason", "x" * 513],
        ["set", "gpu-\udcff", "--models", "*"],
        ["rename", "gpu-\udcff", "gpu-8"],
    ],
)
def test_what_is_no_line_of_text_is_refused_in_words(run: Run, state: Path, arguments: list[str]) -> None:
    enrol(state)
    result = run("agents", *arguments)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code in (1, 2)
    assert result.stderr
    (facts,) = json.loads(run("agents", "list", "--json").stdout)
    assert facts["state"] == "active"
