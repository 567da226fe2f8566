"""``trunkline audit``: is the audit log whole, and what is in it."""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.audit import Anchor, Report, trusted_keys, verify
from gateway.audit.reading import read_lines
from gateway.audit.segments import DIRECTORY
from gateway.cli_options import JsonOption, StateOption, duration_s
from gateway.cli_output import fail, note, print_json
from gateway.cli_state import opened
from gateway.store.errors import StateError
from shared.command_line import command_group

SEQ_DIGITS = 18
"""More lines than anybody will write."""

audit = command_group(
    "The audit log: who did what, which requests ran where, what they used.", example="trunkline audit verify"
)


def register(app: typer.Typer) -> None:
    """Add ``audit`` to a command line."""
    app.add_typer(audit, name="audit")


@audit.command("verify")
def verify_log(
    expect: Annotated[
        str | None,
        typer.Option(
            help="What an earlier verification printed as its end: that line must be there as it was.",
            metavar="SEQ:HASH",
        ),
    ] = None,
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Verify that nothing in the audit log was changed, removed, added or reordered; exit code 1 if it was.

    Prints the end of a sound log as SEQ:HASH. Kept where nobody gets at it who can write the state
    directory, it shows later (--expect) that not even the whole log was exchanged.

    Example: trunkline audit verify --state /var/lib/trunkline
    """
    anchor = None if expect is None else _anchor(expect)
    with opened(state) as store:
        report = verify(store.state_dir / DIRECTORY, trusted_keys(store), anchor)
    if as_json:
        print_json(_facts(report))
    else:
        _tell(report)
    if not report.sound:
        raise typer.Exit(1)


def _anchor(text: str) -> Anchor:
    seq, _, digest = text.partition(":")
    if not seq.isdecimal() or len(seq) > SEQ_DIGITS or len(digest) != 64:
        raise typer.BadParameter(f"{text!r} is not SEQ:HASH", param_hint="--expect")
    return Anchor(int(seq), digest.lower())


def _tell(report: Report) -> None:
    for text in report.notes:
        note(f"note: {text}")
    for text in report.findings:
        note(f"WRONG: {text}")
    lines = f"lines: {report.lines} ({report.first_seq} to {report.last_seq}), segments: {report.segments}"
    if report.sound:
        note(f"{lines}: nothing was tampered with.")
        print(f"{report.last_seq}:{report.last_hash}")  # noqa: T201
    else:
        note(f"{lines}. Wrong: {len(report.findings)}.")


def _facts(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "findings": report.findings,
        "notes": report.notes,
        "lines": report.lines,
        "segments": report.segments,
        "first": report.first_seq,
        "end": f"{report.last_seq}:{report.last_hash}",
    }


@audit.command("export")
def export_log(
    since: Annotated[
        str,
        typer.Option(help="From this day or moment (UTC) on, or for so long until now.", metavar="WHEN"),
    ] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only these: key.create, request …; 'key.' for all of keys. Repeatable."),
    ] = None,
    state: StateOption = None,
) -> None:
    """Print the audit log as JSON lines, as they are in it.

    Example: trunkline audit export --since 7d --kind key. --kind agent.
    """
    first = _moment(since) if since else ""
    with opened(state) as store:
        directory = store.state_dir / DIRECTORY
    try:
        _print_lines(directory, first, tuple(kind or ()))
    except StateError as error:
        fail(str(error))


def _print_lines(directory: Path, since: str, kinds: tuple[str, ...]) -> None:
    try:
        for line in read_lines(directory, since, kinds):
            sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed to it


def _moment(text: str) -> str:
    """As lines have it. Raises typer.BadParameter."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = datetime.fromtimestamp(max(0.0, time.time() - duration_s(text, "--since")), UTC)
    try:
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is in no year that UTC has", param_hint="--since") from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
