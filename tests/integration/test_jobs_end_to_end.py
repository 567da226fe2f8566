"""Jobs, batches and webhooks of a running gateway, from the command line, over HTTP and by OpenAI's SDK."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from openai import OpenAI

from gateway.storage import Store
from tests.integration.conftest import MODEL, Site, site_with
from tests.support.processes import answer_to, command, fetch, until
from tests.support.threaded_server import served_in_thread

SETTINGS = """
[jobs]
look_s = 0.1
webhook_networks = ["127.0.0.0/8"]
"""
CHAT: Final = "/v1/chat/completions"


@dataclass
class Inbox:
    """Receives webhooks."""

    url: str = ""
    got: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_with(tmp_path_factory.mktemp("jobs"), SETTINGS) as site:
        yield site


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            inbox.got.append((body, dict(self.headers)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with served_in_thread(HTTPServer(("127.0.0.1", 0), Handler)) as url:
        inbox.url = f"{url}/hook"
        yield inbox


@pytest.fixture
def sdk(site: Site) -> Iterator[OpenAI]:
    with OpenAI(base_url=site.base_url, api_key=site.key, max_retries=0) as client:
        yield client


def chat(text: str) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 3}


def test_a_job_is_submitted_and_waited_for_on_the_command_line(site: Site, tmp_path: Path) -> None:
    body = tmp_path / "prompt.json"
    body.write_text(json.dumps(chat("by hand")))
    environment = os.environ | {"TRUNKLINE_KEY": site.key, "TRUNKLINE_URL": site.gateway.url}
    arguments = command("job", "submit", "--path", CHAT, "--body", str(body), "--wait")
    done = subprocess.run(arguments, env=environment, capture_output=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"] == answer_to("by hand", 3)


def test_a_job_is_followed_over_http_and_its_end_is_told(site: Site, sdk: OpenAI, inbox: Inbox) -> None:
    with Store.open(site.gateway.state) as store:
        secret = store.webhook_secrets.create("tests", time.time())
    jobs = f"{site.base_url}/jobs"
    made = fetch(jobs, body={"path": CHAT, "body": chat("told"), "webhook": inbox.url}, key=site.key)
    until(
        "the job has ended",
        lambda: fetch(f"{jobs}/{made['id']}", key=site.key)["status"] == "succeeded",
        60.0,
    )
    answer = fetch(f"{jobs}/{made['id']}/result", key=site.key)
    assert answer["choices"][0]["message"]["content"] == answer_to("told", 3)
    until("its end is told", lambda: inbox.got, 60.0)
    event = sdk.webhooks.unwrap(*inbox.got[0], secret=secret)
    said = event.to_dict()
    assert (said["type"], said["data"]) == ("job.succeeded", {"id": made["id"]})


def test_a_job_whose_model_nobody_serves_waits_until_its_deadline(site: Site) -> None:
    jobs = f"{site.base_url}/jobs"
    body = {**chat("never"), "model": "served-by-nobody"}
    made = fetch(jobs, body={"path": CHAT, "body": body, "expires_after": 2}, key=site.key)
    assert (made["status"], made["predicted_completion_at"]) == ("queued", None)
    shown: list[Any] = []

    def ended() -> bool:
        shown[:] = [fetch(f"{jobs}/{made['id']}", key=site.key)]
        return bool(shown[0]["status"] != "queued")

    until("its deadline has come", ended, 60.0)
    assert (shown[0]["status"], shown[0]["attempts"]) == ("expired", 0)


def test_a_running_job_is_cancelled(site: Site) -> None:
    jobs = f"{site.base_url}/jobs"
    body = {**chat("long"), "stream": True, "max_tokens": 100, "script": {"stepped": True}}
    made = fetch(jobs, body={"path": CHAT, "body": body}, key=site.key)
    before = site.engine.stats()["cancelled"]
    until("an engine has it", lambda: site.engine.stats()["running"] == 1, 60.0)
    assert fetch(f"{jobs}/{made['id']}/cancel", body={}, key=site.key)["cancelling"] is True
    shown: list[str] = []

    def ended() -> bool:
        shown[:] = [fetch(f"{jobs}/{made['id']}", key=site.key)["status"]]
        return shown[0] != "running"

    until("the job has ended", ended, 60.0)
    assert shown == ["cancelled"]
    until("its engine is told", lambda: site.engine.stats()["cancelled"] == before + 1, 60.0)


def test_twenty_lines_are_answered_each_with_its_own(sdk: OpenAI) -> None:
    lines = [
        {"custom_id": f"a-{number}", "method": "POST", "url": CHAT, "body": chat(f"question {number}")}
        for number in range(20)
    ]
    file = sdk.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    found = [batch]

    def is_over() -> bool:
        found[:] = [sdk.batches.retrieve(batch.id)]
        return found[0].status in ("failed", "completed", "expired", "cancelled")

    until("the batch is over", is_over, 60.0)
    (done,) = found
    assert (done.status, done.error_file_id) == ("completed", None)
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 20, "completed": 20, "failed": 0}
    assert done.output_file_id is not None
    output = [json.loads(line) for line in sdk.files.content(done.output_file_id).text.splitlines()]
    said = {
        each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in output
    }
    assert said == {f"a-{number}": answer_to(f"question {number}", 3) for number in range(20)}
