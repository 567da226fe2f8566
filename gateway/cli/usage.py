"""``trunkline usage``: what was used, by whom, of what."""

import csv
import sys
import time
from datetime import UTC, date, datetime
from typing import Annotated, Any

import typer

from gateway.api.admin.resources.resource import BadInput
from gateway.api.admin.resources.text import duration_s
from gateway.cli.access import GatewayAccess, read_pages, with_gateway_options
from gateway.cli.options import JsonOption
from gateway.cli_support.console import print_json, print_table
from gateway.domain.quotas import UsageGrouping


def register(parent: typer.Typer) -> None:
    """Add ``usage`` to a command line."""
    parent.command("usage")(usage)


@with_gateway_options
def usage(
    gateway: GatewayAccess,
    by: Annotated[UsageGrouping, typer.Option(help="What to add up by.")] = UsageGrouping.KEY,
    since: Annotated[
        str,
        typer.Option(
            help="The first day to count (UTC), or how long ago that was: 7d. Without it, all.",
            metavar="YYYY-MM-DD",
        ),
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show requests, tokens, GPU-seconds and money used: by key, tenant, model, deployment or day.

    Counts requests that were begun to be answered, on the day they ended.
    Tokens are what engines reported. A running gateway adds every second. Over HTTP it takes the role admin.

    Example: trunkline usage --by tenant --since 2026-11-01 --csv
    """
    if as_csv and as_json:
        raise typer.BadParameter("one of --csv and --json", param_hint="--csv")
    first = _day(since) if since else ""
    facts = list(read_pages(gateway, "show_usage", "usage", by=by.value, since=first))
    if as_json:
        print_json(facts)
    elif as_csv:
        _print_csv(by, facts)
    else:
        tenant = ["TENANT"] if by is UsageGrouping.KEY else []
        columns = [by.value.upper(), *tenant, *_COLUMNS.values()]
        print_table(columns, [_row(by, each) for each in facts], "nothing was used")


_COLUMNS = {
    "requests": "REQUESTS",
    "prompt_tokens": "PROMPT",
    "completion_tokens": "COMPLETION",
    "cached_tokens": "CACHED",
    "gpu_s": "GPU-S",
    "cost": "COST",
}


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        pass
    try:
        ago_s = duration_s(text)
    except BadInput:
        raise typer.BadParameter(
            f"{text!r} is no day; write for example 2026-11-01, or 7d", param_hint="--since"
        ) from None
    return datetime.fromtimestamp(max(0.0, time.time() - ago_s), UTC).date().isoformat()


def _row(by: UsageGrouping, facts: dict[str, Any]) -> list[str]:
    tenant = [facts["tenant"]] if by is UsageGrouping.KEY else []
    name = facts[by.value] or "(before they were told apart, or none)"
    return [name, *tenant, *(f"{facts[each]:g}" if each == "cost" else str(facts[each]) for each in _COLUMNS)]


def _print_csv(by: UsageGrouping, rows: list[dict[str, Any]]) -> None:
    ids = ["tenant", "key_id"] if by is UsageGrouping.KEY else []
    writer = csv.DictWriter(sys.stdout, [by.value, *ids, *_COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)


def _no_formula(value: Any) -> Any:
    """Text that begins like a formula gets a quote before it: spreadsheets would compute it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
