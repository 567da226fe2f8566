"""``trunkline usage``, as scripts and people use it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.usage import register
from gateway.storage import Account, Amount, Store


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Store.open(tmp_path) as store:
        store.keys.create("alice", "acme", 1.0)
        key_id = store.keys.list()[0].id
        store.usage.add(
            {
                Account("2026-11-20", key_id, "acme", "big"): Amount(1, 10, 5, 2),
                Account("2026-11-21", key_id, "acme", "small", "gpu-1/0"): Amount(2, 20, 6, 0, 1.5, 0.25),
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
    assert lines[0].split() == [
        "KEY",
        "TENANT",
        "REQUESTS",
        "PROMPT",
        "COMPLETION",
        "CACHED",
        "GPU-S",
        "COST",
    ]
    assert lines[1].split() == ["alice", "acme", "3", "30", "11", "2", "1.5", "0.25"]
    assert run(state, "--by", "model").stdout.splitlines()[1].split() == [
        "big",
        "1",
        "10",
        "5",
        "2",
        "0.0",
        "0",
    ]


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
        "gpu_s": 1.5,
        "cost": 0.25,
    }
    assert json.loads(run(state, "--by", "day", "--json").stdout)[0] == {
        "day": "2026-11-20",
        "requests": 1,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 2,
        "gpu_s": 0.0,
        "cost": 0.0,
    }


def test_usage_since_a_day_leaves_out_what_was_before(state: Path) -> None:
    names = [
        row["model"]
        for row in json.loads(run(state, "--by", "model", "--since", "2026-11-21", "--json").stdout)
    ]
    assert names == ["small"]
    assert json.loads(run(state, "--since", "2026-11-22", "--json").stdout) == []
    assert "nothing was used" in run(state, "--since", "2026-11-22").output


def test_usage_by_deployment_names_what_is_older_than_deployments(state: Path) -> None:
    totals = json.loads(run(state, "--by", "deployment", "--json").stdout)
    assert [(each["deployment"], each["requests"], each["gpu_s"]) for each in totals] == [
        ("", 1, 0),
        ("gpu-1/0", 2, 1.5),
    ]
    assert "(before they were told apart" in run(state, "--by", "deployment").stdout


def test_usage_as_csv_has_a_header_and_plain_numbers_and_no_formulas(state: Path) -> None:
    with Store.open(state) as store:
        store.usage.add({Account("2026-11-22", "k", "t", "=cmd()"): Amount(1)})
    assert run(state, "--by", "model", "--csv").stdout.splitlines() == [
        "model,requests,prompt_tokens,completion_tokens,cached_tokens,gpu_s,cost",
        "'=cmd(),1,0,0,0,0.0,0.0",
        "big,1,10,5,2,0.0,0.0",
        "small,2,20,6,0,1.5,0.25",
    ]
    assert run(state, "--csv").stdout.splitlines()[0].startswith("key,tenant,key_id,requests,")
    assert run(state, "--csv", "--json").exit_code == 2


def test_usage_since_so_long_ago(state: Path) -> None:
    today = datetime.now(UTC).date()
    with Store.open(state) as store:
        for ago in (0, 3, 9):
            store.usage.add({Account(str(today - timedelta(ago)), "k", "t", f"ago-{ago}"): Amount(1)})
    totals = json.loads(run(state, "--by", "model", "--since", "4d", "--json").stdout)
    assert {"ago-0", "ago-3"} <= {each["model"] for each in totals}
    assert "ago-9" not in {each["model"] for each in totals}


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
