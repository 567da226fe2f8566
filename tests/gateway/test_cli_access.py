"""The commands token, key and agents, as scripts and people use them."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway import cli_output
from gateway.access import KeyRing
from gateway.cli_access import duration_s, register
from gateway.errors import Unauthenticated
from gateway.store import Enrolment, Store
from shared.identity import JoinToken

Run = Callable[..., Result]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``trunkline ARGUMENTS`` with the state directory in the environment."""
    app = typer.Typer()
    register(app)
    monkeypatch.setenv("TRUNKLINE_STATE", str(state))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def enrol(state: Path, name: str = "gpu-7", uses: int = 1) -> str:
    with Store.open(state) as store:
        token, _ = store.tokens.create(3600, uses, ["llama-*"], {"region": "eu"}, time.time())
        wish = Enrolment(token.id_text, name, name.encode().ljust(32), name, 4e9)
        store.agents.enrol(wish, time.time())
    return token.id_text


# --- token ---


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
        (["--uses", "0"], "0 uses"),
        (["--uses", "x"], "Invalid value for"),
        (["--label", "x"], "is no label"),
        (["--label", "a=1", "--label", "a=2"], "given twice"),
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


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800), ("2W", 1_209_600)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


# --- key ---


def test_a_key_is_the_last_line_of_stdout_and_opens_the_door(run: Run, state: Path) -> None:
    result = run("key", "create", "--name", "laptop", "--tenant", "acme")
    assert result.exit_code == 0
    key = result.stdout.strip()
    assert result.stdout.count("\n") == 1
    assert key not in result.stderr
    with Store.open(state) as store:
        assert KeyRing(store).authenticate(key).tenant == "acme"


def test_a_key_revoked_by_command_is_refused_by_a_running_gateway(run: Run, state: Path) -> None:
    key = run("key", "create", "--name", "laptop").stdout.strip()
    with Store.open(state) as store:
        ring = KeyRing(store)
        ring.authenticate(key)
        assert run("key", "revoke", "laptop").exit_code == 0
        with pytest.raises(Unauthenticated):
            ring.authenticate(key)


def test_keys_are_listed_by_name_and_never_shown(run: Run) -> None:
    key = json.loads(run("key", "create", "--name", "laptop", "--json").stdout)["key"]
    run("key", "revoke", "laptop")
    plain = run("key", "list").stdout
    assert plain.splitlines()[1].split()[:3] == ["laptop", "default", "revoked"]
    (facts,) = json.loads(run("key", "list", "--json").stdout)
    assert (facts["name"], facts["state"], facts["hint"]) == ("laptop", "revoked", key[-4:])
    assert key not in plain + json.dumps(facts)
    assert "digest" not in facts


def test_a_name_in_use_fails_and_a_missing_name_is_wrong_usage(run: Run) -> None:
    run("key", "create", "--name", "laptop")
    result = run("key", "create", "--name", "laptop")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "trunkline: there is an active key named 'laptop'" in result.stderr
    assert run("key", "create").exit_code == 2
    assert run("key", "create", "--name", "a/b").exit_code == 2
    assert run("key", "revoke", "nobody").exit_code == 1


# --- agents ---


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


# --- all of them ---


@pytest.mark.parametrize("arguments", [["token", "list"], ["key", "list"], ["agents", "list"]])
def test_looking_does_not_make_a_state(run: Run, state: Path, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no gateway state in" in result.stderr
    assert not state.exists()


@pytest.mark.parametrize("arguments", [["token", "list"], ["key", "list"], ["agents", "list"]])
def test_nothing_to_list_is_no_failure(run: Run, state: Path, arguments: list[str]) -> None:
    Store.open(state).close()
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr
    assert json.loads(run(*arguments, "--json").stdout) == []


def test_a_damaged_state_fails_with_one_line(run: Run, state: Path) -> None:
    state.mkdir()
    (state / "gateway.db").write_bytes(b"rubbish" * 1000)
    result = run("key", "list")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(f"{group} {command}" for group in ("token", "key") for command in ("create", "list", "revoke")),
        *("agents list", "agents revoke"),
    ],
)
def test_every_command_has_help_with_an_example(run: Run, arguments: str) -> None:
    result = run(*arguments.split(), "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout


def test_a_table_on_a_terminal_takes_cells_literally(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli_output.print_table(["A", "B"], [["[red]x[/red]", "y"]], "nothing")
    assert "[red]x[/red]" in capsys.readouterr().out


def test_a_key_can_be_bound_to_where_its_requests_run(run: Run) -> None:
    run("key", "create", "--name", "anywhere")
    made = run(
        "key", "create", "--name", "here", "--where", "region=eu", "--where", "region=uk,tier=gold", "--json"
    )
    where = {"region": ["eu", "uk"], "tier": ["gold"]}
    assert json.loads(made.stdout)["where"] == where
    assert "region=eu,region=uk,tier=gold" in run("key", "list").stdout
    listed = json.loads(run("key", "list", "--json").stdout)
    assert {each["name"]: each["where"] for each in listed} == {"anywhere": None, "here": where}


def test_a_place_that_cannot_be_read_makes_no_key(run: Run) -> None:
    result = run("key", "create", "--name", "laptop", "--where", "eu")
    assert result.exit_code == 2
    assert "'eu' is not NAME=VALUE" in result.stderr
    assert run("key", "list", "--json").exit_code == 1
