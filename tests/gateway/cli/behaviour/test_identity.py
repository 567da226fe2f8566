"""``trunkline identity``, as scripts and people use it."""

import json
from pathlib import Path

import pytest

from gateway.storage import Store
from shared.identity import JoinToken
from tests.gateway.cli.command_line import Run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    Store.open(tmp_path / "state").close()
    return tmp_path / "state"


def test_the_key_is_shown_by_id_and_fingerprint(run: Run, state: Path) -> None:
    (facts,) = json.loads(run("identity", "show", "--json").stdout)
    with Store.open(state) as store:
        assert facts["sha256"] == store.gateway_identity.fingerprint.hex()
    assert (facts["id"], facts["state"], facts["until_s"]) == (facts["sha256"][:16], "current", None)
    assert facts["sha256"] in run("identity", "show").stdout


def test_the_key_is_changed_and_the_one_before_counts_for_a_while(run: Run) -> None:
    (before,) = json.loads(run("identity", "show", "--json").stdout)
    result = run("identity", "rotate", "--overlap", "7d")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "The one before counts until" in result.stderr
    now, former = json.loads(run("identity", "show", "--json").stdout)
    assert former["id"] == before["id"] != now["id"]
    assert former["until_s"] is not None
    assert run("identity", "rotate").exit_code == 1, "it still counts"
    assert (
        JoinToken.decode(run("token", "create", "--expires", "1d").stdout).fingerprint.hex()
        == former["sha256"]
    )
    assert (
        JoinToken.decode(run("token", "create", "--expires", "8d").stdout).fingerprint.hex() == now["sha256"]
    )


def test_a_stolen_key_is_changed_without_an_overlap(run: Run) -> None:
    result = run("identity", "rotate", "--overlap", "0s")
    assert result.exit_code == 0
    assert "Every agent must join again" in result.stderr
    assert len(json.loads(run("identity", "show", "--json").stdout)) == 1


@pytest.mark.parametrize("overlap", ["soon", "400d"])
def test_an_overlap_that_makes_no_sense_is_wrong_usage(run: Run, overlap: str) -> None:
    before = run("identity", "show").stdout
    assert run("identity", "rotate", "--overlap", overlap).exit_code == 2
    assert run("identity", "show").stdout == before
