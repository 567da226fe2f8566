"""Commands in the common form: how arguments are written, and what is said of values that cannot be read."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from shared.process.command_line import CommandApp, command_group


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


group = command_group("Things of all kinds.", example="trunkline things paint it")
_seen: list[object] = []


@group.command("paint")
def paint(
    name: str,
    colours: Annotated[list[Colour] | None, typer.Argument()] = None,
    coats: Annotated[int, typer.Option(min=1, max=9)] = 1,
    share: Annotated[float, typer.Option(min=0)] = 1.0,
    label: Annotated[str, typer.Option(help="Any.")] = "",
    state: Annotated[Path | None, typer.Option(help="Where.")] = None,
) -> None:
    """Paint a thing."""
    if name == "never":
        raise typer.BadParameter("it is never painted", param_hint="NAME")
    _seen.append((name, coats, state))


@group.command("forget")
def forget(name: Annotated[str, typer.Argument()] = "") -> None:
    """Forget a thing."""


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    _seen.clear()
    app = CommandApp()
    app.add_typer(group, name="things")
    app.callback()(lambda: None)
    return app


def run(app: typer.Typer, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["things", *arguments])


def complaint(result: Result) -> str:
    """What is said on standard error, without the frame around it."""
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return " ".join(result.stderr.replace("│", " ").split())


def test_the_help_of_a_group_has_its_example(app: typer.Typer) -> None:
    assert "Example: trunkline things paint it" in run(app, "--help").stdout


def test_arguments_are_written_in_capitals_and_without_braces(app: typer.Typer) -> None:
    assert "paint [OPTIONS] NAME [COLOURS]..." in run(app, "paint", "--help").stdout
    assert "forget [OPTIONS] [NAME]" in run(app, "forget", "--help").stdout
    assert "Missing argument 'NAME'" in complaint(run(app, "paint"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["it", "green"], "'green' is not one of 'red', 'blue'"),
        (["it", "--coats", "x"], "'--coats': 'x' is no whole number"),
        (["it", "--coats", ""], "'--coats': '' is no whole number"),
        (["it", "--coats", "-1"], "'--coats': '-1' is not at least 1"),
        (["it", "--coats", "10"], "'--coats': '10' is not at most 9"),
        (["it", "--coats", "\udcff"], "'--coats': what was given holds bytes that are no text (UTF-8)"),
        (["it", "--share", "much"], "'--share': 'much' is no number"),
        (["it", "--share", "nan"], "'--share': 'nan' is not at least 0"),
        (["a\udcff"], "'NAME': what was given holds bytes that are no text (UTF-8)"),
        (["it", "--label", "a\udcff"], "'--label': what was given holds bytes that are no text (UTF-8)"),
        (["it", "--state", ""], "'--state': a path is not empty; for this directory write ."),
        (["it", "--state="], "'--state': a path is not empty; for this directory write ."),
        (["never"], "Invalid value for 'NAME': it is never painted"),
    ],
)
def test_what_cannot_be_read_is_told_in_plain_words(
    app: typer.Typer, arguments: list[str], told: str
) -> None:
    said = complaint(run(app, "paint", *arguments))
    assert told in said
    assert "Value error" not in said
    assert "Input should" not in said
    assert _seen == []


def test_a_long_value_is_told_in_part_and_a_control_character_as_an_escape(app: typer.Typer) -> None:
    assert "(302 characters) is no whole number" in complaint(run(app, "paint", "it", "--coats", "x" * 300))
    assert r"'\x1b[31m'" in complaint(run(app, "paint", "it", "--coats", "\x1b[31m"))


def test_a_path_may_hold_any_bytes_and_be_this_directory(app: typer.Typer) -> None:
    for path in (".", "a\udcff"):
        assert run(app, "paint", "it", "--state", path, "--label", "").exit_code == 0
        assert _seen[-1] == ("it", 1, Path(path))
