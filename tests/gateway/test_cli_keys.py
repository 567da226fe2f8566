"""``trunkline key``, as scripts and people use it."""

import json
from pathlib import Path

import pytest

from gateway.access import KeyRing
from gateway.errors import Unauthenticated
from gateway.store import Store
from tests.gateway.command_line import Run, running


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return running(state, monkeypatch)


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
