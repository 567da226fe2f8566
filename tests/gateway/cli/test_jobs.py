"""``trunkline job`` against a server that says what a gateway says of jobs."""

import errno
import io
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import jobs
from gateway.cli_support import asking_again
from tests.support.threaded_server import served_in_thread

KEY = "sk-tl-secret"
QUEUED: dict[str, Any] = {
    "id": "job-1",
    "object": "job",
    "status": "queued",
    "model": "m",
    "path": "/v1/chat/completions",
    "tier": "batch",
    "created_at": 1_800_000_000,
    "started_at": None,
    "finished_at": None,
    "predicted_completion_at": 1_800_000_060,
    "progress": None,
    "attempts": 0,
    "cancelling": False,
    "result": None,
    "error": None,
}
DONE = QUEUED | {
    "status": "succeeded",
    "finished_at": 1_800_000_007,
    "result": {"status": 200, "bytes": 9, "content_type": "application/json", "url": "/v1/jobs/job-1/result"},
}
BREAKS_OFF = 0
"""A status: the request is read, and its connection is closed."""
FAILED = QUEUED | {"status": "failed", "error": {"message": "It broke.", "code": "engine_failed"}}


class JobServer:
    """Answers by method and path, the last answer again and again; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, object]]] = {}
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                asked = f"{self.command} {self.path}"
                fields = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((asked, fields, body))
                answers = outer.answers.get(asked, [(404, {"error": {"message": "There is no job here."}})])
                status, found = answers.pop(0) if len(answers) > 1 else answers[0]
                if status == BREAKS_OFF:
                    return
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobServer]:
    monkeypatch.setattr(asking_again, "AGAIN_S", 0.01)
    made = JobServer()
    with served_in_thread(made.server):
        yield made


def run(server: JobServer, *arguments: str, given: str | None = None, key: str = KEY) -> Result:
    app = typer.Typer()
    jobs.register(app)
    environment = {"TRUNKLINE_URL": server.url, "TRUNKLINE_KEY": key, "TERM": "dumb", "COLUMNS": "200"}
    return CliRunner().invoke(app, ["job", *arguments], env=environment, input=given)


class FullDisk:
    """What an answer is written to."""

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_answer_that_cannot_be_written_is_no_fault_of_the_gateway(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["GET /v1/jobs/job-1"] = [(200, DONE)]
    server.answers["GET /v1/jobs/job-1/result"] = [(200, b"{}")]
    stdout = SimpleNamespace(buffer=FullDisk())
    monkeypatch.setattr(jobs, "sys", SimpleNamespace(stdout=stdout, stderr=io.StringIO()))
    result = run(server, "wait", "job-1")
    assert result.exit_code == 1
    assert "trunkline: the answer cannot be written: No space left on device" in result.stderr


def test_a_job_is_submitted_from_a_file(server: JobServer, tmp_path: Path) -> None:
    server.answers["POST /v1/jobs"] = [(202, QUEUED)]
    file = tmp_path / "body.json"
    file.write_text('{"model": "m"}')
    more = ("--tier", "standard", "--expires-after", "60", "--idempotency-key", "once")
    result = run(server, "submit", "--path", "/v1/chat/completions", "--body", str(file), *more)
    assert (result.exit_code, result.stdout) == (0, "job-1\n")
    assert "Job job-1 waits, to be done at about " in result.stderr
    _, fields, body = server.asked[0]
    assert (fields["authorization"], fields["idempotency-key"]) == (f"Bearer {KEY}", "once")
    assert json.loads(body) == {
        "path": "/v1/chat/completions",
        "body": {"model": "m"},
        "tier": "standard",
        "expires_after": 60.0,
    }


def test_a_job_is_submitted_from_stdin_and_waited_for(server: JobServer) -> None:
    server.answers["POST /v1/jobs"] = [(202, QUEUED)]
    server.answers["GET /v1/jobs/job-1"] = [(200, QUEUED), (503, {}), (200, DONE)]
    server.answers["GET /v1/jobs/job-1/result"] = [(200, b'{"a": 1}\n')]
    result = run(server, "submit", "--path", "/p", "--body", "-", "--wait", given="{}")
    assert (result.exit_code, result.stdout) == (0, '{"a": 1}\n')
    assert "Job job-1 succeeded after 7 s." in result.stderr
    assert server.asked[1][1]["prefer"] == f"wait={jobs.WAIT_S}"


def test_a_submission_that_breaks_off_is_made_again_with_its_key(server: JobServer) -> None:
    server.answers["POST /v1/jobs"] = [(BREAKS_OFF, {}), (202, QUEUED)]
    result = run(server, "submit", "--path", "/p", "--body", "-", given="{}")
    assert (result.exit_code, result.stdout) == (0, "job-1\n")
    assert "broke off before an answer came; asking again" in result.stderr
    first, second = server.asked
    assert first[1]["idempotency-key"] == second[1]["idempotency-key"]
    assert first[2] == second[2]
    run(server, "submit", "--path", "/p", "--body", "-", given="{}")
    assert server.asked[2][1]["idempotency-key"] != first[1]["idempotency-key"], "another job"


def test_a_submission_that_is_never_answered_says_how_to_go_on(server: JobServer) -> None:
    server.answers["POST /v1/jobs"] = [(BREAKS_OFF, {})]
    result = run(server, "submit", "--path", "/p", "--body", "-", given="{}")
    assert (result.exit_code, result.stdout) == (1, "")
    key = server.asked[0][1]["idempotency-key"]
    assert f"the same command with --idempotency-key {key} gives that job" in result.stderr
    assert "Either the gateway was stopped meanwhile, or " in result.stderr
    server.answers["POST /v1/jobs"] = [(429, {"error": {"message": "Too many jobs."}})]
    refused = run(server, "submit", "--path", "/p", "--body", "-", given="{}")
    assert refused.exit_code == 1
    assert "Too many jobs" in refused.stderr
    assert "--idempotency-key" not in refused.stderr


def test_how_far_a_job_is_is_told_while_it_is_waited_for(server: JobServer) -> None:
    running = QUEUED | {"status": "running"}
    steps = [
        running,
        running | {"progress": 0.4, "progress_text": "step 12 of \x1b[31m30"},
        running | {"progress": None, "progress_text": "decoding"},
        DONE,
    ]
    server.answers["GET /v1/jobs/job-1"] = [(200, each) for each in steps]
    server.answers["GET /v1/jobs/job-1/result"] = [(200, b"{}")]
    result = run(server, "wait", "job-1")
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if " is at " in line]
    assert told == ["Job job-1 is at 40%, step 12 of ?[31m30", "Job job-1 is at decoding"]


def test_a_job_that_fails_fails_the_command(server: JobServer) -> None:
    server.answers["GET /v1/jobs/job-1"] = [(200, FAILED)]
    result = run(server, "wait", "job-1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "job job-1 failed: It broke." in result.stderr
    as_json = run(server, "wait", "job-1", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout) == FAILED


def test_jobs_are_listed(server: JobServer) -> None:
    server.answers["GET /v1/jobs?limit=5&status=queued%2Crunning"] = [
        (200, {"object": "list", "data": [QUEUED]})
    ]
    result = run(server, "list", "--limit", "5", "--status", "queued,running")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:4] == ["job-1", "queued", "m", "/v1/chat/completions"]
    server.answers["GET /v1/jobs?limit=20"] = [(200, {"object": "list", "data": []})]
    assert "no jobs" in run(server, "list").stderr
    assert json.loads(run(server, "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("show", "GET /v1/jobs/job-1"),
        ("cancel", "POST /v1/jobs/job-1/cancel"),
        ("retry", "POST /v1/jobs/job-1/retry"),
    ],
)
def test_a_job_is_shown_cancelled_and_tried_again(server: JobServer, command: str, asked: str) -> None:
    server.answers[asked] = [(200, FAILED)]
    result = run(server, command, "job-1")
    assert result.exit_code == 0
    shown = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert (shown["job"], shown["state"], shown["error"]) == ("job-1", "failed", "It broke.")
    assert json.loads(run(server, command, "job-1", "--json").stdout) == FAILED
    missing = run(server, command, "a/b")
    assert missing.exit_code == 1
    assert "There is no job here" in missing.stderr
    assert server.asked[-1][0].split("/v1/jobs/")[1].startswith("a%2Fb")


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (("submit", "--path", "/p", "--body", "/does/not/exist"), None),
        (("submit", "--path", "/p", "--body", "-"), "{"),
        (("submit", "--path", "/p"), None),
        (("submit", "--path", "/p", "--body", "-", "--tier", "x"), "{}"),
        (("submit", "--path", "/p", "--body", "-", "--expires-after", "0"), "{}"),
        (("list", "--limit", "0"), None),
        (("show",), None),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    server: JobServer, arguments: tuple[str, ...], given: str | None
) -> None:
    assert run(server, *arguments, given=given).exit_code == 2
    assert server.asked == []


def test_what_the_gateway_refuses_is_wrong_usage_and_a_key_is_needed(server: JobServer) -> None:
    server.answers["POST /v1/jobs"] = [(400, {"error": {"message": "'path' must be a path."}})]
    result = run(server, "submit", "--path", "x", "--body", "-", given="{}")
    assert result.exit_code == 2
    assert "'path' must be a path" in result.stderr
    without = run(server, "list", key="")
    assert without.exit_code == 2
    assert "TRUNKLINE_KEY" in without.stderr
    assert "role" not in without.stderr


def test_what_is_no_gateway_is_said_to_be_none(server: JobServer) -> None:
    server.answers["GET /v1/jobs/job-1"] = [(200, b"<html>")]
    result = run(server, "show", "job-1")
    assert result.exit_code == 1
    assert "does not answer as a gateway" in result.stderr
