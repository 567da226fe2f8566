"""One form for every command: how its arguments are written in help, that a group shows an example, and what
is said of a value that cannot be read.

Typer's own forms differ from version to version: arguments as ``{agent}`` or ``AGENT``, and the words of the
library that reads values ("Value error, …") in messages for people.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from shared.process.texts import NO_TEXT, is_text

EXAMPLE = "Example: "
"""Begins the line of a help text that shows a command line to copy."""

INPUT_CHARS = 80
"""How many characters of a wrong value a message quotes."""

_PLAIN: dict[str, str] = {
    "int_parsing": "{input} is no whole number",
    "int_parsing_size": "{input} is too large a number",
    "int_from_float": "{input} is no whole number",
    "float_parsing": "{input} is no number",
    "bool_parsing": "{input} is neither true nor false",
    "greater_than_equal": "{input} is not at least {ge:g}",
    "less_than_equal": "{input} is not at most {le:g}",
    "string_unicode": NO_TEXT,
}
"""What is said of a value, by the kind of mistake that pydantic finds, with which Typer reads values."""


class CommandApp(typer.Typer):
    """A group of commands in the common form; ``command`` adds to it."""

    def __init__(self, **options: Any) -> None:
        """``options`` are Typer's."""
        super().__init__(**{"rich_markup_mode": "rich", "cls": PlainGroup, **options})

    def command(  # type: ignore[override]  # the other options pass through unread
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Typer's, with arguments in the common form."""
        return super().command(name, cls=cls or PlainCommand, **options)


def command_group(text: str, *, example: str) -> CommandApp:
    """A group of commands. ``text`` says what they are about, ``example`` is a line that uses one."""
    return CommandApp(no_args_is_help=True, help=f"{text}\n\n{EXAMPLE}{example}")


class _CheckedPaths:
    """For a command or a group: refuses an empty path, which would mean this directory."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What Typer reads. Raises typer.BadParameter for an empty path."""
        given = list(args)
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        for param in self.params:
            if ctx.params.get(param.name) == Path() and any(
                f"{name}=" in given or (name, "") in pairwise(given) for name in param.opts
            ):
                raise typer.BadParameter(
                    "a path is not empty; for this directory write .", ctx=ctx, param=param
                )
        return rest


class PlainCommand(_CheckedPaths, TyperCommand):
    """A command whose arguments are written ``NAME``, ``[NAME]`` or ``NAME...`` in its help and in errors."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for each in self.params:
            if each.param_type_name == "argument" and each.metavar is None:
                each.metavar = (each.name or "").upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words behind the command's name in its line of usage."""
        options = [self.options_metavar] if self.options_metavar else []
        arguments = (each for each in self.params if each.param_type_name == "argument")
        return [*options, *map(_usage_of, arguments)]

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """With what was given, read. Raises typer.BadParameter with a message for people."""
        with _plain_messages():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run it. Raises typer.BadParameter for bytes that are no text where text is wanted."""
        _check_texts(self, ctx)
        return super().invoke(ctx)


class PlainGroup(_CheckedPaths, TyperGroup):
    """A group below which wrong values are told in plain words."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was given. Raises typer.BadParameter with a message for people."""
        with _plain_messages():
            _check_texts(self, ctx)
            return super().invoke(ctx)


def _usage_of(argument: Any) -> str:
    name = str(argument.metavar) if argument.required else f"[{argument.metavar}]"
    return name if argument.nargs == 1 else f"{name}..."


def _check_texts(command: Any, ctx: Any) -> None:
    """Bytes that are no UTF-8 come as surrogates, which only paths may have: databases refuse them."""
    for param in command.params:
        value = ctx.params.get(param.name)
        texts = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(each, str) and not is_text(each) for each in texts):
            raise typer.BadParameter(NO_TEXT, ctx=ctx, param=param)


@contextmanager
def _plain_messages() -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as error:
        error.message = _plainly(error)
        if isinstance(error.param_hint, str):
            error.param_hint = f"'{error.param_hint.strip(chr(39))}'"  # as Typer writes those it finds itself
        raise


def _plainly(error: typer.BadParameter) -> str:
    """The message, in our words where it is that of pydantic."""
    from shared.process.excerpt import printable, shortened  # only where something is wrong

    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return printable(error.message, keep="\n")
    first = found()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"]).rstrip(".")
    form = _PLAIN.get(first["type"])
    if form is None:
        return error.message
    return form.format(**{**first.get("ctx", {}), "input": shortened(repr(first["input"]), INPUT_CHARS)})
