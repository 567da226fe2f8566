"""``trunkline tenant``, ``price`` and the limits of ``key``, as scripts and people use them."""

import json
from pathlib import Path

import pytest

from gateway.domain.quotas import Price, Rates
from gateway.storage import Store
from tests.gateway.cli.command_line import Run


def test_a_tenants_limits_are_set_one_by_one_and_taken_away_with_zero(run: Run) -> None:
    run("tenant", "set", "acme", "--rpm", "60", "--queue-share", "0.2", "--weight", "3")
    result = run(
        "tenant", "set", "acme", "--rpm", "0", "--tpm", "1000", "--budget-money-per-month", "9.5", "--json"
    )
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    said = {name: value for name, value in facts.items() if value is not None and name != "changed_s"}
    assert said == {"name": "acme", "tpm": 1000, "money_per_month": 9.5, "queue_share": 0.2, "weight": 3.0}
    assert json.loads(run("tenant", "list", "--json").stdout) == [facts]
    told = run("tenant", "list").stdout.splitlines()[1]
    assert told == "acme  tpm=1000 money-per-month=9.5 queue-share=0.2 weight=3"
    assert run("tenant", "remove", "acme").exit_code == 0
    assert json.loads(run("tenant", "list", "--json").stdout) == []
    assert run("tenant", "remove", "acme").exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("tenant", "set", "acme"),
        ("tenant", "set", "acme", "--rpm", "-1"),
        ("tenant", "set", "acme", "--weight", "1e9"),
        ("tenant", "set", "!", "--rpm", "1"),
        ("price", "set", "m", "--input", "-1"),
        ("key", "set", "laptop"),
        ("key", "create", "--name", "x", "--tpm", "9" * 15),
    ],
)
def test_what_cannot_be_is_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    run("key", "create", "--name", "laptop")
    assert run(*arguments).exit_code == 2


def test_models_get_prices(run: Run, state: Path) -> None:
    run("price", "set", "m", "--input", "0.5", "--output", "1.5", "--gpu-second", "0.002")
    run("price", "set", "*", "--output", "1")
    listed = json.loads(run("price", "list", "--json").stdout)
    assert [(each["model"], each["output"]) for each in listed] == [("*", 1.0), ("m", 1.5)]
    assert run("price", "list").stdout.splitlines()[2].split() == ["m", "0.5", "1.5", "0.002"]
    assert run("price", "remove", "*").exit_code == 0
    with Store.open(state) as store:
        _, terms = store.limits.changed_since(-1)
        assert terms is not None
        assert terms.prices == {"m": Price(0.5, 1.5, 0.002)}


def test_a_key_is_made_with_limits_and_given_others(run: Run, state: Path) -> None:
    result = run("key", "create", "--name", "ci", "--rpm", "60", "--tpm", "1000", "--concurrency", "4")
    assert "at rpm=60 tpm=1000 concurrency=4 at most" in result.stderr
    changed = run("key", "set", "ci", "--tpm", "0", "--concurrency", "2", "--json")
    facts = json.loads(changed.stdout)
    assert (facts["rpm"], facts["tpm"], facts["concurrency"]) == (60, None, 2)
    assert "rpm=60 concurrency=2" in run("key", "list").stdout
    with Store.open(state) as store:
        assert store.keys.get("ci").rates == Rates(60, None, 2)
    assert run("key", "set", "nobody", "--rpm", "1").exit_code == 1
