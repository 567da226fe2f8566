"""Requests whose clients prefer not to wait for long, on running gateways: answered in time, or jobs that
outlive their gateway; and what is counted and refused of jobs."""

import http.client
import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.quotas import UsageGrouping
from gateway.storage import Store
from gateway.storage.usage import Amount
from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House, answer_to, fetch, until

LEASE = {"TRUNKLINE_GATEWAY_JOBS__LEASE_S": "2", "TRUNKLINE_GATEWAY_JOBS__LOOK_S": "0.1"}
CHAT = "/v1/chat/completions"
TOKENS = 30


@dataclass
class Asked:
    """A request on its way, in a thread of its own."""

    gateway: Gateway
    key: str
    body: dict[str, Any]
    headers: dict[str, str]
    status: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        given = {"authorization": f"Bearer {self.key}", "content-type": "application/json", **self.headers}
        try:
            self.connection.request("POST", CHAT, json.dumps(self.body), given)
            answer = self.connection.getresponse()
            self.content, self.status = answer.read(), answer.status
            self.fields = {name.lower(): value for name, value in answer.getheaders()}
        except (OSError, http.client.HTTPException):
            self.status = -1
        finally:
            self.connection.close()

    def done(self) -> "Asked":
        self.thread.join(60)
        assert self.status, "not answered within a minute"
        return self

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Site:
    house: House
    gateway: Gateway
    engine: Engine
    key: str

    def ask(self, text: str, wait_s: int, idempotency_key: str = "", **more: Any) -> Asked:
        messages = [{"role": "user", "content": text}]
        body = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, **more}
        headers = {"prefer": f"respond-async, wait={wait_s}"}
        if idempotency_key:
            headers["idempotency-key"] = idempotency_key
        return Asked(self.gateway, self.key, body, headers)

    def finish(self, tokens: int) -> None:
        self.engine.write_until(tokens)
        fetch(f"{self.engine.url}/_step", body={})

    def until_kept(self, job_id: str, text: bytes) -> None:
        def kept() -> bool:
            pieces = (self.gateway.state / "objects" / "jobs" / job_id).glob("output/*")
            return text in b"".join(each.read_bytes() for each in pieces if "#" not in each.name)

        until(f"{text!r} is kept", kept, 60.0)

    def succeeded(self, job_id: str) -> Any:
        """Its answer, once it has one."""
        jobs = f"{self.gateway.base_url}/jobs/{job_id}"

        def ended() -> bool:
            status = fetch(jobs, key=self.key)["status"]
            assert status in ("queued", "running", "succeeded"), fetch(jobs, key=self.key)
            return bool(status == "succeeded")

        until("the job has ended", ended, 60.0)
        return fetch(f"{jobs}/result", key=self.key)

    def restart(self, number: signal.Signals) -> None:
        """End the gateway so, and start it again."""
        cancelled = self.engine.stats()["cancelled"]
        self.gateway.child.signal(number)
        self.house.children.stop(self.gateway.child)
        self.gateway = self.house.gateway(environment=LEASE, port=self.gateway.port)
        until("nobody waits for what was begun", lambda: self.engine.stats()["cancelled"] > cancelled, 60.0)

    def used(self) -> Amount:
        """By the key, once the gateway has stopped."""
        self.house.children.stop(self.gateway.child)
        with Store.open(self.gateway.state) as store:
            (total,) = [each for each in store.usage.totals(UsageGrouping.KEY) if each.name == "tests"]
            return total.amount


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with House(tmp_path) as house:
        gateway = house.gateway(environment=LEASE)
        engine = house.engine("--model", MODEL)
        key = gateway.key("tests")
        house.agent(gateway, engine.url, environment={"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"})
        house.wait_for_model(gateway, key, MODEL)
        yield Site(house, gateway, engine, key)


STEPPED: dict[str, Any] = {"script": {"stepped": True}}


def text_in(answer: Any) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_a_request_becomes_a_job_in_the_middle_and_outlives_its_gateway(site: Site) -> None:
    in_time = site.ask("short", 60).done()
    assert (in_time.status, text_in(in_time.json())) == (200, answer_to("short", TOKENS))
    assert fetch(f"{site.gateway.base_url}/jobs", key=site.key)["data"] == [], "no row"
    before = site.engine.stats()

    asked = site.ask("long", 2, **STEPPED)
    site.engine.write_until(before["sent_tokens"] + 5)
    asked.done()
    assert asked.status == 202, asked.content
    job_id = asked.json()["id"]
    assert asked.fields["location"] == f"/v1/jobs/{job_id}"
    assert asked.fields["preference-applied"] == "respond-async, wait=2"
    assert (asked.json()["status"], asked.json()["tier"]) == ("running", "standard")
    assert site.engine.stats()["cancelled"] == before["cancelled"], "its stream goes on"

    site.engine.write_until(before["sent_tokens"] + 10)
    site.until_kept(job_id, b"9:")
    site.restart(signal.SIGKILL)
    site.finish(before["sent_tokens"] + TOKENS)
    answer = site.succeeded(job_id)
    assert text_in(answer) == answer_to("long", TOKENS)
    assert answer["usage"]["completion_tokens"] == TOKENS
    assert answer["object"] == "chat.completion"
    stats = site.engine.stats()
    assert stats["sent_tokens"] == before["sent_tokens"] + TOKENS, "none was computed twice"


def test_without_a_death_it_is_asked_once_and_counted_once(site: Site) -> None:
    asked = site.ask("once", 1, **STEPPED)
    site.engine.write_until(3)
    assert asked.done().status == 202
    site.finish(TOKENS)
    assert text_in(site.succeeded(asked.json()["id"])) == answer_to("once", TOKENS)
    stats = site.engine.stats()
    assert (stats["sent_tokens"], stats["cancelled"]) == (TOKENS, 0)
    used = site.used()
    assert (used.requests, used.completion_tokens) == (1, TOKENS)


def test_a_client_that_leaves_takes_its_request_along_unless_it_has_a_key(site: Site) -> None:
    left = site.ask("left", 60, **STEPPED)
    until("an engine has it", lambda: site.engine.stats()["running"] == 1, 60.0)
    left.connection.sock.shutdown(2)
    left.done()
    until("it is cancelled", lambda: site.engine.stats()["cancelled"] == 1, 60.0)
    sent = site.engine.stats()["sent_tokens"]

    kept = site.ask("kept", 60, "key-1", **STEPPED)
    until("an engine has it", lambda: site.engine.stats()["running"] == 1, 60.0)
    kept.connection.sock.shutdown(2)
    kept.done()
    site.finish(sent + TOKENS)
    again = site.ask("kept", 60, "key-1", **STEPPED).done()
    assert (again.status, text_in(again.json())) == (200, answer_to("kept", TOKENS))
    assert again.fields["idempotent-replayed"] == "true"
    stats = site.engine.stats()
    assert (stats["cancelled"], stats["sent_tokens"]) == (1, sent + TOKENS)


def test_what_a_run_used_that_was_given_up_is_counted_once_with_the_rest(site: Site) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "given"}], "max_tokens": TOKENS}
    made = fetch(f"{site.gateway.base_url}/jobs", body={"path": CHAT, "body": body | STEPPED}, key=site.key)
    site.engine.write_until(10)
    site.until_kept(made["id"], b"9:")  # its agent holds events back for a moment
    site.restart(signal.SIGTERM)  # it gives the job back, with what it has
    site.finish(TOKENS)
    assert text_in(site.succeeded(made["id"])) == answer_to("given", TOKENS)
    assert site.engine.stats()["sent_tokens"] == TOKENS
    used = site.used()
    assert (used.requests, used.completion_tokens, used.prompt_tokens) == (1, TOKENS, 1)


def refusal(url: str, body: dict[str, Any], key: str, **headers: str) -> tuple[int, str]:
    """The status and the code of an error."""
    given = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), given)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30.0)
    with caught.value as error:
        return error.code, json.loads(error.read())["error"]["code"]


def test_where_results_have_no_room_nothing_becomes_a_job_and_clients_wait(site: Site) -> None:
    big = site.ask("big", 60, "big-1", max_tokens=200).done()
    assert (big.status, len(big.content) > 1024) == (200, True)
    site.house.children.stop(site.gateway.child)
    little = {**LEASE, "TRUNKLINE_GATEWAY_JOBS__RESULT_BYTES": "1024"}
    site.gateway = site.house.gateway(environment=little, port=site.gateway.port)
    site.house.wait_for_model(site.gateway, site.key, MODEL)

    chat: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    url, full = site.gateway.base_url, (507, "storage_full")
    assert refusal(f"{url}/jobs", {"path": CHAT, "body": chat}, site.key) == full
    assert refusal(f"{url}/chat/completions", chat, site.key, prefer="respond-async") == full
    with_key = {"prefer": "respond-async, wait=9", "idempotency-key": "x"}
    assert refusal(f"{url}/chat/completions", chat, site.key, **with_key) == full
    background = {"model": MODEL, "input": "x", "background": True}
    assert refusal(f"{url}/responses", background, site.key) == full

    sent = site.engine.stats()["sent_tokens"]
    waits = site.ask("waits", 1, **STEPPED)
    until("it cannot be a job", lambda: "request_not_deferred" in site.gateway.child.log.read_text(), 60.0)
    site.finish(sent + TOKENS)
    waits.done()
    assert (waits.status, text_in(waits.json())) == (200, answer_to("waits", TOKENS))
    assert len(fetch(f"{url}/jobs", key=site.key)["data"]) == 1
