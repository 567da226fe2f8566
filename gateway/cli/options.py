"""Options that several commands have, under one name each, and what is read from and written into them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")

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


def duration_s(text: str, option: str = "--expires") -> float:
    """Seconds in ``90s``, ``30m``, ``24h``, ``7d`` or ``2w``. Raises typer.BadParameter."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no duration; write for example 30m, 24h or 7d", param_hint=option
        )
    return float(match[1]) * _UNITS_S[match[2]]


def listed(texts: list[str] | None) -> list[str] | None:
    """The values in options that may be repeated and hold several, separated by commas."""
    return None if not texts else [part.strip() for text in texts for part in text.split(",")]


def labels_of(pairs: list[str]) -> dict[str, str]:
    """The labels in ``k=v`` texts. Raises typer.BadParameter."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in labels:
            problem = "is given twice" if equals else "is no label; write k=v"
            raise typer.BadParameter(f"{pair!r} {problem}", param_hint="--label")
        labels[name] = value
    return labels


def label_text(labels: Mapping[str, str]) -> str:
    """``k=v`` of each, by name."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))
