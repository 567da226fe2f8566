"""What the commands that work on a state directory have in common."""

import json
import sys
from pathlib import Path

import pytest

from gateway.cli_support import console as cli_output
from gateway.storage import Store
from tests.gateway.cli.command_line import Run


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


@pytest.mark.parametrize("arguments", [["key", "list"], ["agents", "list"], ["tenant", "list"]])
def test_a_state_that_cannot_be_looked_for_fails_with_one_line(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, "--state", "a" * 300)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("trunkline: cannot open ")
    assert len(result.stderr.splitlines()) == 1


def test_a_damaged_state_fails_with_one_line(run: Run, state: Path) -> None:
    state.mkdir()
    (state / "gateway.db").write_bytes(b"rubbish" * 1000)
    result = run("key", "list")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["key", "create", "--name", "\udcff"],
        ["key", "create", "--name", "ci", "--tenant", "\udcff"],
        ["key", "create", "--name", "ci", "--models", "\udcff"],
        ["key", "create", "--name", "ci", "--where", "a=\udcff"],
        ["key", "revoke", "\udcff"],
        ["key", "rotate", "\udcff"],
        ["key", "set", "\udcff", "--rpm", "1"],
        ["tenant", "set", "\udcff", "--rpm", "1"],
        ["tenant", "remove", "\udcff"],
        ["price", "set", "\udcff", "--input", "1"],
        ["price", "remove", "\udcff"],
        ["agents", "revoke", "\udcff"],
        ["agents", "rename", "\udcff", "b"],
        ["token", "revoke", "\udcff\udcff\udcff\udcff"],
    ],
)
def test_bytes_that_are_no_text_are_wrong_usage(run: Run, state: Path, arguments: list[str]) -> None:
    Store.open(state).close()
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(f"{group} {command}" for group in ("token", "key") for command in ("create", "list", "revoke")),
        *("agents list", "agents revoke", "agents rename", "agents set"),
        *("identity show", "identity rotate"),
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
