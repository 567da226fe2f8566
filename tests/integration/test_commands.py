"""Commands asked of a running gateway over HTTP do what they do on its state directory."""

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import access as cli_access
from gateway.cli.announcement import FIRST_KEY
from gateway.domain.scopes import AdminRole
from gateway.observability.audit import append_pending_acts
from gateway.storage import DEFAULT_TENANT, Account, Amount, Enrolment, Store
from shared.process.cli import build
from tests.support.processes import Gateway, House

Run = Callable[..., Result]

STORY = """
key create --name ci --tenant acme --models llama-*,qwen --tiers batch --where region=eu --expires 30d --rpm 5
key create --name ci
key set ci --tpm 100 --rpm 0
key list
key rotate ci --overlap 0s
key revoke ci
key revoke ci
token create --uses 8 --expires 7d --models llama-*,qwen-* --label region=eu
token create --model llama-* --model qwen-*
token create --uses 0
token list
token revoke nothing
tenant set acme --tpm 200000 --queue-share 0.2 --budget-money-per-month 500
tenant set acme --tpm 0
tenant list
tenant remove acme
tenant remove acme
price set org/llama --input 0.5 --output 1.5
price set * --gpu-second 0.1
price list
price remove org/llama
price remove org/llama
alias set llama llama@v1=95 llama@v2=5 --no-sticky
alias switch llama llama@v2
alias mirror llama llama@v3 --share 0.1
alias fallback org/llama-70b llama-8b,llama-1b
alias list
alias history llama
alias history nothing
alias rollback llama
alias rollback llama --to 99
alias mirror llama --off
alias fallback org/llama-70b --off
alias set real llama
alias remove llama
alias remove llama
agents
agents list
agents set gpu-7 --models llama-*,qwen-* --label region=eu
agents set gpu-8 --no-labels
agents rename gpu-7 berlin-7
agents rename berlin-7 two words
agents revoke berlin-7 --reason sold
agents revoke berlin-7
"""
CHANGING = {
    *("id", "key", "token", "hint", "created_s", "changed_s", "expires_s", "revoked_s", "at_s"),
    *("old_secret_until_s", "last_used_s", "last_seen_s", "joined_s"),
}
"""Members that differ from one run to the next."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with House(tmp_path_factory.mktemp("commands")) as house:
        yield house.gateway()


def prepared(state: Path) -> str:
    """An admin's key, and an agent that has joined."""
    with Store.open(state) as store:
        token, _ = store.tokens.create(3600, 2, ["*"], {}, 1.0)
        store.agents.enrol(Enrolment(token.id_text, "gpu-7", b"7" * 32, "7", 4e9), 2.0)
        if not store.keys.list():  # which a gateway has made itself
            store.keys.create(FIRST_KEY, DEFAULT_TENANT, 2.0, role=AdminRole.ADMIN)
        return store.keys.create("root", "ops", 1.0, role=AdminRole.ADMIN)


def steady(value: object) -> object:
    """Without what differs from one run to the next."""
    if isinstance(value, dict):
        return {name: steady(each) for name, each in value.items() if name not in CHANGING}
    return [steady(each) for each in value] if isinstance(value, list) else value


def told(run: Run, *arguments: str) -> tuple[object, ...]:
    """The exit code, the data, and what the command says when there is no data."""
    result = run(*arguments, "--json")
    if result.exit_code == 2 and "No such option" in result.stderr:
        result = run(*arguments)
        return result.exit_code, result.stdout, result.stderr.rstrip(".\n") if result.exit_code != 2 else ""
    data = steady(json.loads(result.stdout)) if result.stdout else None
    return result.exit_code, data, result.stderr.rstrip(".\n") if result.exit_code == 1 else ""


def test_every_command_tells_the_same_over_http_as_on_the_state(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("TERM", "dumb")
    app, state = build(), tmp_path / "state"
    prepared(state)
    key = prepared(gateway.state)
    remote = {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": key}
    monkeypatch.setattr(cli_access, "own_state_dir", lambda: tmp_path / "none")
    here = {"TRUNKLINE_STATE": str(state)}
    for line in filter(None, STORY.splitlines()):
        words = line.split()
        if "two words" in line:
            words = [*words[:-2], "two words"]
        local = told(lambda *given: CliRunner().invoke(app, given, env=here), *words)
        asked = told(lambda *given: CliRunner().invoke(app, given, env=remote), *words)
        assert asked == local, line
    with Store.open(gateway.state) as store:
        key_id = store.keys.get("root").id
    lines = [
        json.loads(each)
        for path in sorted((gateway.state / "audit").glob("*.jsonl"))
        for each in path.read_text().splitlines()
    ]
    acts = {line["kind"]: line["who"] for line in lines if line["kind"].partition(".")[0] == "price"}
    assert acts == dict.fromkeys(("price.set", "price.remove"), f"key:{key_id}")


def test_what_a_key_may_not_do_fails_and_says_which_role_it_takes(gateway: Gateway) -> None:
    with Store.open(gateway.state) as store:
        key = store.keys.create("looks", "ops", 1.0, role=AdminRole.VIEWER)
    run = CliRunner()
    where = ["--url", gateway.url, "--key", key]
    assert run.invoke(build(), ["alias", "list", *where]).exit_code == 0
    refused = run.invoke(build(), ["price", "list", *where])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "takes the role 'admin'" in refused.stderr


def test_a_state_that_cannot_be_written_is_told_in_a_line_and_nothing_is_half_done(gateway: Gateway) -> None:
    with Store.open(gateway.state) as store:
        key = store.keys.create("writes", "ops", 1.0, role=AdminRole.ADMIN)
    create = ["key", "create", "--name", "unwritten", "--url", gateway.url, "--key", key]
    kept = resource.prlimit(gateway.child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.child.pid, resource.RLIMIT_FSIZE, (1, kept[1]))
    try:
        refused = CliRunner().invoke(build(), create)
        listed = CliRunner().invoke(build(), ["key", "list", "--json", "--url", gateway.url, "--key", key])
    finally:
        resource.prlimit(gateway.child.pid, resource.RLIMIT_FSIZE, kept)
    assert (refused.exit_code, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("trunkline: The gateway's state cannot be used just now: cannot write")
    names = [each["name"] for each in json.loads(listed.stdout)]
    assert "writes" in names
    assert "unwritten" not in names
    assert CliRunner().invoke(build(), create).exit_code == 0
    said = gateway.child.log.read_text()
    assert "Traceback" not in said
    assert "request_failed" not in said


def test_usage_the_gateways_key_and_the_audit_log_are_told_over_http(gateway: Gateway) -> None:
    with Store.open(gateway.state) as store:
        looks = store.keys.create("eyes", "ops", 1.0, role=AdminRole.VIEWER)
        admin = store.keys.create("all", "ops", 1.0, role=AdminRole.ADMIN)
        amounts = {Account("2026-11-20", f"k{n:04}", "acme", "m"): Amount(1, n) for n in range(1001)}
        store.usage.add(amounts)
        append_pending_acts(store)  # else the gateway appends them between two looks at its log
    invoke, app = CliRunner().invoke, build()

    def asked(key: str, *words: str) -> Result:
        """What the command says over HTTP; on the state its exit code is the same."""
        asked = invoke(app, [*words, "--url", gateway.url, "--key", key])
        local = invoke(app, [*words, "--state", str(gateway.state)])
        assert asked.exit_code == local.exit_code, asked.stderr
        return asked

    def told(key: str, *words: str) -> Result:
        """The same where the data are the same as well."""
        found = asked(key, *words)
        assert found.stdout == invoke(app, [*words, "--state", str(gateway.state)]).stdout
        return found

    assert len(json.loads(told(admin, "usage", "--json").stdout)) == 1001
    assert told(admin, "usage", "--by", "day", "--csv").stdout.splitlines()[1].startswith("2026-11-20,1001,")
    assert told(looks, "identity", "show", "--json").exit_code == 0
    verified = asked(looks, "audit", "verify")  # its own request is a line that may come at any time
    assert "nothing was tampered with, the gateway says." in verified.stderr
    assert asked(looks, "audit", "verify", "--expect", verified.stdout.strip()).exit_code == 0
    assert asked(looks, "audit", "verify", "--expect", f"1:{'0' * 64}").exit_code == 1
    lines = told(admin, "audit", "export", "--kind", "key.").stdout.splitlines()
    assert {json.loads(line)["kind"].partition(".")[0] for line in lines} == {"key"}


def test_what_is_done_on_the_gateways_host_only_says_so(gateway: Gateway) -> None:
    with Store.open(gateway.state) as store:
        key, before = store.keys.create("far", "ops", 1.0, role=AdminRole.ADMIN), store.gateway_identity.id
    words = ["identity", "rotate", "--url", gateway.url, "--key", key]
    refused = CliRunner().invoke(build(), words, env={"COLUMNS": "300", "TERM": "dumb"})
    assert refused.exit_code == 2
    assert "it is changed on the gateway's host" in refused.stderr
    with Store.open(gateway.state) as store:
        assert store.gateway_identity.id == before


def test_a_viewer_is_told_neither_usage_nor_lines_of_the_audit_log(gateway: Gateway) -> None:
    with Store.open(gateway.state) as store:
        key = store.keys.create("curious", "ops", 1.0, role=AdminRole.VIEWER)
    for words in (["usage"], ["audit", "export"]):
        refused = CliRunner().invoke(build(), [*words, "--url", gateway.url, "--key", key])
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "takes the role 'admin'" in refused.stderr
