"""``trunkline key``, as scripts and people use it."""

import json
from pathlib import Path

import pytest

from gateway.auth import KeyRing
from gateway.domain.errors import Unauthenticated
from gateway.domain.scopes import limited
from gateway.storage import Store
from shared.protocol.routes import ROUTES
from tests.gateway.cli.command_line import Run


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


def test_help_names_every_route_a_key_may_have(run: Run) -> None:
    said = run("key", "create", "--help").output
    assert [route for route in ROUTES if route not in said] == []


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


# --- limits, ends, rotation ---


def test_a_key_is_made_with_limits_and_the_list_shows_them(run: Run, state: Path) -> None:
    arguments = ["--models", "llama-*,qwen", "--models", "b", "--routes", "chat", "--tiers", "batch,standard"]
    made = run("key", "create", "--name", "ci", *arguments, "--expires", "30d", "--role", "viewer", "--json")
    facts = json.loads(made.stdout)
    assert (facts["models"], facts["routes"]) == (["llama-*", "qwen", "b"], ["chat"])
    assert (facts["tiers"], facts["role"]) == (["batch", "standard"], "viewer")
    assert facts["expires_s"] - facts["created_s"] == 30 * 86_400
    with Store.open(state) as store:
        scopes = KeyRing(store).authenticate(facts.pop("key")).scopes
    assert scopes == limited(["llama-*", "qwen", "b"], ["chat"], ["batch", "standard"])
    listed = json.loads(run("key", "list", "--json").stdout)
    assert listed[0].pop("last_used_s", None) is None
    assert facts.pop("last_used_s", None) is None
    assert listed == [facts]
    assert "models=llama-*,qwen,b routes=chat tiers=batch,standard" in run("key", "list").stdout


def test_a_key_with_no_limits_given_has_none(run: Run) -> None:
    facts = json.loads(run("key", "create", "--name", "ci", "--json").stdout)
    limits = ("models", "routes", "tiers", "where", "role", "expires_s")
    assert {name: facts[name] for name in limits} == dict.fromkeys(limits)


def test_limits_that_cannot_be_are_wrong_usage(run: Run) -> None:
    for arguments, complaint in (
        (["--routes", "chats"], "there is no route 'chats'"),
        (["--tiers", "urgent"], "there is no tier 'urgent'"),
        (["--models", "a,,b"], "no model has such a name"),
        (["--expires", "soon"], "is no duration"),
        (["--expires", "0s"], "lasts 1 second"),
        (["--role", "root"], "Invalid value"),
    ):
        result = run("key", "create", "--name", "ci", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert complaint in result.stderr


def test_rotating_prints_the_new_secret_and_the_old_one_works_for_the_overlap(run: Run, state: Path) -> None:
    old = run("key", "create", "--name", "ci").stdout.strip()
    result = run("key", "rotate", "ci", "--overlap", "1h")
    new = result.stdout.strip()
    assert new not in result.stderr
    assert "the old one works until" in result.stderr
    with Store.open(state) as store:
        ring = KeyRing(store)
        assert ring.authenticate(old) == ring.authenticate(new)
        facts = json.loads(run("key", "rotate", "ci", "--overlap", "0s", "--json").stdout)
        assert ring.authenticate(facts["key"])
        for text in (old, new):
            with pytest.raises(Unauthenticated):
                ring.authenticate(text)
    assert run("key", "rotate", "nobody").exit_code == 1
    assert run("key", "rotate", "ci", "--overlap", "91d").exit_code == 2


def test_a_key_is_given_routes_and_a_role_and_loses_them_again(run: Run, state: Path) -> None:
    key = run("key", "create", "--name", "laptop", "--tpm", "100").stdout.strip()
    given = run("key", "set", "laptop", "--routes", "any,chat", "--role", "operator")
    assert (given.exit_code, given.stdout) == (0, "")
    assert "routes=any,chat" in given.stderr
    assert "role operator" in given.stderr
    with Store.open(state) as store:
        principal = KeyRing(store).authenticate(key)
        assert (principal.scopes, principal.role) == (limited(routes=["any", "chat"]), "operator")
        assert run("key", "set", "laptop", "--routes", "all", "--role", "none").exit_code == 0
        principal = KeyRing(store).authenticate(key)
        assert (principal.scopes, principal.role) == (None, None)


@pytest.mark.parametrize("wrong", [["--role", "boss"], ["--routes", "chatt"], []])
def test_what_a_key_cannot_be_given_is_refused(run: Run, wrong: list[str]) -> None:
    run("key", "create", "--name", "laptop")
    result = run("key", "set", "laptop", *wrong)
    assert result.exit_code in (1, 2)
    assert result.stderr
