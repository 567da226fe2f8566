"""Jobs of a gateway with two workers, of which one is killed: each is answered exactly once."""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import Any
from urllib.request import Request, urlopen

import pytest

from gateway.storage import DATABASE_NAME, Store
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support.logged_events import logged_events
from tests.support.processes import START_S, Gateway, House, answer_to, fetch, until

JOBS = 8
TOKENS = 30
CONTINUES = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}
SETTINGS = {"TRUNKLINE_GATEWAY_JOBS__LOOK_S": "0.1", "TRUNKLINE_GATEWAY_JOBS__LEASE_S": "4"}
RUNNING = "SELECT process, id FROM jobs WHERE state = 'running'"


def rows(gateway: Gateway, query: str) -> list[Any]:
    with closing(sqlite3.connect(gateway.state / DATABASE_NAME)) as raw:
        return raw.execute(query).fetchall()


def kept_tokens(gateway: Gateway, ids: Iterable[str]) -> int:
    """Tokens of these jobs' answers that outlive a gateway."""
    jobs = gateway.state / "objects" / "jobs"
    pieces = (piece for each in ids for piece in (jobs / each).glob("output/*") if "#" not in piece.name)
    return sum(len(tokens_in(piece.read_bytes())) for piece in pieces)


def tokens_in(stream: bytes) -> list[str]:
    """Those in the whole events of a stream, or of a piece of one that begins with an event."""
    found = []
    for line in stream.split(b"\n\n")[:-1]:
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            found += [each["delta"]["content"] for each in choices if each["delta"].get("content")]
    return found


def pids(gateway: Gateway) -> dict[int, int]:
    """Of the workers, by their numbers."""
    return {each["worker"]: each["pid"] for each in logged_events(gateway.child.log, "worker_serves")}


@pytest.fixture
def gateway(house: House) -> Gateway:
    port, state = free_port(), house.directory / "gateway-state"
    listen = ("--listen", f"127.0.0.1:{port}", "--state", str(state))
    many = ("--workers", "2", "--log-format", "json")
    child = house.children.start("gateway", "gateway", *listen, *many, environment=SETTINGS)
    made = Gateway(child, port, state)
    house.children.wait_until(lambda: len(pids(made)) == 2, "both workers serve", START_S)
    return made


def test_jobs_of_a_killed_worker_go_on_at_the_next_token_and_each_has_one_answer(
    house: House, gateway: Gateway
) -> None:
    engine = house.engine("--model", MODEL)
    with Store.open(gateway.state) as store:
        key = store.keys.create("tests", "tests", time.time())
    house.agent(gateway, engine.url, "--slots", "32", environment=CONTINUES)
    house.wait_for_model(gateway, key, MODEL)

    def job(number: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"question {number}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, "stream": True}
        return {"path": "/v1/chat/completions", "body": body | {"script": {"stepped": True}}}

    def step_to(tokens: int) -> None:
        def there() -> bool:
            fetch(f"{engine.url}/_step", body={})
            return bool(engine.stats()["sent_tokens"] >= tokens)

        until(f"{tokens} tokens are written", there, 60.0)

    jobs = f"{gateway.base_url}/jobs"
    ids = [fetch(jobs, body=job(number), key=key)["id"] for number in range(JOBS)]
    until("all are being answered", lambda: engine.stats()["running"] == JOBS, 60.0)
    step_to(10 * JOBS)
    until("what was sent is kept", lambda: kept_tokens(gateway, ids) == engine.stats()["sent_tokens"], 60.0)
    owners = Counter(process for process, _ in rows(gateway, RUNNING))
    killed, theirs = owners.most_common(1)[0]
    os.kill(pids(gateway)[int(killed.rpartition("-")[2])], signal.SIGKILL)
    until("nobody waits for what it had begun", lambda: engine.stats()["cancelled"] == theirs, 60.0)
    until("all are being answered again", lambda: engine.stats()["running"] == JOBS, 60.0)

    def over() -> bool:
        fetch(f"{engine.url}/_step", body={})
        found = fetch(f"{jobs}?limit=100", key=key)["data"]
        return {each["status"] for each in found} == {"succeeded"}

    until("all have ended", over, 60.0)
    for number, job_id in enumerate(ids):
        said = tokens_in(fetch_bytes(f"{jobs}/{job_id}/result", key))
        assert "".join(said) == answer_to(f"question {number}", TOKENS)
    assert engine.stats()["sent_tokens"] == JOBS * TOKENS, "none was computed twice"
    attempts = Counter(count for (count,) in rows(gateway, "SELECT attempts FROM jobs"))
    assert attempts == {number: count for number, count in ((1, JOBS - theirs), (2, theirs)) if count}


def fetch_bytes(url: str, key: str) -> bytes:
    with urlopen(Request(url, headers={"authorization": f"Bearer {key}"}), timeout=10.0) as response:
        return bytes(response.read())
