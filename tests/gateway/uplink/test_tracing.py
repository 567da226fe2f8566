"""A parent's requests have spans here, in the traces that it began, and nowhere else."""

from gateway.uplink.tracing import UplinkTracing
from shared.process.tracing.context import TraceContext, read_traceparent
from shared.process.tracing.spans import SpanData, SpanRole
from shared.protocol.errors import ErrorCode
from tests.gateway.uplink.child import Child
from tests.support.kept_spans import KeptSpans

ABOVE = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7)
HEADERS = (("traceparent", ABOVE.traceparent),)


def traced_child() -> tuple[Child, KeptSpans]:
    kept = KeptSpans()
    return Child(1, traces=UplinkTracing(kept, lambda: 1_000)), kept


def named(spans: list[SpanData]) -> dict[str, SpanData]:
    found = {each.name: each for each in spans}
    assert len(found) == len(spans)
    return found


async def test_the_parents_trace_goes_on_through_this_gateway_to_its_agent() -> None:
    child, kept = traced_child()
    child.ask(trace=ABOVE.traceparent, headers=HEADERS)
    opened = child.agents[0].open_streams[0].stream.head
    child.fleet.advance(2.0)
    await child.answer(child.agents[0])
    spans = named(kept.spans)
    server, attempt, engine = spans["chat m"], spans["attempt"], spans["engine"]
    assert {each.trace_id for each in kept.spans} == {ABOVE.trace_id}
    assert (server.parent_id, server.role, server.error) == (ABOVE.span_id, SpanRole.SERVER, None)
    assert (attempt.parent_id, engine.parent_id) == (server.span_id, attempt.span_id)
    assert server.end_ns - server.start_ns == 2_000_000_000
    assert server.attributes["trunkline.request.id"] == "r1"
    assert server.attributes["trunkline.agent"] == "a0"
    assert server.attributes["gen_ai.usage.input_tokens"] == 3
    below = TraceContext(ABOVE.trace_id, engine.span_id)
    assert read_traceparent(opened.trace) == below
    assert [text for name, text in opened.headers if name == "traceparent"] == [below.traceparent]


async def test_what_the_parent_does_not_record_is_not_recorded_here_and_goes_on_as_it_is() -> None:
    child, kept = traced_child()
    unsampled = ABOVE._replace(sampled=False).traceparent
    child.ask(trace=unsampled)
    assert child.agents[0].open_streams[0].stream.head.trace == unsampled
    await child.answer(child.agents[0])
    child.ask()
    assert child.agents[0].open_streams[0].stream.head.trace is None
    await child.answer(child.agents[0])
    assert kept.spans == []


async def test_one_that_fails_says_why() -> None:
    child, kept = traced_child()
    child.ask(trace=ABOVE.traceparent)
    child.agents[0].open_streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "broken")
    await child.settle()
    server = named(kept.spans)["chat m"]
    assert (server.error, server.attributes["http.response.status_code"]) == ("engine_failed", 502)
