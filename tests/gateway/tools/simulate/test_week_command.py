"""``trunkline simulate-week``, small."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.tools.simulate.week_command import register, summed

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{minute:02}:00.0000000,{4000 if minute % 2 else 1500},20\n" for minute in range(0, 58, 2)
)


def run(tmp_path: Path, *words: str) -> Result:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["--trace", str(path), "--device", "t4", "--replicas", "0.2", *words])


def test_a_small_week_is_told_by_policy(tmp_path: Path) -> None:
    result = run(tmp_path, "--seeds", "1", "--policy", "fixed", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert [each["policy"] for each in said["weeks"]] == ["fixed"]
    assert all(0.5 < each["slo_kept"] <= 1.0 for each in said["weeks"])
    table = run(tmp_path, "--seeds", "1", "--policy", "fixed").stdout.splitlines()
    assert table[0].split()[:3] == ["WEEK", "POLICY", "SLO"]
    assert table[1].split()[:2] == ["office", "fixed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "magic"), "'magic' is none of fixed"),
        (("--shape", "round"), "'round' is none of office"),
        (("--slo", "0.1"), "one prompt of a hundred takes"),
        (("--device", "abacus"), "no device class"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    result = run(tmp_path, *words)
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())


def test_seeds_are_summed_with_the_least_and_the_most() -> None:
    one = {"shape": "office", "policy": "fixed", "slo_kept": 0.9, "gpu_hours": 10.0, "used": 0.5}
    one |= {"most_replicas": 4, "forecast_acted_days": 0, "forecast_error": None}
    (row,) = summed([one, one | {"slo_kept": 1.0}])
    assert (row["slo_kept"], row["least_kept"], row["most_kept"]) == (0.95, 0.9, 1.0)
