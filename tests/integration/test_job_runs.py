"""Jobs of the store are run by any gateway, and outlive the one that ran them."""

import re
import signal
import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from gateway.domain.jobs import JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.object_names import body_name
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, Submission
from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House, answer_to, fetch, until

LEASE = {"TRUNKLINE_GATEWAY_JOBS__LEASE_S": "2", "TRUNKLINE_GATEWAY_JOBS__LOOK_S": "0.1"}


class Jobs:
    """Submits straight into a gateway's store, and reads what comes of it."""

    def __init__(self, gateway: Gateway) -> None:
        self.state = gateway.state
        with Store.open(gateway.state) as store:
            store.keys.create("jobs", "tests", time.time())
            self.key_id = next(key.id for key in store.keys.list() if key.name == "jobs")

    def submit(self, job_id: str, to: str = "/v1/chat/completions", **body: Any) -> None:
        given = body if body.keys() & {"prompt", "input", "messages"} else {"messages": _says(job_id), **body}
        content = orjson.dumps({"model": MODEL, **given})
        path = self.state / "objects" / body_name(job_id)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        job = NewJob(job_id, "tests", self.key_id, MODEL, to, ObjectSlice(body_name(job_id)))
        with Store.open(self.state) as store:
            store.jobs.submit(Submission("tests", (job,)), JobBounds(), time.time())

    def get(self, job_id: str) -> JobRecord:
        with Store.open(self.state) as store:
            return store.jobs.get(job_id)

    def ended(self, job_id: str) -> JobRecord:
        until(f"{job_id} has ended", lambda: self.get(job_id).state.is_final, 60.0)
        return self.get(job_id)

    def result(self, job: JobRecord) -> bytes:
        assert job.outcome is not None
        assert job.outcome.result is not None, job.outcome
        return (self.state / "objects" / job.outcome.result).read_bytes()

    def objects(self, job_id: str) -> list[str]:
        found = (self.state / "objects" / "jobs" / job_id).rglob("*")
        return sorted(str(path) for path in found if path.is_file())


def _says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def text_of(stream: bytes) -> str:
    chunks = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return "".join(
        choice["delta"].get("content") or "" for each in chunks for choice in orjson.loads(each)["choices"]
    )


def test_a_job_outlives_its_gateway_and_goes_on_at_the_next_token(house: House) -> None:
    gateway = house.gateway(environment=LEASE)
    engine = house.engine("--model", MODEL)
    key = gateway.key("tests")
    house.agent(gateway, engine.url, environment={"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"})
    house.wait_for_model(gateway, key, MODEL)
    jobs = Jobs(gateway)

    jobs.submit("whole", max_tokens=5)
    whole = jobs.ended("whole")
    assert whole.state is JobState.SUCCEEDED, whole
    answer = orjson.loads(jobs.result(whole))
    assert answer["choices"][0]["message"]["content"] == answer_to("whole", 5)

    before = engine.stats()["sent_tokens"]
    jobs.submit("long", stream=True, max_tokens=30, script={"stepped": True})
    write_thirty_over_two_gateways(house, gateway, engine, "long", before)
    long = jobs.ended("long")
    assert long.state is JobState.SUCCEEDED, long
    assert long.attempts == 2
    assert text_of(jobs.result(long)) == answer_to("long", 30)
    assert engine.stats()["sent_tokens"] == before + 30  # none was computed twice
    until("its partial output is removed", lambda: len(jobs.objects("long")) == 2, 30.0)


@pytest.mark.parametrize("route", ["chat", "completions", "messages", "responses"])
def test_a_job_in_one_piece_goes_on_at_the_next_token_and_its_result_is_as_if_undisturbed(
    house: House, route: str
) -> None:
    gateway = house.gateway(environment=LEASE)
    engine = house.engine("--model", MODEL)
    key = gateway.key("tests")
    ways = "chat=final_message,messages=final_message,responses=final_message,completions=prompt"
    house.agent(gateway, engine.url, environment={"TRUNKLINE_AGENT_CONTINUES": ways})
    house.wait_for_model(gateway, key, MODEL)
    jobs = Jobs(gateway)
    path, asked = ROUTES[route]

    jobs.submit("undisturbed", path, **asked)
    undisturbed = jobs.ended("undisturbed")
    before = engine.stats()["sent_tokens"]

    script = asked.get("script", {}) | {"stepped": True}
    jobs.submit("disturbed", path, **asked | {"script": script})
    write_thirty_over_two_gateways(house, gateway, engine, "disturbed", before)
    disturbed = jobs.ended("disturbed")
    assert (disturbed.state, disturbed.attempts) == (JobState.SUCCEEDED, 2), disturbed
    assert engine.stats()["sent_tokens"] == before + 30, "none was computed twice"
    assert same_but_ids_and_times(jobs.result(disturbed)) == same_but_ids_and_times(jobs.result(undisturbed))
    assert answer_to("Count.", 30).encode() in jobs.result(disturbed)
    assert disturbed.outcome is not None
    assert undisturbed.outcome is not None
    assert content_type(disturbed.outcome.headers) == content_type(undisturbed.outcome.headers)
    until("its partial output is removed", lambda: len(jobs.objects("disturbed")) == 2, 30.0)


ASKED = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 30}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", ASKED),
    "completions": ("/v1/completions", {"prompt": "Count.", "max_tokens": 30}),
    "messages": ("/v1/messages", ASKED),
    "responses": ("/v1/responses", {"input": "Count.", "script": {"ends_after": 30}}),
}


def content_type(headers: Sequence[tuple[str, str]]) -> list[str]:
    return [value for name, value in headers if name == "content-type"]


def same_but_ids_and_times(answer: bytes) -> bytes:
    """What two answers to the same have in common."""
    return re.sub(rb'("id":"[^"]*"|"created(?:_at)?":\d+)', b"", answer)


def write_thirty_over_two_gateways(
    house: House, gateway: Gateway, engine: Engine, job_id: str, before: int
) -> None:
    """Have the engine write the job's thirty tokens: ten for ``gateway``, which is killed once it has kept
    them, and the others for the gateway after it. It has written ``before`` tokens until now."""
    engine.write_until(before + 10)
    until("ten tokens are kept", lambda: b"9:" in kept_bytes(gateway, job_id), 60.0)
    gateway.child.signal(signal.SIGKILL)
    house.children.stop(gateway.child)
    house.gateway(environment=LEASE, port=gateway.port)
    until("nobody waits for what was begun", lambda: engine.stats()["cancelled"], 60.0)
    engine.write_until(before + 30)
    fetch(f"{engine.url}/_step", body={})  # to its end


def kept_bytes(gateway: Gateway, job_id: str) -> bytes:
    pieces = (gateway.state / "objects" / "jobs" / job_id).glob("output/*")
    return b"".join(each.read_bytes() for each in pieces if "#" not in each.name)
