"""The options with which commands set limits, and how limits are told."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.domain.quotas import MOST_COUNT, BadQuota, Rates

RpmOption = Annotated[
    int | None, typer.Option("--rpm", help="Requests per minute; 0: no limit.", min=0, max=MOST_COUNT)
]
TpmOption = Annotated[
    int | None,
    typer.Option(
        "--tpm", help="Tokens per minute, of prompts and answers; 0: no limit.", min=0, max=MOST_COUNT
    ),
]
ConcurrencyOption = Annotated[
    int | None, typer.Option("--concurrency", help="Requests at once; 0: no limit.", min=0, max=MOST_COUNT)
]


def given(**values: float | None) -> dict[str, Any]:
    """The limits that were given, by name, with None for those that are to be none."""
    return {name: value or None for name, value in values.items() if value is not None}


def rates_of(**values: int | None) -> dict[str, int | None]:
    """The limits that were given, by name, once they can be. Raises typer.BadParameter."""
    limits = given(**values)
    try:
        Rates(**limits)
    except BadQuota as error:
        raise typer.BadParameter(str(error)) from error
    return limits


def told(facts: Mapping[str, Any]) -> str:
    """The limits that there are, in one line."""
    limits = ((name, value) for name, value in facts.items() if value is not None)
    return " ".join(f"{name.replace('_', '-')}={value:.12g}" for name, value in limits)
