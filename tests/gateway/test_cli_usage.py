"""``trunkline usage``, as scripts and people use it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli_usage import register
from gateway.store import Account, Amount, Store


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Store.open(tmp_path) as store:
        store.keys.create("alice", "acme", 1.0)
        key_id = store.keys.list()[0].id
        store.usage.add(
            {
                Account("2026-11-20", key_id, "acme", "big"): Amount(1, 10, 5, 2),
                Account("2026-11-21", key_id, "acme", "small"): Amount(2, 20, 6, 0),
            }
        )
    return tmp_path


def run(state: Path, *arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    environment = {"TERM": "dumb", "COLUMNS": "200"}
    return CliRunner().invoke(app, ["usage", "--state", str(state), *arguments], env=environment)


def test_usage_is_a_table_by_key_unless_told_otherwise(state: Path) -> None:
    lines = run(state).stdout.splitlines()
    assert lines[0].split() == ["KEY", "TENANT", "REQUESTS", "PROMPT", "COMPLETION", "CACHED"]
    assert lines[1].split() == ["alice", "acme", "3", "30", "11", "2"]
    assert run(state, "--by", "model").stdout.splitlines()[1].split() == ["big", "1", "10", "5", "2"]


def test_usage_as_json_has_ids_of_keys_and_plain_numbers(state: Path) -> None:
    (total,) = json.loads(run(state, "--by", "key", "--json").stdout)
    assert len(total.pop("key_id")) > 4
    assert total == {
        "key": "alice",
        "tenant": "acme",
        "requests": 3,
        "prompt_tokens": 30,
        "completion_tokens": 11,
        "cached_tokens": 2,
    }
    assert json.loads(run(state, "--by", "day", "--json").stdout)[0] == {
        "day": "2026-11-20",
        "requests": 1,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 2,
    }


def test_usage_since_a_day_leaves_out_what_was_before(state: Path) -> None:
    names = [
        row["model"]
        for row in json.loads(run(state, "--by", "model", "--since", "2026-11-21", "--json").stdout)
    ]
    assert names == ["small"]
    assert json.loads(run(state, "--since", "2026-11-22", "--json").stdout) == []
    assert "nothing was used" in run(state, "--since", "2026-11-22").output


@pytest.mark.parametrize("day", ["yesterday", "2026-13-01", "1"])
def test_a_day_that_is_none_is_wrong_usage(state: Path, day: str) -> None:
    result = run(state, "--since", day)
    assert result.exit_code == 2
    assert "is no day" in result.stderr


def test_usage_of_no_state_fails_and_makes_none(tmp_path: Path) -> None:
    result = run(tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no gateway state" in result.stderr
    assert not (tmp_path / "none").exists()
