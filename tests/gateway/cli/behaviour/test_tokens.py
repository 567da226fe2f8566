"""``trunkline token``, as scripts and people use it."""

import json
from pathlib import Path

import pytest

from gateway.storage import Store
from shared.identity import JoinToken
from tests.gateway.cli.command_line import Run


def test_a_token_is_the_last_line_of_stdout_and_the_rest_is_on_stderr(run: Run, state: Path) -> None:
    result = run("token", "create", "--uses", "2", "--expires", "7d", "--model", "llama-*", "--label", "a=b")
    assert result.exit_code == 0
    token = JoinToken.decode(result.stdout)
    assert result.stdout == token.encode() + "\n"
    assert "for 2 agents" in result.stderr
    assert token.encode() not in result.stderr
    with Store.open(state) as store:
        record = store.tokens.get(token.id_text)
    assert record is not None
    assert (record.uses_allowed, record.models, record.labels) == (2, ("llama-*",), {"a": "b"})
    assert record.expires_s - record.created_s == 7 * 86_400


def test_a_token_can_be_made_before_a_gateway_ever_ran(run: Run, state: Path) -> None:
    first = JoinToken.decode(run("token", "create").stdout)
    second = JoinToken.decode(run("token", "create").stdout)
    with Store.open(state) as store:
        assert store.gateway_identity.fingerprint == first.fingerprint == second.fingerprint


def test_a_token_as_json_has_its_text_and_its_facts(run: Run) -> None:
    data = json.loads(run("token", "create", "--json").stdout)
    assert JoinToken.decode(data["token"]).id_text == data["id"]
    assert (data["state"], data["uses"], data["uses_allowed"], data["models"]) == ("active", 0, 1, ["*"])


def test_tokens_are_listed_without_their_secrets(run: Run) -> None:
    token = JoinToken.decode(run("token", "create", "--label", "region=eu").stdout)
    plain = run("token", "list").stdout
    assert plain.splitlines()[0].split() == ["ID", "STATE", "USES", "EXPIRES", "MODELS", "LABELS"]
    assert plain.splitlines()[1].split()[:3] == [token.id_text, "active", "0/1"]
    listed = run("token", "list", "--json").stdout
    assert json.loads(listed)[0]["id"] == token.id_text
    for text in (plain, listed):
        assert token.encode()[16:38] not in text


def test_a_token_is_revoked_by_the_beginning_of_its_id(run: Run) -> None:
    token = JoinToken.decode(run("token", "create").stdout)
    result = run("token", "revoke", token.id_text[:6])
    assert result.exit_code == 0
    assert "No agent had joined with it" in result.stderr
    assert json.loads(run("token", "list", "--json").stdout)[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--expires", "soon"], "is no duration"),
        (["--expires", "400d"], "lasts from 1 second to 366 days"),
        (["--uses", "0"], "--uses"),
        (["--uses", "x"], "Invalid value for"),
        (["--label", "x"], "is no label"),
        (["--label", "a=1", "--label", "a=1"], "given twice"),
        (["--model", ""], "cannot be used"),
    ],
)
def test_wrong_values_are_wrong_usage(run: Run, arguments: list[str], complaint: str) -> None:
    result = run("token", "create", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_revoking_what_is_not_there_fails(run: Run) -> None:
    run("token", "create")
    assert run("token", "revoke", "0000000").exit_code == 1
    assert run("token", "revoke", "tlj_cut").exit_code == 1


def test_the_answer_of_a_gateway_of_an_earlier_version_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"token": "tlj_x", "id": "3fa9", "expires_s": 0.0, "uses": 2, "record": {"uses_allowed": 2}}
    monkeypatch.setattr("gateway.cli_support.gateway_client.GatewayClient.ask", lambda *_, **__: answer)
    result = run("token", "create", "--uses", "2", "--url", "http://127.0.0.1:1", "--key", "k")
    assert (result.exit_code, result.stdout) == (0, "tlj_x\n")
    assert "for 2 agents, until 1970-01-01 00:00 UTC" in result.stderr
