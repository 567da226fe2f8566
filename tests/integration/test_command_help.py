"""The help of every command and group: an example in one form, which can be run as it stands."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from shared.cli import build
from shared.command_line import EXAMPLE


def whole_tree() -> Any:
    """The root with every command imported, none of which does anything when it is run."""
    root: Any = get_command(build())
    context = root.make_context("trunkline", ["--"], resilient_parsing=True)
    for name in list(root.commands):
        root.resolve_command(context, [name])
    return root


def below(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """``command`` and all below it, each with the words that name it."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from below(each, *words, name)


ROOT = whole_tree()
ALL = list(below(ROOT, "trunkline"))
IDS = [" ".join(words) for words, _ in ALL]


def examples(command: Any) -> list[str]:
    """The command lines that its help shows."""
    paragraphs = f"{command.help}\n\n{command.epilog or ''}".split("\n\n")
    lines = (" ".join(each.split()) for each in paragraphs)
    return [line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)]


@pytest.mark.parametrize(("words", "command"), ALL, ids=IDS)
def test_every_command_and_every_group_shows_an_example_of_itself(
    words: tuple[str, ...], command: Any
) -> None:
    assert "Example" not in (command.epilog or ""), "before the options, as everywhere"
    found = examples(command)
    assert found, command.help
    assert len(found) == str(command.help).count("Example"), "each a paragraph of its own"
    for line in found:
        assert tuple(shlex.split(line)[: len(words)]) == words


@pytest.mark.parametrize(("words", "command"), ALL, ids=IDS)
def test_every_example_is_a_command_line_that_is_understood(
    words: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []
    for path, each in ALL[1:]:
        monkeypatch.setattr(each, "callback", lambda path=path, **options: ran.append(path))
    for line in examples(command):
        ran.clear()
        ROOT.main(shlex.split(line)[1:], prog_name="trunkline", standalone_mode=False)
        assert ran[-1][: len(words)] == words
