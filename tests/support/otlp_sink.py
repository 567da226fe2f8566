"""A collector: takes spans by OTLP over HTTP, decodes the protobuf, and keeps them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class SunkSpan:
    """One span as it came over the wire."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool
    service: str
    schema_url: str


@dataclass
class OtlpSink:
    """What has come so far."""

    url: str
    status: int = 200
    """Its answer to what comes."""
    hold: threading.Event = field(default_factory=threading.Event)
    """Cleared: it answers nothing until this is set."""
    spans: list[SunkSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    requests: int = 0

    def trace(self, trace_id: str) -> list[SunkSpan]:
        return [each for each in self.spans if each.trace_id == trace_id]

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.bodies.append(body)
        message: Any = ExportTraceServiceRequest()
        message.ParseFromString(body)
        for resource in message.resource_spans:
            service = str(_attributes(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [_span(each, service, scope.schema_url) for each in scope.spans]


def _span(span: Any, service: str, schema_url: str) -> SunkSpan:
    times = int(span.start_time_unix_nano), int(span.end_time_unix_nano)
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    facts = _attributes(span.attributes)
    return SunkSpan(
        span.name, *ids, int(span.kind), *times, facts, span.status.code == 2, service, schema_url
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """A sink that listens until the context is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            sink.requests += 1
            sink.hold.wait(60)
            if sink.status == 200:
                sink.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            try:
                self.send_response(sink.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                pass  # whoever sent it waits no longer

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sink = OtlpSink(f"http://127.0.0.1:{server.server_port}")
    sink.hold.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        sink.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
