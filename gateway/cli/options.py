"""Options that several commands have, under one name each, and what is said of those that cannot be read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="TRUNKLINE_STATE",
        metavar="DIRECTORY",
        show_default="$XDG_STATE_HOME/trunkline or ~/.local/state/trunkline; for root /var/lib/trunkline",
        help="The gateway's state directory, for work on it on this machine.",
    ),
]
OptionalUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--gateway",
        envvar="TRUNKLINE_URL",
        metavar="URL",
        help="The address of a running gateway, to ask that instead.",
    ),
]
UrlOption = Annotated[
    str,
    typer.Option("--url", "--gateway", envvar="TRUNKLINE_URL", metavar="URL", help="The gateway's address."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="TRUNKLINE_KEY",
        metavar="KEY",
        help="A key with a role there. In the variable it is not seen in the list of processes.",
        show_default=False,
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="TRUNKLINE_CA_FILE",
        metavar="FILE",
        help="Certificates to trust for the gateway's TLS.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextlib.contextmanager
def wrong_usage(hint: str | None = None) -> Iterator[None]:
    """Raise a ValueError from inside as typer.BadParameter; ``hint`` names the option."""
    try:
        yield
    except ValueError as error:
        named = getattr(error, "hint", None) or hint
        raise typer.BadParameter(str(error), param_hint=named) from None
