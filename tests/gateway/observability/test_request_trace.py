"""What is noted of a request on its way, and the spans that become of it."""

import itertools

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.request import RequestBody
from gateway.observability.request_trace import RequestTrace, TracedRequest
from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceContext, read_traceparent
from shared.process.tracing.spans import SpanData
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers, Usage
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.dispatch.streamed_answers import BODY, able, answer, whole
from tests.gateway.fleet.fleet import Client, Fleet, deployment

WALL_NS = 1_700_000_000_000_000_000
PARENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7)
JSON = ResponseHead(200, (("content-type", "application/json"),))


def trace(fleet: Fleet) -> RequestTrace:
    return RequestTrace(PARENT, 1, fleet.loop.now_s, WALL_NS, itertools.count(2).__next__)


def traced(fleet: Fleet, client: Client) -> list[SpanData]:
    """The request is over now."""
    kept = client.request.dispatch_trace
    assert isinstance(kept, RequestTrace)
    total_s = fleet.loop.now_s - kept.began_s
    spans = kept.spans(TracedRequest("chat m", total_s, {}, None, "chat", "m"))
    assert len(spans) <= kept.span_count
    assert len({each.span_id for each in spans}) == len(spans)
    assert {each.trace_id for each in spans} == {PARENT.trace_id}
    by_id = {each.span_id: each for each in spans}
    for each in spans[1:]:
        parent = by_id[each.parent_id]
        assert parent.start_ns <= each.start_ns <= each.end_ns <= parent.end_ns, each
    return spans


def tree(spans: list[SpanData]) -> list[str]:
    """Each span below its parent, in the order of time."""

    def below(span_id: int, depth: int) -> list[str]:
        children = sorted(
            (each for each in spans if each.parent_id == span_id), key=lambda each: each.start_ns
        )
        return [
            line for each in children for line in (" " * depth + each.name, *below(each.span_id, depth + 1))
        ]

    assert spans[0].parent_id == PARENT.span_id
    return [spans[0].name, *below(spans[0].span_id, 1)]


def named(spans: list[SpanData], name: str) -> list[SpanData]:
    return [each for each in spans if each.name == name]


async def test_a_request_that_waits_and_is_answered_has_a_wait_an_attempt_and_its_engine() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1, kind="vllm"))
    first = fleet.submit(fleet.request(streaming=False))
    client = fleet.submit(fleet.request(streaming=False, dispatch_trace=trace(fleet)))
    fleet.advance(2.0)
    agent.streams[0].stream.send_head(JSON)
    agent.streams[0].stream.end()
    fleet.settle()
    await read_to_end(first)
    fleet.advance(3.0)
    engine = agent.streams[1]
    engine.stream.send_head(JSON)
    engine.stream.send_data(b"{}")
    engine.stream.end(Trailers(Usage(5, 7, 2), 0.0, 0.5, 2.5, gpu_s=2.0))
    fleet.settle()
    await read_to_end(client)
    spans = traced(fleet, client)
    assert tree(spans) == ["chat m", " queue", " attempt", "  engine"]
    [queue], [attempt], [ran] = named(spans, "queue"), named(spans, "attempt"), named(spans, "engine")
    assert (queue.start_ns, queue.end_ns, queue.error) == (WALL_NS, WALL_NS + 2_000_000_000, None)
    assert (attempt.start_ns, attempt.end_ns) == (queue.end_ns, WALL_NS + 5_000_000_000)
    assert attempt.attributes[names.DEPLOYMENT] == "a/d-m"
    assert (attempt.attributes[names.PROVIDER_NAME], attempt.attributes[names.HTTP_STATUS]) == ("vllm", 200)
    assert (ran.end_ns - ran.start_ns, ran.attributes[names.GPU_S]) == (2_500_000_000, 2.0)
    assert ran.attributes[names.FIRST_BYTE_S] == 0.5
    assert ran.attributes[names.USAGE_CACHE_READ_INPUT_TOKENS] == 2
    head = engine.stream.head
    assert read_traceparent(head.trace) == TraceContext(PARENT.trace_id, ran.span_id)
    assert ("traceparent", head.trace) in head.headers, "an agent that traces nothing passes it on"


async def test_a_retry_is_an_attempt_of_its_own_and_says_why() -> None:
    fleet = Fleet(settings=DispatchSettings(rest_s=0.01))
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit(fleet.request(streaming=False, dispatch_trace=trace(fleet)))
    lost, other = (one, two) if one.streams else (two, one)
    lost.streams[0].stream.reset(ErrorCode.ENGINE_UNREACHABLE, "gone")
    fleet.settle()
    other.streams[0].stream.send_head(JSON)
    other.streams[0].stream.end(Trailers())
    fleet.settle()
    await read_to_end(client)
    spans = traced(fleet, client)
    first, second = named(spans, "attempt")
    assert (first.error, first.attributes[names.TROUBLE]) == ("unreachable", "unreachable")
    assert second.attributes[names.RETRY_REASON] == "unreachable"
    assert (second.error, second.attributes[names.ATTEMPT]) == (None, 2)
    assert len(named(spans, "queue")) == 2, "it waited again, if only for a moment"


async def test_an_answer_that_goes_on_elsewhere_has_a_continuation_with_what_belongs_to_it() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, rest_s=0.01))
    one, two = fleet.connect("a", able()), fleet.connect("b", able())
    client = fleet.submit(fleet.request(body=RequestBody(BODY), dispatch_trace=trace(fleet)))
    begun, other = (one, two) if one.streams else (two, one)
    answer(begun.streams[0], 700)
    fleet.advance(1.0)
    fleet.cut(begun)
    fleet.advance(1.0)
    answer(other.streams[0])
    await whole(fleet, client)
    spans = traced(fleet, client)
    assert tree(spans) == [
        "chat m",
        " queue",
        " attempt",
        " continuation",
        "  queue",
        "  attempt",
        "   engine",
    ]
    [continuation] = named(spans, "continuation")
    assert continuation.attributes[names.RETRY_REASON] == "lost"
    assert continuation.start_ns >= WALL_NS + 1_000_000_000


def test_a_request_that_gets_no_slot_has_a_wait_that_failed() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(slots=1))
    fleet.submit()
    client = fleet.submit(fleet.request(dispatch_trace=trace(fleet)))
    fleet.advance(1.0)
    assert client.exchange is not None
    client.exchange.cancel()
    spans = traced(fleet, client)
    assert tree(spans) == ["chat m", " queue"]
    assert named(spans, "queue")[0].error == "not_served"


def test_without_a_trace_nothing_is_noted_and_heads_are_as_they_were() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    request = fleet.request(trace=PARENT.traceparent)
    fleet.submit(request)
    head = agent.streams[0].stream.head
    assert (head.trace, head.headers) == (PARENT.traceparent, request.headers)


def test_of_a_request_that_is_tried_without_end_only_so_much_is_kept() -> None:
    kept = RequestTrace(PARENT, 1, 0.0, WALL_NS, itertools.count(2).__next__)
    for number in range(1000):
        kept.wait(float(number), continuation=number > 0 and number % 100 == 0)
    assert kept.span_count < 300
