"""``trunkline job``: submit requests that are answered later, and look after them."""

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote, urlencode

import orjson
import typer

from gateway.cli.options import CaOption, JsonOption, KeyOption, UrlOption
from gateway.cli_support.asked_gateway import DEFAULT_URL, gateway_client
from gateway.cli_support.console import StatusLine, fail, note, number_option, print_json, print_table
from shared.process.command_line import EXAMPLE, command_group
from shared.process.excerpt import printable

if TYPE_CHECKING:
    from gateway.cli_support.gateway_client import GatewayClient

WAIT_S = 20
"""Each request of a wait lasts so long at the most; proxies in front end none that short."""
LOOK_S = 2
"""The same where somebody looks on, at a terminal."""
_SLACK_S = 40.0
PIECE_BYTES = 64 * 1024
ENDED = frozenset(("succeeded", "failed", "cancelled", "expired"))

job = command_group(
    "Jobs: requests that are answered later.",
    example="trunkline job submit --path /v1/chat/completions --body prompt.json --wait",
)


class JobTier(StrEnum):
    """How urgent a job is."""

    BATCH = "batch"
    STANDARD = "standard"
    REALTIME = "realtime"


IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id: job-….")]


def register(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    app.add_typer(job, name="job")


@job.command("submit")
def submit(
    route: Annotated[
        str, typer.Option("--path", metavar="PATH", help="Where it goes, such as /v1/chat/completions.")
    ],
    body: Annotated[str, typer.Option(metavar="FILE", help="The request's JSON; - reads it from stdin.")],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    tier: Annotated[JobTier | None, typer.Option(help="How urgent it is.", show_default="batch")] = None,
    expires_after: Annotated[
        float | None, number_option("It is given up after so many seconds.", "--expires-after")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The same key and body make one job, for 24 hours.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and print its answer.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a job. Takes any key that may make the request.

    Example: trunkline job submit --path /v1/chat/completions --body prompt.json --wait
    """
    asked: dict[str, Any] = {"path": route, "body": _read_body(body)}
    if tier is not None:
        asked["tier"] = tier.value
    if expires_after is not None:
        asked["expires_after"] = expires_after
    with gateway_client(url, key, ca_file, role=False) as client:
        made = _submit(client, asked, idempotency_key)
        if wait:
            _finish(client, made, as_json=as_json)
            return
    if as_json:
        print_json(made)
        return
    note(f"Job {made['id']} waits{_when(made)}.")
    typer.echo(made["id"])


@job.command("list")
def list_jobs(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATES", help="Only these, such as queued,running.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The newest so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the newest jobs of the key's tenant.

    Example: trunkline job list --status queued,running
    """
    query = {"limit": str(limit)} | ({} if status is None else {"status": status})
    with gateway_client(url, key, ca_file, role=False) as client:
        found = _ask(client, "GET", f"?{urlencode(query)}")["data"]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            each["id"],
            each["status"],
            each["model"],
            each["path"],
            _time(each["created_at"]),
            _time(each["finished_at"] or each["predicted_completion_at"]),
        ]
        for each in found
    ]
    print_table(["JOB", "STATE", "MODEL", "PATH", "SUBMITTED", "DONE"], rows, "no jobs")


def _add_command_for_one(name: str, method: str, action: str, text: str) -> None:
    """Add a command that makes one request for one job and shows the job that comes back. ``action`` ends the
    request's path; ``text`` is what the command's help says."""

    @job.command(name, help=f"{text}\n\n{EXAMPLE}trunkline job {name} job-4f1c")
    def command(
        job_id: IdArgument,
        url: UrlOption = DEFAULT_URL,
        key: KeyOption = None,
        ca_file: CaOption = None,
        as_json: JsonOption = False,
    ) -> None:
        with gateway_client(url, key, ca_file, role=False) as client:
            found = _ask(client, method, f"{_one(job_id)}{action}")
        _show(found, as_json=as_json)


_add_command_for_one("show", "GET", "", "Show one job.")


@job.command("wait")
def wait_for(
    job_id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait for the end of a job, and print its answer; with --json the job itself.

    Example: trunkline job wait job-4f1c
    """
    with gateway_client(url, key, ca_file, role=False) as client:
        _finish(client, _ask(client, "GET", _one(job_id)), as_json=as_json)


_add_command_for_one("cancel", "POST", "/cancel", "Cancel a job; one that has ended stays as it is.")
_add_command_for_one("retry", "POST", "/retry", "Queue a failed job again.")


def _read_body(file: str) -> object:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file!r}: {error.strerror}", param_hint="--body") from None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(f"{file!r} holds no JSON: {error}", param_hint="--body") from None


def _one(job_id: str) -> str:
    return "/" + quote(job_id, safe="", errors="surrogateescape")


def _ask(
    client: "GatewayClient",
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    from gateway.cli_support.gateway_client import ANSWER_BYTES, GatewayFailed

    with client.open(
        method, f"/v1/jobs{path}", body=body, more=headers, timeout_s=WAIT_S + _SLACK_S
    ) as response:
        try:
            found = orjson.loads(response.read(ANSWER_BYTES))
        except orjson.JSONDecodeError:
            found = None
    if not isinstance(found, dict) or found.get("object") not in ("job", "list"):
        raise GatewayFailed("this address does not answer as a gateway with jobs does")
    return found


def _submit(client: "GatewayClient", asked: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """The job; a request that breaks off is made again, and makes no second one. Raises GatewayFailed."""
    from gateway.cli_support.asking_again import answered, new_idempotency_key
    from gateway.cli_support.gateway_client import GatewayFailed, Unanswered

    once = key or new_idempotency_key()
    try:
        return answered(lambda: _ask(client, "POST", "", body=asked, headers={"idempotency-key": once}))
    except GatewayFailed as error:
        if error.unanswered is Unanswered.BROKEN_OFF:
            note(
                "Whether the job was made is not known. Within 24 hours the same command with "
                f"--idempotency-key {once} gives that job, and makes it where there is none."
            )
        raise


def _finish(client: "GatewayClient", found: dict[str, Any], *, as_json: bool) -> None:
    """Wait for the job's end and print its answer. Ends the command with 1 unless it has succeeded."""
    try:
        found = _ended(client, found)
    except KeyboardInterrupt:
        note(f"The job goes on: trunkline job wait {found['id']}")
        raise typer.Exit(1) from None
    if as_json:
        print_json(found)
    elif found["status"] == "succeeded":
        note(f"Job {found['id']} succeeded{_took(found)}.")
        with client.open("GET", f"/v1/jobs{_one(found['id'])}/result") as response:
            while piece := response.read(PIECE_BYTES):
                _print(piece)
    if found["status"] != "succeeded":
        _fail_with(found)


def _print(piece: bytes) -> None:
    """Write to stdout. Ends the command where that cannot be, which is no fault of the gateway's."""
    try:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed to it
        raise typer.Exit from None
    except OSError as error:
        fail(f"the answer cannot be written: {error.strerror}")


def _ended(client: "GatewayClient", found: dict[str, Any]) -> dict[str, Any]:
    """The job once it has ended; a gateway that goes away meanwhile is waited for, too."""
    from gateway.cli_support.asking_again import AWAY, answered

    said, line, far = None, StatusLine(sys.stderr), ""
    wait_s = LOOK_S if line.in_place else WAIT_S
    while found["status"] not in ENDED:
        if found["status"] != said:
            said = found["status"]
            line.clear()
            note(f"Job {found['id']} is {said}{_when(found)}.")
        if (now := _progress(found)) != far and said == "running":
            far = now
            line.show(f"Job {found['id']} is at {far}")
        path, wanted = _one(found["id"]), {"prefer": f"wait={wait_s}"}
        found = answered(partial(_ask, client, "GET", path, headers=wanted), reached=True, away=(*AWAY, 429))
    line.clear()
    return found


def _fail_with(found: Mapping[str, Any]) -> NoReturn:
    error = found.get("error") or {}
    why = f": {error['message']}" if error.get("message") else ""
    fail(f"job {found['id']} {'is ' if found['status'] == 'expired' else ''}{found['status']}{why}")


def _show(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    result, error = found.get("result"), found.get("error")
    rows = {
        "job": found["id"],
        "state": found["status"] + (", to be cancelled" if found.get("cancelling") else ""),
        "model": found["model"],
        "path": found["path"],
        "tier": found["tier"],
        "submitted": _time(found["created_at"]),
        "started": _time(found["started_at"]),
        "done": _time(found["finished_at"]),
        "predicted": _time(found["predicted_completion_at"]),
        "progress": _progress(found),
        "attempts": str(found["attempts"]),
        "answer": "" if result is None else f"{result['status']}, {result['bytes']} bytes",
        "error": "" if error is None else str(error.get("message") or error.get("code")),
    }
    print_table(["WHAT", "HOW"], [[name, text] for name, text in rows.items() if text], "")


def _progress(found: Mapping[str, Any]) -> str:
    """``40 %, step 12 of 30``, as far as it is known."""
    share = found.get("progress")
    words = found.get("progress_text") if found["status"] == "running" else None
    told = [] if share is None else [f"{share:.0%}"]
    return printable(", ".join([*told, words] if words else told))


def _when(found: Mapping[str, Any]) -> str:
    at_s = found.get("predicted_completion_at")
    return "" if at_s is None else f", to be done at about {_time(at_s)}"


def _took(found: Mapping[str, Any]) -> str:
    began_s, ended_s = found.get("created_at"), found.get("finished_at")
    return "" if began_s is None or ended_s is None else f" after {ended_s - began_s} s"


def _time(at_s: float | None) -> str:
    return (
        "" if at_s is None else datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    )
