"""The command alias, as scripts and people use it."""

import json
import time
from functools import partial
from pathlib import Path

import pytest

from gateway.storage import Store
from tests.gateway.cli.command_line import Run, running


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``trunkline alias ARGUMENTS`` on a state that is there."""
    with Store.open(state) as store:
        served = dict.fromkeys(("m", "x"), 1.0)
        store.models.note(served, list(served), time.time(), 10)
    return partial(running(state, monkeypatch), "alias")


def shares(run: Run, name: str) -> dict[str, float]:
    """What the list says of a name's targets."""
    (alias,) = [each for each in json.loads(run("list", "--json").stdout) if each["name"] == name]
    return {f"{each['model']}@{each['version']}": each["share"] for each in alias["targets"]}


def test_a_canary_is_set_switched_and_taken_back_with_a_command_each(run: Run) -> None:
    assert run("set", "m", "m@v1").exit_code == 0
    canary = run("set", "m", "m@v1=95", "m@v2=5")
    assert (canary.exit_code, canary.stdout) == (0, "")
    assert canary.stderr == "'m' stands for m@v1 95 %, m@v2 5 %.\n"
    assert shares(run, "m") == {"m@v1": 0.95, "m@v2": 0.05}
    assert run("switch", "m", "m@v2").stderr == "'m' stands for m@v2.\n"
    assert run("rollback", "m").stderr == canary.stderr
    assert shares(run, "m") == {"m@v1": 0.95, "m@v2": 0.05}


def test_a_list_for_people_shows_all_that_belongs_to_an_alias(run: Run) -> None:
    assert run("list").stderr == "no aliases\n"
    run("set", "prod", "m@v1=1", "m@v2=3", "--no-sticky")
    run("mirror", "prod", "m@v3", "--share", "0.1")
    said = run("fallback", "prod", "light, lighter@v1").stderr
    assert said.splitlines() == [
        "'prod' stands for m@v1 25 %, m@v2 75 %.",
        "0.1 of its requests are also sent to m@v3.",
        "For clients that allow it: light, lighter@v1.",
    ]
    head, row = run("list").stdout.splitlines()
    assert head.split() == ["NAME", "STANDS", "FOR", "STICKY", "MIRROR", "FALLBACK", "CHANGED"]
    for cell in ("prod", "m@v1 25 %, m@v2 75 %", "no", "m@v3 0.1", "light, lighter@v1", "UTC"):
        assert cell in row


def test_what_goes_with_an_alias_is_taken_off_again(run: Run) -> None:
    run("set", "prod", "m@v1", "--no-sticky")
    run("mirror", "prod", "m@v3", "--share", "1")
    run("fallback", "prod", "light")
    assert run("mirror", "prod", "--off").exit_code == 0
    data = json.loads(run("fallback", "prod", "--off", "--json").stdout)
    assert (data["mirror"], data["fallback"], data["sticky"]) == (None, [], False)
    assert json.loads(run("set", "prod", "m@v2", "--sticky", "--json").stdout)["sticky"] is True


def test_the_history_says_what_it_was_when_and_any_of_it_can_be_had_back(run: Run) -> None:
    run("set", "m", "m@v1")
    run("switch", "m", "m@v2")
    run("switch", "m", "m@v3")
    run("remove", "m")
    told = json.loads(run("history", "m", "--json").stdout)
    assert [each["what"] for each in told] == ["set", "switch", "switch", "remove"]
    assert told[0]["alias"]["targets"][0]["version"] == "v1"
    assert told[3]["alias"] is None
    assert "no alias" in run("history", "m").stdout.splitlines()[-1]
    assert run("rollback", "m").stderr == "'m' stands for m@v3.\n"
    assert run("rollback", "m", "--to", str(told[0]["change"])).stderr == "'m' stands for m@v1.\n"
    assert run("history", "nothing").stderr == "nothing is known of 'nothing'\n"


def test_targets_that_nobody_serves_are_warned_of(run: Run) -> None:
    for arguments in (["set", "prod", "m@v1=1", "mm=1", "gone=0"], ["switch", "prod", "mm"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert [line for line in result.stderr.splitlines() if "Warning" in line] == [
            "Warning: nobody has lately served mm; requests that go there are refused until somebody does."
        ]
    told = run("set", "prod", "mm", "--json")
    assert "nobody has lately served mm" in told.stderr
    assert json.loads(told.stdout)["targets"][0]["model"] == "mm"


WRONG = [
    (["set", "m"], "Missing argument"),
    (["set", "m", "m@v1=90", "m@v2"], "every target a weight"),
    (["set", "m", "m@v1=ninety"], "no weight"),
    (["set", "m", "m@v1=0"], "every weight is 0"),
    (["set", "two words", "m"], "no model's name"),
    (["switch", "m", ""], "no model's name"),
    (["mirror", "m", "n"], "--share, or --off"),
    (["mirror", "m", "n", "--share", "0.1", "--off"], "--share, or --off"),
    (["mirror", "m", "n", "--share", "2"], "over 0 and at most 1"),
    (["fallback", "m"], "or --off"),
    (["fallback", "m", "m"], "its own fallback"),
    (["fallback", "m", "a,,b"], "no model's name"),
    (["set", "b", "prod"], "'prod' is an alias itself"),
    (["set", "real", "x"], "'real' is a target of the alias 'prod'"),
]


def test_wrong_values_are_wrong_usage_and_change_nothing(run: Run) -> None:
    run("set", "prod", "real")
    before = run("list", "--json").stdout
    for arguments, complaint in WRONG:
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert complaint in " ".join(result.stderr.replace("│", " ").split())
    assert run("list", "--json").stdout == before


def test_what_is_not_there_fails(run: Run) -> None:
    for arguments in (["remove", "m"], ["rollback", "m"], ["rollback", "m", "--to", "7"]):
        result = run(*arguments)
        assert result.exit_code == 1, arguments
        assert "trunkline alias" in result.stderr


def test_every_command_has_help_with_an_example(run: Run) -> None:
    for command in ("set", "switch", "rollback", "mirror", "fallback", "list", "history", "remove"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"Example: trunkline alias {command} " in " ".join(result.output.replace("│", " ").split())
