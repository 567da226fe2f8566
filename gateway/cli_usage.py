"""``trunkline usage``: what was used, by whom, of what."""

from datetime import date
from typing import Annotated, Any

import typer

from gateway.cli_output import print_json, print_table
from gateway.cli_state import JsonOption, StateOption, opened
from gateway.store import By, Total


def register(parent: typer.Typer) -> None:
    """Add ``usage`` to a command line."""
    parent.command("usage")(usage)


def usage(
    state: StateOption,
    by: Annotated[By, typer.Option(help="What to add up by.")] = By.KEY,
    since: Annotated[
        str, typer.Option(help="The first day to count (UTC); without it, all.", metavar="YYYY-MM-DD")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show requests and tokens used: by API key, tenant, model or day.

    Counts requests that were begun to be answered, on the day they ended.
    Tokens are what engines reported. A running gateway adds every second.

    Example: trunkline usage --by model --since 2026-11-01
    """
    first = _day(since) if since else ""
    with opened(state) as store:
        totals = store.usage.totals(by, first)
    if as_json:
        print_json([_facts(by, total) for total in totals])
        return
    tenant = ["TENANT"] if by is By.KEY else []
    columns = [by.value.upper(), *tenant, "REQUESTS", "PROMPT", "COMPLETION", "CACHED"]
    print_table(columns, [_row(total) for total in totals], "nothing was used")


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no day; write for example 2026-11-01", param_hint="--since"
        ) from None


def _row(total: Total) -> list[str]:
    amount = total.amount
    counts = (amount.requests, amount.prompt_tokens, amount.completion_tokens, amount.cached_tokens)
    return [total.name, *([total.tenant] if total.tenant is not None else []), *map(str, counts)]


def _facts(by: By, total: Total) -> dict[str, Any]:
    amount = total.amount
    return {
        by.value: total.name,
        **({"tenant": total.tenant, "key_id": total.key_id} if by is By.KEY else {}),
        "requests": amount.requests,
        "prompt_tokens": amount.prompt_tokens,
        "completion_tokens": amount.completion_tokens,
        "cached_tokens": amount.cached_tokens,
    }
