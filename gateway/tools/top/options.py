"""The options of ``trunkline top``."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import typer

from gateway.cli_support.asked_gateway import DEFAULT_URL, CaOption, KeyOption, UrlOption


class TopView(StrEnum):
    """A table."""

    FLEET = "fleet"
    MODELS = "models"
    HOSTS = "hosts"
    REQUESTS = "requests"


class TopKind(StrEnum):
    """Requests to show."""

    ALL = "all"
    WAITING = "waiting"
    RUNNING = "running"
    SLOW = "slow"
    FAILED = "failed"


@dataclass(frozen=True)
class TopOptions:
    """What the caller wants."""

    url: UrlOption = DEFAULT_URL
    key: KeyOption = field(default=None, repr=False)
    ca_file: CaOption = None
    view: Annotated[TopView, typer.Option(help="The table to begin with.")] = TopView.FLEET
    words: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="WORDS",
            show_default=False,
            help="Show rows that hold all these words; COLUMN:WORD looks into one column, !WORD is one that "
            "a row must not hold.",
        ),
    ] = ""
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            show_default=False,
            help="The column to sort by; behind a - in descending order.",
        ),
    ] = ""
    kind: Annotated[TopKind, typer.Option(help="Of the table requests: which ones.")] = TopKind.ALL
    light: Annotated[bool, typer.Option("--light", help="Colours for a light terminal.")] = False
    once: Annotated[bool, typer.Option("--once", help="Print one look as a plain table, and end.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one look at everything as JSON.")] = False
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=1, help="With --once: print so many rows at most.")
    ] = None
