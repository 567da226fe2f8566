"""Spans as a collector gets them."""

import pytest

from shared.process.tracing.conventions import SCHEMA_URL
from shared.process.tracing.settings import NOT_INSTALLED
from shared.process.tracing.spans import SpanData, SpanRole
from tests.support.otlp_sink import OtlpSink, SunkSpan, otlp_sink

otlp = pytest.importorskip("shared.process.tracing.otlp", reason=NOT_INSTALLED)

TRACE, ROOT, CHILD = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 7, 8


def sent(sink: OtlpSink, *spans: SpanData) -> list[SunkSpan]:
    sender = otlp.OtlpSender(f"{sink.url}/v1/traces", "trunkline-test", "p-1", {"x-key": "k"}, 5.0)
    assert sender.send(spans)
    sender.close()
    return sink.spans


def test_ids_times_names_and_attributes_arrive_as_they_were_given() -> None:
    server = SpanData("chat m", TRACE, ROOT, 0, 1_000, 9_000, SpanRole.SERVER, {"a": "x", "n": 3, "b": True})
    child = SpanData("attempt", TRACE, CHILD, ROOT, 2_000, 8_000, SpanRole.CLIENT, {"f": 0.5}, "timeout")
    with otlp_sink() as sink:
        first, second = sent(sink, server, child)
    trace_id = f"{TRACE:032x}"
    assert (first.name, first.trace_id, first.span_id, first.parent_id) == (
        "chat m",
        trace_id,
        f"{7:016x}",
        "",
    )
    assert (first.kind, first.start_ns, first.end_ns, first.failed) == (2, 1_000, 9_000, False)
    assert first.attributes == {"a": "x", "n": 3, "b": True}
    assert (first.service, first.schema_url) == ("trunkline-test", SCHEMA_URL)
    assert (second.trace_id, second.span_id, second.parent_id) == (trace_id, f"{8:016x}", f"{7:016x}")
    assert (second.kind, second.failed) == (3, True)
    assert second.attributes == {"f": 0.5, "error.type": "timeout"}


def test_a_collector_that_refuses_has_not_taken_them() -> None:
    with otlp_sink() as sink:
        sink.status = 400
        sender = otlp.OtlpSender(f"{sink.url}/v1/traces", "trunkline-test", None, {}, 5.0)
        assert not sender.send([SpanData("s", TRACE, ROOT, 0, 1, 2)])
        sink.status = 200
        assert sender.send([SpanData("t", TRACE, ROOT, 0, 1, 2)])
        sender.close()
        assert [each.name for each in sink.spans] == ["t"], "what was refused is not sent again"
