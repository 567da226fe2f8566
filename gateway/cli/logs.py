"""``trunkline logs``: the log of a running gateway, the last lines and those that come."""

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli_support.asked_gateway import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    KeyOption,
    UrlOption,
    gateway_client,
)
from gateway.cli_support.console import note
from shared.process.excerpt import printable

if TYPE_CHECKING:
    from gateway.cli_support.event_stream import StreamEvent
    from gateway.cli_support.gateway_client import GatewayClient

MOST_LINES = 10_000
COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31;1m", "critical": "\x1b[31;1m"}
DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHOWN_FIRST = ("timestamp", "level", "event", "process", "logger")


class LogLevel(StrEnum):
    """The least level of a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def register(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("logs")(logs)


def logs(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with the lines that come.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=MOST_LINES, help="So many of the last lines at first.")
    ] = 100,
    level: Annotated[
        LogLevel | None,
        typer.Option(help="Of this level at least; a gateway keeps none below its log.level."),
    ] = None,
    logger: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this logger, or of those below it: gateway.fleet.")
    ] = None,
    request: Annotated[str | None, typer.Option(metavar="ID", help="Of the request with this id.")] = None,
    trace: Annotated[str | None, typer.Option(metavar="ID", help="Of the trace with this id.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="About this agent.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="About this model or alias.")] = None,
    process: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this process of the gateway.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With this somewhere in it, regardless of case.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Since then: 30s, 10m, 2h, 1d ago, or a time as 2026-05-01T12:00."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the log of a running gateway, of all its processes. Takes the role operator.

    docs/terminal.md says how far back a gateway knows its lines.

    Example: trunkline logs -f --level warning

    Example: trunkline logs --request req_5a41c0de9b0f4e21a7c1d3f2
    """
    named = {
        **{"level": level, "logger": logger, "id": request, "trace_id": trace, "agent": agent},
        **{"model": model, "process": process, "text": text},
    }
    query: dict[str, Any] = {name: str(value) for name, value in named.items() if value is not None}
    if since is not None:
        query["since"] = _time_of(since)
    query |= {"lines": lines, "follow": str(follow).lower()}
    with gateway_client(url, key, ca_file) as client:
        _print_lines(client, f"/admin/logs?{urlencode(query)}", follow, as_json)


def _print_lines(client: "GatewayClient", path: str, follow: bool, as_json: bool) -> None:
    """Until there are no more, or the user ends it. Raises GatewayFailed."""
    from gateway.cli_support.gateway_client import GatewayFailed

    printer = LinePrinter(as_json, colours=sys.stdout.isatty())
    try:
        for each in _events(client, path, follow):
            printer.take(each)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
        raise typer.Exit(0) from None
    except GatewayFailed as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise GatewayFailed("this gateway is of a version whose log cannot be asked for") from error


def _events(client: "GatewayClient", path: str, follow: bool) -> Iterator["StreamEvent"]:
    """What is told; where it follows, without end. That the stream broke off, and is there again, is noted.
    Raises GatewayFailed."""
    from gateway.cli_support.event_stream import EventReader, StreamLost, follow_events

    if not follow:
        with client.open("GET", path) as response:
            reader = EventReader()
            while piece := response.read1(64 * 1024):
                yield from reader.feed(piece)
        return
    lost = False
    for each in follow_events(client, path, _pause):
        if isinstance(each, StreamLost):
            if not lost:
                note(f"-- {each.why}; it is asked for again")
            lost = True
            continue
        if lost:
            note("-- the gateway answers again")
            lost = False
        yield each


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _time_of(text: str) -> str:
    """Seconds since 1970. Raises typer.BadParameter."""
    if found := _AGO.fullmatch(text):
        return f"{time.time() - float(found[1]) * _UNITS_S[found[2]]:.3f}"
    try:
        return f"{datetime.fromisoformat(text).timestamp():.3f}"
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{printable(text[:80])!r} is no time: write 10m, 2h, or 2026-05-01T12:00", param_hint="--since"
        ) from None


class LinePrinter:
    """Writes lines to stdout, and what is to be known of them to stderr."""

    def __init__(self, as_json: bool, colours: bool) -> None:
        self._as_json = as_json
        self._colours = colours
        self._missing: Mapping[str, str] = {}

    def take(self, event: "StreamEvent") -> None:
        """What an event says."""
        import orjson

        data = orjson.loads(event.data)
        if event.name == "lines":
            for line in data:
                text = orjson.dumps(line).decode() if self._as_json else self.line(line)
                sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        elif event.name == "dropped":
            note(f"-- {data['lines']} lines of {data['process']} are missing here: they are kept no more")
        elif event.name == "missing":
            for name, why in data.items():
                if self._missing.get(name) != why:
                    note(f"-- the lines of the process {name} are missing: {why}")
            for name in self._missing.keys() - data.keys():
                note(f"-- the process {name} answers again")
            self._missing = data

    def line(self, facts: Mapping[str, Any]) -> str:
        """A line for people: when, how grave, what, of whom, then its other members; below it what has lines
        of its own, such as a traceback."""
        level, process = str(facts.get("level", "")), facts.get("process")
        members = {name: value for name, value in facts.items() if name not in _SHOWN_FIRST}
        below = [str(value) for value in members.values() if isinstance(value, str) and "\n" in value]
        shown = [
            self._painted(_clock(str(facts.get("timestamp", ""))), DIM),
            self._painted(f"{level:7}", COLOURS.get(level, "")),
            *([printable(str(process))] if process else []),
            self._painted(printable(str(facts.get("event", ""))), BOLD),
            *(
                f"{self._painted(printable(name) + '=', DIM)}{_shown(value)}"
                for name, value in members.items()
                if not (isinstance(value, str) and "\n" in value)
            ),
        ]
        text = " ".join(shown)
        return "\n".join([text, *(printable(each, keep="\n").rstrip("\n") for each in below)])

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}{PLAIN}" if self._colours and colour else text


def _clock(text: str) -> str:
    """The local time of day of a timestamp, with the date where it is another day."""
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone()
    except ValueError:
        return printable(text)
    day = "" if at.date() == datetime.now(UTC).astimezone().date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def _shown(value: object) -> str:
    """A member's value; a text with blanks or nothing in it is quoted."""
    import orjson

    if isinstance(value, str):
        plain = value and not any(each.isspace() or each in '"=' for each in value)
        return printable(value if plain else orjson.dumps(value).decode())
    return printable(orjson.dumps(value).decode())
