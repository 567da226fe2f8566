"""``trunkline audit``: is the audit log whole, and what is in it."""

import os
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gateway.api.admin.resources.text import duration_s, format_time, split_commas
from gateway.cli.access import GatewayAccess, read_pages, with_gateway_options
from gateway.cli.options import JsonOption, wrong_usage
from gateway.cli_support.console import note, print_json
from shared.process.command_line import command_group

_END = re.compile(r"[0-9]{1,18}:[0-9a-fA-F]{64}")
"""SEQ:HASH. No log has 10^18 lines."""

audit = command_group(
    "The audit log: who did what, which requests ran where, what they used.", example="trunkline audit verify"
)


def register(app: typer.Typer) -> None:
    """Add ``audit`` to a command line."""
    app.add_typer(audit, name="audit")


@audit.command("verify")
@with_gateway_options
def verify_log(
    gateway: GatewayAccess,
    expect: Annotated[
        str | None,
        typer.Option(
            help="What an earlier verification printed as its end: that line must be there as it was.",
            metavar="SEQ:HASH",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify that nothing in the audit log was changed, removed, added or reordered; exit code 1 if it was.

    Prints the end of a sound log as SEQ:HASH. Kept where nobody gets at it who can write the state
    directory, it shows later (--expect) that not even the whole log was exchanged.

    The store knows a recent line of each log: a log that was cut short or written anew is found by it. Logs
    that are not in this state directory are named and not read.

    With --url the gateway verifies its own log and says what it found; that takes the role viewer. It shows
    what was damaged, or changed by somebody else. It proves nothing of a gateway or a host that somebody has
    taken over, for they can answer anything: then verify a copy of the state directory, which holds the
    gateway's key, on a machine that you trust, against an end that was kept elsewhere.

    Example: trunkline audit verify --state /var/lib/trunkline
    """
    if expect is not None and _END.fullmatch(expect) is None:
        raise typer.BadParameter(f"{expect!r} is not SEQ:HASH", param_hint="--expect")
    report = gateway.run("verify_audit", expect=expect)
    if as_json:
        print_json(report)
    else:
        _tell(report, ", the gateway says" if gateway.running else "")
    if not report["sound"]:
        raise typer.Exit(1)


def _tell(report: dict[str, Any], who: str) -> None:
    for text in report["notes"]:
        note(f"note: {text}")
    for text in report["findings"]:
        note(f"WRONG: {text}")
    for head in report.get("elsewhere", ()):  # gateways of earlier versions know of none
        note(
            f"not read: the log {head['chain']} on {head['host']}, which had line {head['seq']} at "
            f"{format_time(head['at_s'])}: verify it there"
        )
    if (anchored := report.get("anchored")) is not None:
        note(f"the store knows line {anchored['seq']} of this log, {report['chain']}")
    first, last, count = report["first"], report["last"], report["lines"]
    lines = f"lines: {count} ({first} to {last}), segments: {report['segments']}"
    if report["sound"]:
        note(f"{lines}: nothing was tampered with{who}.")
        print(report["end"])  # noqa: T201
    else:
        note(f"{lines}. Wrong: {len(report['findings'])}.")


@audit.command("forget-head")
@with_gateway_options
def forget_head(
    gateway: GatewayAccess,
    chain: Annotated[str, typer.Argument(help="The log, as verify names it.")],
    as_json: JsonOption = False,
) -> None:
    """Have the store forget which line it knows of a log: of one that is gone for good, or that goes on from
    a backup. The audit log has a record of it.

    Example: trunkline audit forget-head gateway2-5f0c1a2b
    """
    found = gateway.run("forget_audit_head", chain)
    if as_json:
        print_json(found)
    else:
        end = f"{found['seq']}:{found['hash']}"
        note(f"The store knows no line of the log {chain!r} any more; it was {end}.")


@audit.command("export")
@with_gateway_options
def export_log(
    gateway: GatewayAccess,
    since: Annotated[
        str,
        typer.Option(help="From this day or moment (UTC) on, or for so long until now.", metavar="WHEN"),
    ] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only these: key.create, request …; 'key.' for all of keys. Repeatable."),
    ] = None,
) -> None:
    """Print the audit log as JSON lines, as they are in it. Over HTTP it takes the role admin.

    Example: trunkline audit export --since 7d --kind key. --kind agent.
    """
    first, kinds = _moment(since) if since else "", ",".join(split_commas(kind or []))
    _print_lines(read_pages(gateway, "export_audit", "lines", since=first, kind=kinds))


def _print_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout. Raises typer.Exit when its reader has closed it."""
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed to it
        raise typer.Exit from None


def _moment(text: str) -> str:
    """The moment in the form of the log's lines. Raises typer.BadParameter."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        with wrong_usage("--since"):
            at = datetime.fromtimestamp(max(0.0, time.time() - duration_s(text)), UTC)
    try:
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is in no year that UTC has", param_hint="--since") from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
