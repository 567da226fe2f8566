"""``trunkline batch``: have a file of prompts answered by a gateway, and come back for the answers."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import orjson
import typer

from gateway.cli.batch_lines import UnfitLine, in_order, request_lines
from gateway.cli.batch_partial import NotWritten, PartialAnswers, check_out, give_up, writing
from gateway.cli.options import CaOption, JsonOption, KeyOption, UrlOption
from gateway.cli_support.asked_gateway import DEFAULT_URL, gateway_client
from gateway.cli_support.console import fail, note, print_json, print_table
from gateway.domain.batches import ENDPOINTS, TRY_ANYWAY, WINDOW_KEY
from gateway.domain.line_ranges import write_ranges
from shared.process.excerpt import printable

if TYPE_CHECKING:
    from gateway.cli_support.gateway_client import GatewayClient

POLL_S = 1.0
"""Between two looks at how far a batch is."""
UPLOAD_S = 600.0
"""Longest silence while a file goes to the gateway or comes from it."""

Json = dict[str, Any]

_HELP = """Files of requests, answered by and by, in slots that nobody else wants.

Example: trunkline batch run prompts.jsonl --model qwen3 --out answers.jsonl
"""

OutOption = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="Where the answers go, in the order of the requests.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Of the batch.")]


def register(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    group = typer.Typer(no_args_is_help=True, help=_HELP)
    for name, command in (("run", run), ("wait", wait), ("list", list_), ("show", show), ("cancel", cancel)):
        group.command(name)(command)
    app.add_typer(group, name="batch")


@dataclass(frozen=True)
class Place:
    """Where a batch runs, for whoever is told how to come back to it."""

    client: "GatewayClient"
    url: str


def run(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Requests or prompts, one in a line."),
    ],
    out: OutOption,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="For lines that name no model.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="PATH", help="What is asked for.")
    ] = ENDPOINTS[0],
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="TEXT",
            help="The same key, file and options make one batch, for 24 hours.",
        ),
    ] = None,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="How long it may take: 24h, 7d.")
    ] = "24h",
    try_anyway: Annotated[
        bool, typer.Option("--try-anyway", help="Begin even if it is predicted to take longer than --window.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the requests of a file answered, and write the answers to another one. Ctrl-C leaves it running.

    A line is a request as OpenAI's Batch API has it, {"prompt": …}, {"messages": …}, or a bare text.

    Example: trunkline batch run prompts.jsonl --model qwen3 --out answers.jsonl
    """
    if endpoint not in ENDPOINTS:
        raise typer.BadParameter(f"write one of {', '.join(ENDPOINTS)}", param_hint="--endpoint")
    check_out(out)
    with gateway_client(url, key, ca_file) as client:
        with tempfile.TemporaryFile() as requests:
            try:
                with file.open("rb") as lines:
                    requests.writelines(request_lines(lines, endpoint, model))
            except UnfitLine as error:
                raise typer.BadParameter(str(error), param_hint="FILE") from None
            except OSError as error:
                said = f"cannot read {printable(str(file))} ({error.strerror})"
                raise typer.BadParameter(said, param_hint="FILE") from None
            asked: Json = {"endpoint": endpoint, "completion_window": window}
            if try_anyway:
                asked["metadata"] = {WINDOW_KEY: TRY_ANYWAY}
            batch = _begin(client, requests, file.name, asked, idempotency_key)
        note(f"batch {batch['id']}")
        _follow(Place(client, url), batch, out, as_json=as_json)


def wait(
    batch_id: IdArgument,
    out: OutOption,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait for the end of a batch, and write its answers to a file.

    Example: trunkline batch wait batch_… --out answers.jsonl
    """
    check_out(out)
    with gateway_client(url, key, ca_file) as client:
        _follow(Place(client, url), _ask(client, "GET", _path(batch_id)), out, as_json=as_json)


def list_(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the latest batches of the key's tenant.

    Example: trunkline batch list
    """
    with gateway_client(url, key, ca_file) as client:
        found = _ask(client, "GET", "/v1/batches?limit=100")["data"]
    if as_json:
        print_json(found)
        return
    print_table(
        ["BATCH", "STATE", "MODEL", "DONE", "FAILED", "OF", "CREATED"], list(map(_row, found)), "none"
    )


def show(
    batch_id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
) -> None:
    """Show one batch, as JSON.

    Example: trunkline batch show batch_…
    """
    with gateway_client(url, key, ca_file) as client:
        print_json(_ask(client, "GET", _path(batch_id)))


def cancel(
    batch_id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
) -> None:
    """Cancel a batch; what is done stays.

    Example: trunkline batch cancel batch_…
    """
    with gateway_client(url, key, ca_file) as client:
        found = _ask(client, "POST", f"{_path(batch_id)}/cancel")
    note(f"{found['id']} is {found['status']}")


def _row(batch: Json) -> list[str]:
    counts = batch["request_counts"]
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(batch["created_at"]))
    numbers = (str(counts[name]) for name in ("completed", "failed", "total"))
    return [batch["id"], batch["status"], batch["model"] or "-", *numbers, created]


def _path(batch_id: str) -> str:
    return f"/v1/batches/{quote(batch_id, safe='', errors='surrogateescape')}"


def _ask(
    client: "GatewayClient",
    method: str,
    path: str,
    body: Json | None = None,
    more: Mapping[str, str] | None = None,
) -> Json:
    with client.open(method, path, body=body, more=more) as response:
        found: Json = orjson.loads(response.read())
    return found


def _begin(client: "GatewayClient", requests: IO[bytes], name: str, asked: Json, key: str | None) -> Json:
    """The batch; requests that break off are made again, and make no second one. Raises GatewayFailed."""
    from gateway.cli_support.asking_again import answered, new_idempotency_key
    from gateway.cli_support.gateway_client import GatewayFailed, Unanswered

    once, size_bytes = key or new_idempotency_key(), requests.tell()

    def upload() -> str:
        requests.seek(0)
        more = {"idempotency-key": f"{once}-file"}
        fields = {"purpose": "batch"}
        with client.upload("/v1/files", fields, requests, size_bytes, name, UPLOAD_S, more) as response:
            return str(orjson.loads(response.read())["id"])

    try:
        whole = asked | {"input_file_id": answered(upload)}
        more = {"idempotency-key": f"{once}-batch"}
        return answered(lambda: _ask(client, "POST", "/v1/batches", whole, more), reached=True)
    except GatewayFailed as error:
        if error.unanswered is Unanswered.BROKEN_OFF:
            note(
                "whether the batch was made is not known. Within 24 hours the same command with "
                f"--idempotency-key {once} goes on with it, and makes it where there is none"
            )
        raise


def _follow(place: Place, batch: Json, out: Path, *, as_json: bool) -> None:
    """Until the batch has ended and its answers are written. Ends the command with 1 where not every request
    was answered."""
    from gateway.cli_support.asking_again import answered
    from gateway.cli_support.gateway_client import GatewayFailed

    try:
        partial = PartialAnswers(out, batch["id"])
    except OSError as error:
        said = f"cannot write beside {printable(str(out))} ({error.strerror})"
        raise typer.BadParameter(said, param_hint="--out") from None
    try:
        batch = _until_ended(place.client, batch, partial)
        lines = answered(lambda: _write(place.client, batch, out), reached=True)
        partial.remove()
    except KeyboardInterrupt:
        _say_how_to_come_back(place, batch, out, partial)
        raise typer.Exit(1) from None
    except GatewayFailed as error:
        if error.unanswered is None:
            raise
        _say_how_to_come_back(place, batch, out, partial)
        raise
    except NotWritten as error:
        _say_how_to_come_back(place, batch, out, partial)
        fail(str(error))
    counts = batch["request_counts"]
    if as_json:
        print_json(batch)
    for wrong in (batch["errors"] or {}).get("data", ()):
        at = f"line {wrong['line']}: " if wrong["line"] else ""
        note(f"{at}{wrong['message']} ({wrong['code']})")
        if wrong["code"] == "window_too_short":
            note("nothing of it ran; to have it begun all the same, run the command again with --try-anyway")
    note(f"{batch['status']}: {counts['completed']} of {counts['total']} answered, {lines} lines in {out}")
    if batch["status"] != "completed" or counts["failed"]:
        raise typer.Exit(1)


def _say_how_to_come_back(place: Place, batch: Json, out: Path, partial: PartialAnswers) -> None:
    if len(partial):
        note(f"{len(partial)} answers so far are in {partial.path}")
    note(
        f"{batch['id']} goes on. Come back with: trunkline batch wait {batch['id']} --out {out} "
        f"--url {place.url}"
    )


def _until_ended(client: "GatewayClient", batch: Json, partial: PartialAnswers) -> Json:
    from gateway.cli_support.asking_again import answered

    path = _path(batch["id"])
    with _progress() as progress:
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            progress.show(batch)
            _take_finished(client, batch, partial)
            time.sleep(POLL_S)
            batch = answered(lambda: _ask(client, "GET", path), reached=True)
        progress.show(batch)
    return batch


def _take_finished(client: "GatewayClient", batch: Json, partial: PartialAnswers) -> None:
    """Add the answers that have come since. Nothing ends for want of them: they all come at the end, too, and
    gateways of earlier versions do not give them before."""
    from gateway.cli_support.gateway_client import GatewayFailed

    counts = batch["request_counts"]
    if counts["completed"] + counts["failed"] <= len(partial):
        return
    path = f"{_path(batch['id'])}/results?lines={write_ranges(partial.missing)}"
    with contextlib.suppress(GatewayFailed), client.open("GET", path, timeout_s=UPLOAD_S) as response:
        partial.add(response)


class _Silent:
    """Where nobody watches nothing is drawn."""

    def show(self, batch: Json) -> None:
        """Nothing."""


class _Bar:
    """A bar with the rate and the time that is left."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, rate="")

    def show(self, batch: Json) -> None:
        counts = batch["request_counts"]
        done = counts["completed"] + counts["failed"]
        speed = self._progress.tasks[0].speed
        self._progress.update(
            self._task,
            description=batch["status"].replace("_", " "),
            completed=done,
            total=counts["total"] or None,
            rate=f"{speed:.1f}/s" if speed else "",
        )


@contextlib.contextmanager
def _progress() -> Iterator["_Silent | _Bar"]:
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=60) as drawn:
        yield _Bar(drawn)


def _write(client: "GatewayClient", batch: Json, out: Path) -> int:
    """The answers and errors, in the order of the requests; how many lines. The file is there once it is
    whole. Raises GatewayFailed, NotWritten."""
    whole, lines = out.with_name(f"{out.name}.ordered"), 0
    with contextlib.ExitStack() as files:
        with writing(out):
            written = whole.open("wb")
        files.callback(give_up, written)
        names = [batch[each] for each in ("output_file_id", "error_file_id") if batch[each]]
        contents = [
            files.enter_context(client.open("GET", f"/v1/files/{name}/content", timeout_s=UPLOAD_S))
            for name in names
        ]
        for line in in_order(*contents):
            with writing(out):
                written.write(line)
            lines += 1
        with writing(out):
            written.close()
            os.replace(whole, out)
    return lines
