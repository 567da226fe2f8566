"""``trunkline agents``, as scripts and people use it."""

import json
import time
from pathlib import Path

import pytest

from gateway.store import Enrolment, Store
from tests.gateway.command_line import Run, running


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return running(state, monkeypatch)


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
