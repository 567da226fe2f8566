"""The command itself. Exit codes: 0 done, 1 the gateway cannot be asked, 2 wrong usage."""

import sys
from typing import TYPE_CHECKING

import typer

from gateway.cli_support.asked_gateway import gateway_client
from gateway.cli_support.console import command_with, fail, note, print_json, print_table
from gateway.tools.top.options import TopOptions

if TYPE_CHECKING:
    from gateway.cli_support.gateway_client import GatewayClient

SAID_S = 10.0
"""The stream says something every second; one look takes no longer than this."""


def register(parent: typer.Typer) -> None:
    """Add ``trunkline top``."""
    parent.command("top")(command_with(TopOptions, top))


def top(options: TopOptions) -> None:
    """Show the fleet, the queues and requests of a running gateway, live. Takes the role viewer.

    Keys are shown at the bottom, all of them by ?. docs/terminal.md tells what the columns mean.

    Example: trunkline top --url https://gateway.example.com

    Example: trunkline top --once --view models
    """
    once = options.once or options.as_json
    _check_usage(options)
    if not once:
        _check_terminal()
    with gateway_client(options.url, options.key, options.ca_file) as client:
        if once:
            _print_once(client, options)
        else:
            from gateway.tools.top.running import run_top

            run_top(client, options)


def _check_usage(options: TopOptions) -> None:
    """Raises typer.BadParameter."""
    from gateway.tools.top.views import BY_NAME

    titles = [each.title.casefold() for each in BY_NAME[options.view].columns]
    if options.sort and options.sort.removeprefix("-").casefold() not in titles:
        raise typer.BadParameter(
            f"the table {options.view.value} has no column {options.sort.removeprefix('-')!r}; it has "
            f"{', '.join(titles)}",
            param_hint="--sort",
        )
    if options.lines is not None and not options.once:
        raise typer.BadParameter("is for --once", param_hint="--lines")


def _check_terminal() -> None:
    """That there is a terminal, and what shows tables on it."""
    from importlib.util import find_spec

    if not all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)):  # it is drawn on stderr
        raise typer.BadParameter("top needs a terminal; in scripts: trunkline top --once, or --json")
    if find_spec("textual") is None:
        fail(
            "top shows its tables with textual, which is not installed: pip install 'trunkline[top]'. "
            "Without it: trunkline top --once"
        )


def _print_once(client: "GatewayClient", options: TopOptions) -> None:
    """Raises GatewayFailed."""
    from gateway.tools.top.live_fleet import LiveFleet
    from gateway.tools.top.plain import chosen_rows, snapshot_json, summary, table_of, warnings
    from gateway.tools.top.source import FleetEvent, snapshot_of
    from gateway.tools.top.views import BY_NAME

    fleet = LiveFleet()
    for each in snapshot_of(client):
        if isinstance(each, FleetEvent):
            fleet.take(each.name, each.data)
        else:
            fleet.fill(each.requests, recent=each.kind == "recent")
    if options.as_json:
        print_json(snapshot_json(fleet))
        return
    for line in warnings(fleet):
        note(line)
    note(", ".join(summary(fleet)))
    view = BY_NAME[options.view]
    descending = True if options.sort.startswith("-") else False if options.sort else None
    sort = options.sort.removeprefix("-")
    rows = chosen_rows(fleet, view, options.kind, options.words, sort, descending)
    titles, lines = table_of(rows[: options.lines], view)
    print_table(titles, lines, "no row holds these words" if options.words else view.empty)
