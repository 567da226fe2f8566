"""A collector of another maker takes what gateways and agents export, and passes it on whole."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.process.ports import free_port
from shared.process.tracing.settings import ENDPOINT_VARIABLE, NOT_INSTALLED
from tests.integration.conftest import MODEL
from tests.integration.test_traces import CLIENT, SECRET, SERVER, TRACE, ask, of_trace
from tests.support.deploy_tools import rotel
from tests.support.otlp_sink import OtlpSink, otlp_sink
from tests.support.processes import House

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=NOT_INSTALLED)


@contextmanager
def collector(sink: OtlpSink, log: Path) -> Iterator[str]:
    """Rotel, which takes OTLP over HTTP and sends batches to ``sink``; its URL."""
    program, port = rotel(), free_port()
    command = [program, "start", "--otlp-receiver-metrics-disabled", "--otlp-receiver-logs-disabled"]
    command += [f"--otlp-http-endpoint=127.0.0.1:{port}", f"--otlp-grpc-endpoint=127.0.0.1:{free_port()}"]
    command += ["--exporter=otlp", "--otlp-exporter-protocol=http", f"--otlp-exporter-endpoint={sink.url}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--batch-timeout=100ms"], stdout=out, stderr=out, cwd=log.parent
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.deploy
def test_a_trace_comes_whole_through_a_collector_of_another_maker(tmp_path: Path) -> None:
    """Spans that are exported before it listens are sent again, so nothing has to wait for it."""
    with otlp_sink() as sink, collector(sink, tmp_path / "collector.log") as url, House(tmp_path) as house:
        environment = {ENDPOINT_VARIABLE: url}
        gateway = house.gateway(environment=environment)
        key = gateway.key("tests")
        engine = house.engine("--model", MODEL)
        house.agent(gateway, engine.url, environment=environment)
        house.wait_for_model(gateway, key, MODEL)
        ask(gateway, key, TRACE)
        spans = of_trace(sink, TRACE, 1)
        [server], [attempt], [engine_span], [agent] = (
            spans[name] for name in (SERVER, "attempt", "engine", "agent")
        )
        assert (server.parent_id, server.kind) == (CLIENT, 2)
        assert attempt.parent_id == server.span_id
        assert engine_span.parent_id == attempt.span_id
        assert agent.parent_id == engine_span.span_id
        assert server.attributes["gen_ai.usage.output_tokens"] == 3
        assert {each.schema_url for each in sink.trace(TRACE)} == {"https://opentelemetry.io/schemas/1.44.0"}
        assert SECRET.encode() not in b"".join(sink.bodies)
