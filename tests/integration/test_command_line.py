"""Every command and group: its help has an example that can be run; odd values are told in plain words."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from shared.process.cli import build
from shared.process.command_line import EXAMPLE


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


ODD = ("", "-1", "x" * 300, "a\tb\x1b[31m\n", "a\udcff", "nan", "1e400", "9" * 20)
NOT_ASKING = {"gateway", "agent", "quickstart", "bench", "simulate"}
ASKING = [
    (words, each) for words, each in ALL[1:] if words[1] not in NOT_ASKING and not hasattr(each, "commands")
]
HERE = {"--state", "--url", "--key", "--help"}


def lines_with(command: Any, value: str) -> Iterator[list[str]]:
    """Command lines in which each argument and option in turn is ``value``; what else is needed is sound."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.is_flag]
    needed = [each for each in options if each.required]
    for odd in [*arguments, *(each for each in options if not HERE & set(each.opts))]:
        given = [
            f"{each.opts[0]}={value if each is odd else 'llama'}" for each in {*needed, odd} - {*arguments}
        ]
        yield [*given, "--", *(value if each is odd else "llama" for each in arguments)]


@pytest.mark.parametrize("value", ODD, ids=ascii)
@pytest.mark.parametrize(("words", "command"), ASKING, ids=[" ".join(words) for words, _ in ASKING])
def test_odd_values_are_told_in_plain_words_or_asked_for(
    words: tuple[str, ...], command: Any, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in lines_with(command, value):
        where = ["--url", "http://127.0.0.1:1", "--key", "k"]
        with pytest.raises(SystemExit) as ended:
            ROOT.main([*words[1:], *where, *line], prog_name="trunkline")
        said = capsys.readouterr().err
        asked = "cannot ask the gateway" in said or "checks run" in said
        assert ended.value.code == 2 or (ended.value.code == 1 and asked), said
        assert "Value error" not in said
        assert "Input should" not in said
        assert not any(each != "\n" and not each.isprintable() for each in said)


@pytest.mark.parametrize(
    "line",
    [
        ["simulate", "--mix", "chat", "--fleet", "1*l4", "--requests", "9" * 20],
        ["bench", "--max-tokens", "9" * 20],
        ["bench", "--requests", "9" * 20],
        ["quickstart", "--model", "x" * 300],
        ["gateway", "--tls-cert", "x" * 300, "--tls-key", "x" * 300],
        ["gateway", "--state", ""],
        ["gateway", "--log-format", "loud"],
        ["agent", "--gateway", "http://127.0.0.1:1", "--torch", "x" * 300],
        ["agent", "--gateway", "http://127.0.0.1:1", "--join", "join:"],
    ],
    ids=lambda line: " ".join(line)[:40],
)
def test_what_cannot_be_run_is_wrong_usage(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ROOT.main(line, prog_name="trunkline")
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert "--join: join:" not in said
