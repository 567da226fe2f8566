"""The answer to a what-if on a terminal."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import typer

from gateway.cli_support.console import print_table
from shared.process.excerpt import printable

Json = Mapping[str, Any]

NONE = "–"
_COLUMNS = ("measured", "before", "after")
COLUMNS = ("", "MEASURED", "SIMULATED AS NOW", "WITH THE CHANGES", "DIFFERENCE")
ERROR_COLUMNS = (*COLUMNS[:3], "ERROR")
"""Where nothing is different."""


def print_answer(answer: Json) -> None:
    """Tables and sentences for people."""
    for line in head(answer):
        typer.echo(printable(line))
    typer.echo()
    changed = bool(answer["changes"])
    columns = COLUMNS if changed else ERROR_COLUMNS
    print_table(columns, rows_of(answer["total"], changed=changed), "nothing was replayed")
    if len(answer["models"]) > 1:
        for each in answer["models"]:
            typer.echo()
            typer.echo(printable(f"{each['model']}, {_requests(each['measured']['requests'])}"))
            print_table(columns, rows_of(each, changed=changed), "nothing was replayed")
    typer.echo("\nHow fast devices are:")
    for each in answer["speeds"]:
        typer.echo(printable(speed_line(each)))
    typer.echo("\nWhat to keep in mind:")
    for line in answer["notes"]:
        typer.echo(printable(f"- {line}"))


def head(answer: Json) -> list[str]:
    """What was replayed, and what is different."""
    begin, end = (datetime.fromtimestamp(answer[name], UTC) for name in ("from", "until"))
    lines = [
        f"{_requests(answer['requests'])} from {begin:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC, from "
        f"{answer['source']}."
    ]
    lines += [
        f"Not replayed: {_requests(each['requests'])} that {each['words']}." for each in answer["left_out"]
    ]
    changes = (
        "; ".join(answer["changes"]) or "nothing, so that only the error of the simulation is to be seen"
    )
    return [*lines, f"What is different: {changes}."]


def rows_of(figures: Json, *, changed: bool = True) -> list[list[str]]:
    """A row for each figure of ``measured``, ``before`` and ``after``; the last where something is
    ``changed``. It ends with how the last two differ."""
    rows = []
    for words, value, form in _FIGURES:
        values = [value(figures[name]) for name in (_COLUMNS if changed else _COLUMNS[:2])]
        if any(each is not None for each in values):
            difference = _difference(*values[-2:])
            rows.append([words, *(NONE if each is None else form(each) for each in values), difference])
    return rows


def speed_line(row: Json) -> str:
    """One class of device."""
    device = row["device"] or "device without a name"
    counts = f"{row['before']}" if row["before"] == row["after"] else f"{row['before']} → {row['after']}"
    return (
        f"- {counts} × {device} with {row['model']}: {row['tokens_per_s']:.3g} tokens/s alone, "
        f"{row['prompt_tokens_per_s']:,.0f} prompt tokens/s. {row['words']}"
    )


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _difference(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return NONE
    if before == after:
        return "="
    if not before:
        return NONE
    share = f"{(after - before) / before:+.0%}"
    return "<1%" if share in ("+0%", "-0%") else share


def _percentile(name: str, rank: str) -> Callable[[Json], float | None]:
    return lambda figures: figures[name][rank]


def _member(name: str) -> Callable[[Json], float | None]:
    return lambda figures: figures[name]


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _decimal(value: float) -> str:
    return f"{value:,.2f}"


_FIGURES: tuple[tuple[str, Callable[[Json], float | None], Callable[[float], str]], ...] = (
    *(
        (f"first token {rank}", _percentile("first_token_s", rank), _seconds)
        for rank in ("p50", "p90", "p99")
    ),
    *((f"in the queue {rank}", _percentile("queued_s", rank), _seconds) for rank in ("p50", "p90", "p99")),
    ("service level kept", _member("slo_kept"), _share),
    ("answered", _member("answered"), _count),
    ("refused", _member("refused"), _count),
    ("failed", _member("failed"), _count),
    ("cancelled", _member("cancelled"), _count),
    ("tokens written a second", _member("output_tokens_per_s"), _rate),
    ("deployments in use", _member("utilisation"), _share),
    ("deployments", _member("deployments"), _count),
    ("slots", _member("slots"), _count),
    ("GPU-hours", _member("gpu_hours"), _decimal),
    ("cost", _member("cost"), _decimal),
)
