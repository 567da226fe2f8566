"""One trace from client to engine, as a collector gets it from real processes."""

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from shared.process.tracing.settings import ENDPOINT_VARIABLE, NOT_INSTALLED
from tests.integration.conftest import MODEL
from tests.integration.regions import join
from tests.support.logged_events import logged_events
from tests.support.otlp_sink import OtlpSink, SunkSpan, otlp_sink
from tests.support.processes import Engine, Gateway, House, fetch, until

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "nobody-else-may-read-this"
SERVER, INTERNAL, ENGINE = "chat scripted", "trunkline-gateway", "trunkline-agent"

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=NOT_INSTALLED)


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[House, Gateway, list[Engine], str, OtlpSink]]:
    """A gateway and two agents with an engine each, all of which export their spans."""
    with otlp_sink() as sink, House(tmp_path_factory.mktemp("traced")) as house:
        environment = {ENDPOINT_VARIABLE: sink.url}
        gateway = house.gateway(environment=environment)
        key = gateway.key("tests")
        engines = [house.engine("--model", MODEL, name=f"engine-{number}") for number in range(2)]
        for number, engine in enumerate(engines):
            house.agent(gateway, engine.url, "--slots", "1", name=f"agent-{number}", environment=environment)
        house.wait_for_model(gateway, key, MODEL)
        until("both serve", lambda: "2 " in deployments(gateway, key), 60)
        yield house, gateway, engines, key, sink


def deployments(gateway: Gateway, key: str) -> str:
    lines = text(gateway, key).splitlines()
    found = [line for line in lines if line.startswith("trunkline_deployments{") and 'state="loaded"' in line]
    return " ".join(f"{float(line.rpartition(' ')[2]):g} " for line in found)


def text(gateway: Gateway, key: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"{gateway.url}/metrics", headers={"x-api-key": key, "accept": accept})
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read()).decode()


def ask(gateway: Gateway, key: str, trace: str, path: str = "/v1/chat/completions", given: Any = None) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}
    body = body if given is None else given
    headers = {
        "content-type": "application/json",
        "x-api-key": key,
        "traceparent": f"00-{trace}-{CLIENT}-01",
    }
    request = urllib.request.Request(f"{gateway.url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read()), dict(response.headers)


def of_trace(sink: OtlpSink, trace: str, attempts: int) -> dict[str, list[SunkSpan]]:
    """Its spans by name, once those of the gateway and of the agents have come."""

    def complete() -> bool:
        names = [each.name for each in sink.trace(trace)]
        return "attempt" in names and sum(each.service == ENGINE for each in sink.trace(trace)) >= attempts

    until("the spans have come", complete, 30)
    found: dict[str, list[SunkSpan]] = {}
    for each in sink.trace(trace):
        found.setdefault("agent" if each.service == ENGINE else each.name, []).append(each)
    return found


def test_one_trace_leads_from_the_client_to_the_engine(traced: Any) -> None:
    _, gateway, _, key, sink = traced
    ask(gateway, key, TRACE)
    spans = of_trace(sink, TRACE, 1)
    [server], [queue], [attempt] = spans[SERVER], spans["queue"], spans["attempt"]
    [engine], [agent] = spans["engine"], spans["agent"]
    assert (server.parent_id, server.kind, server.failed) == (CLIENT, 2, False)
    assert queue.parent_id == attempt.parent_id == server.span_id
    assert engine.parent_id == attempt.span_id
    assert agent.parent_id == engine.span_id
    for child, parent in ((queue, server), (attempt, server), (engine, attempt)):
        assert parent.start_ns <= child.start_ns <= child.end_ns <= parent.end_ns
    assert server.attributes["gen_ai.usage.output_tokens"] == 3
    assert attempt.attributes["trunkline.agent"].startswith("agent-")
    assert {each.schema_url for each in sink.trace(TRACE)} == {"https://opentelemetry.io/schemas/1.44.0"}
    assert SECRET.encode() not in b"".join(sink.bodies)


def test_the_engine_gets_the_agents_span_as_its_parent(traced: Any) -> None:
    _, gateway, _, key, sink = traced
    trace = "1" * 32
    seen, _ = ask(gateway, key, trace, path=f"/engines/{MODEL}/echo")
    until("the agent's span has come", lambda: any(each.service == ENGINE for each in sink.trace(trace)), 30)
    [agent] = [each for each in sink.trace(trace) if each.service == ENGINE]
    assert seen["headers"]["traceparent"] == f"00-{trace}-{agent.span_id}-01"


def test_a_retry_says_why_and_the_trace_has_both_attempts(traced: Any) -> None:
    _, gateway, engines, key, sink = traced
    _, headers = ask(gateway, key, "4" * 32)
    engines[int(headers["x-trunkline-agent"].removeprefix("agent-"))].direct(once=[{"fault": "garbage"}])
    for asked in range(1, 51):  # until one goes to the engine that fails
        trace = f"2{asked:031x}"
        answered, headers = ask(gateway, key, trace)
        assert answered["choices"]
        if (number := int(headers["x-trunkline-attempts"])) > 1:
            break
    assert number == 2
    spans = of_trace(sink, trace, number)
    attempts = sorted(spans["attempt"], key=lambda each: each.start_ns)
    assert len(attempts) == number
    assert attempts[0].failed
    assert attempts[1].attributes["trunkline.retry.reason"] == attempts[0].attributes["trunkline.trouble"]
    assert {each.attributes["trunkline.agent"] for each in attempts} == {"agent-0", "agent-1"}
    assert [each.failed for each in sorted(spans["agent"], key=lambda each: each.start_ns)][-1] is False


def test_a_scrape_that_takes_openmetrics_finds_the_trace_behind_a_bucket(traced: Any) -> None:
    _, gateway, _, key, _ = traced
    trace = "5" * 32
    ask(gateway, key, trace)

    def named() -> bool:
        page = text(gateway, key, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        found = [
            sample
            for family in openmetrics(page)  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.name == "trunkline_request_seconds_bucket" and sample.exemplar is not None
        ]
        return any(each.exemplar and each.exemplar.labels == {"trace_id": trace} for each in found)

    until("the histogram names the trace", named)
    assert "trace_id" not in text(gateway, key), "the plain format has no place for it"


def test_the_log_names_trace_and_request(traced: Any) -> None:
    _, gateway, _, key, _ = traced
    trace = "3" * 32
    _, headers = ask(gateway, key, trace)

    def lines() -> list[dict[str, Any]]:
        return [each for each in logged_events(gateway.child.log) if each.get("trace_id") == trace]

    until("the request is logged", lambda: bool(lines()))
    assert lines()[0]["id"] == headers["x-request-id"]


def test_one_trace_leads_through_a_child_gateway_to_its_engine(traced: Any) -> None:
    house, gateway, _, key, sink = traced
    environment = {ENDPOINT_VARIABLE: sink.url}
    child = join(house, gateway, environment=environment)
    below = house.engine("--model", "below", name="engine-below")
    house.agent(child, below.url, name="agent-below", environment=environment)
    house.wait_for_model(gateway, key, "below")
    trace = "6" * 32
    seen, _ = ask(gateway, key, trace, path="/engines/below/echo")

    def complete() -> bool:
        services = [each.service for each in sink.trace(trace) if each.name != "queue"]
        return services.count(INTERNAL) == 6 and services.count(ENGINE) == 1

    until("the spans of both gateways and of the agent have come", complete, 30)
    by_id = {each.span_id: each for each in sink.trace(trace)}
    way = [next(each for each in sink.trace(trace) if each.service == ENGINE)]
    while way[-1].parent_id in by_id:
        way.append(by_id[way[-1].parent_id])
    assert [each.name for each in way] == ["any below", *["engine", "attempt", "any below"] * 2]
    assert way[-1].parent_id == CLIENT
    assert seen["headers"]["traceparent"] == f"00-{trace}-{way[0].span_id}-01"
    assert [way[each].attributes.get("trunkline.agent") for each in (2, 5)] == ["agent-below", "region"]


def test_a_job_goes_on_in_its_trace_after_its_gateway_was_killed(tmp_path: Path) -> None:
    trace = "7" * 32
    with otlp_sink() as sink, House(tmp_path) as house:
        environment = {
            ENDPOINT_VARIABLE: sink.url,
            "TRUNKLINE_GATEWAY_JOBS__LEASE_S": "2",
            "TRUNKLINE_GATEWAY_JOBS__LOOK_S": "0.1",
        }
        gateway = house.gateway(environment=environment)
        key, engine = gateway.key("tests"), house.engine("--model", MODEL)
        house.agent(gateway, engine.url, environment={ENDPOINT_VARIABLE: sink.url})
        house.wait_for_model(gateway, key, MODEL)
        script = {"script": {"stepped": True}, "stream": True, "max_tokens": 2}
        body = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], **script}
        ask(gateway, key, trace, path="/v1/jobs", given={"path": "/v1/chat/completions", "body": body})
        until("an engine works on it", lambda: engine.stats()["sent_tokens"], 30)
        until("the submission is traced", lambda: bool(sink.trace(trace)), 30)
        gateway.child.signal(signal.SIGKILL)
        house.children.stop(gateway.child)
        house.gateway(environment=environment, port=gateway.port)
        until("nobody waits for what was begun", lambda: engine.stats()["cancelled"], 60)

        def spans(name: str) -> list[SunkSpan]:
            return [each for each in sink.trace(trace) if each.name == name]

        def ended() -> bool:
            fetch(f"{engine.url}/_step", body={})
            return bool(spans(f"job {SERVER}") and spans("attempt"))

        until("the job has ended", ended, 60)
        [submitted], [job], [run] = spans("POST jobs"), spans(f"job {SERVER}"), spans(f"run {SERVER}")
        [attempt], [ran] = spans("attempt"), spans("engine")
        assert (submitted.parent_id, job.parent_id) == (CLIENT, submitted.span_id)
        assert (run.parent_id, attempt.parent_id) == (job.span_id, run.span_id)
        assert ran.parent_id == attempt.span_id
        assert job.start_ns <= run.start_ns <= run.end_ns <= job.end_ns
        assert job.attributes["trunkline.attempts"] == 2
        assert job.attributes["trunkline.job.state"] == "succeeded"
        assert SECRET.encode() not in b"".join(sink.bodies)


def test_a_collector_that_is_away_costs_no_request_anything_and_what_it_lacks_is_counted(
    tmp_path: Path,
) -> None:
    with otlp_sink() as sink, House(tmp_path) as house:
        sink.hold.clear()
        environment = {
            "TRUNKLINE_GATEWAY_OTEL__ENDPOINT": sink.url,
            "TRUNKLINE_GATEWAY_OTEL__QUEUE_SPANS": "100",
            "TRUNKLINE_GATEWAY_OTEL__TIMEOUT_S": "0.5",
        }
        gateway = house.gateway(environment=environment)
        engine = house.engine("--model", MODEL)
        key = gateway.key("tests")
        house.agent(gateway, engine.url)
        house.wait_for_model(gateway, key, MODEL)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        slowest_s = 0.0
        for _ in range(100):
            began_s = time.monotonic()
            fetch(f"{gateway.base_url}/chat/completions", body=body, key=key)
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < 10, "no request waited for the collector, which answers nothing at all"

        def dropped(reason: str) -> float:
            name = f'trunkline_spans_dropped_total{{reason="{reason}"}}'
            found = [line for line in text(gateway, key).splitlines() if line.startswith(name)]
            return float(found[0].rpartition(" ")[2])

        until("what has no room is counted", lambda: dropped("queue_full") > 0, 30)
        until("what was not taken is counted", lambda: dropped("not_taken") > 0, 30)
