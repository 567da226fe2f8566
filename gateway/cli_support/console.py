"""How commands write: data to stdout, everything else to stderr, colours only on a terminal."""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO, TypeVar, get_type_hints

import orjson
import typer

from shared.process.excerpt import printable

Options = TypeVar("Options")

_CLEAR_LINE = "\r\x1b[K"


def command_with(options: type[Options], run: Callable[[Options], None]) -> Callable[..., None]:
    """``run`` as a command of typer whose parameters are the fields of the dataclass ``options``."""

    def command(**values: Any) -> None:
        run(options(**values))

    command.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = get_type_hints(options, include_extras=True)
    command.__doc__ = run.__doc__
    return command


def number_option(text: str, *names: str, metavar: str = "S", least: float = math.ulp(0.0)) -> Any:
    """An option of typer, with ``text`` as its help, that takes a finite number above 0, or from another
    ``least`` on."""

    def parse(given: str) -> float:
        try:
            value = float(given)
        except ValueError:
            raise typer.BadParameter(f"{given!r} is no number") from None
        if not least <= value < math.inf:
            wanted = "more than 0" if least else "at least 0"
            raise typer.BadParameter(f"must be {wanted}, not {value:g}")
        return value

    return typer.Option(*names, parser=parse, help=text, metavar=metavar)


def note(text: str) -> None:
    """A line for the human who runs the command; where it cannot be written, it is no reason to stop.

    What could steer a terminal is written as ``?``: names and paths in it may come from elsewhere. The line
    and its end are one write, so that a line of the log comes before or after it and not in between.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(text, keep="\n") + "\n")


def fail(text: str) -> NoReturn:
    """Say what went wrong and end with exit code 1."""
    note(f"trunkline: {text}")
    raise typer.Exit(1)


class StatusLine:
    """How far something is: one line that is rewritten on a terminal, a line each time elsewhere. Where it
    cannot be written, it is no reason to stop."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.in_place = stream.isatty()

    def show(self, text: str) -> None:
        self._write(f"{_CLEAR_LINE}{text}" if self.in_place else f"{text}\n")

    def clear(self) -> None:
        if self.in_place:
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def print_json(value: object) -> None:
    """Data for programs."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())  # noqa: T201


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], when_empty: str) -> None:
    """A table: drawn on a terminal, plain aligned text elsewhere. Without rows only a note."""
    if not rows:
        note(when_empty)
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        Console().print(table)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())  # noqa: T201
