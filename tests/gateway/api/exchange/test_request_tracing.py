"""Which requests have a trace, and what their server spans say."""

import itertools

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from structlog.testing import capture_logs

from gateway.api.exchange.request_log import RequestLog
from gateway.api.exchange.request_tracing import RequestTracing
from gateway.domain.errors import QueueFull
from gateway.observability.metrics import Metrics
from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceSampler, read_traceparent
from shared.process.tracing.spans import SpanRole
from shared.protocol.messages import Trailers, Usage
from tests.gateway.api.exchange.test_request_log import ASK
from tests.gateway.api.support import CHAT, EVENTS, JSON_TYPE, CountedRequests, FakeResponse, Surface
from tests.support.kept_spans import KeptSpans

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = b"a prompt that nobody else may read"


def tracing(surface: Surface, ratio: float = 1.0, metrics: Metrics | None = None) -> KeptSpans:
    """From now on the surface's requests are traced."""
    kept, ids = KeptSpans(), itertools.count(1 << 70)
    sampler = TraceSampler(ratio, lambda bits: next(ids) & ((1 << bits) - 1) or 1)
    made = RequestTracing(sampler, kept, metrics, lambda: 1_000)
    object.__setattr__(surface.app, "begin_trace", made.begin)
    surface.traces = made  # type: ignore[attr-defined]
    return kept


def over(surface: Surface) -> list[dict[str, object]]:
    """What the log says, after the traces were handed on."""
    with capture_logs() as lines:
        log = RequestLog(CountedRequests(), finish_trace=surface.traces.finished)  # type: ignore[attr-defined]
        for exchange, status, failure in surface.finished:
            log(exchange, status, failure)
    return [dict(line) for line in lines]


async def test_a_clients_trace_goes_on_and_its_server_span_says_what_was_asked_and_used(
    surface: Surface,
) -> None:
    kept = tracing(surface)
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",)))
    response.trailers = Trailers(Usage(5, 7, 3))
    body = ASK[:-1] + b',"max_tokens":9,"messages":[{"role":"user","content":"' + SECRET + b'"}]}'
    await surface.post(CHAT, body, JSON_TYPE, (b"traceparent", GIVEN.encode()), (b"x-request-id", b"r1"))
    [line] = over(surface)
    [span] = kept.spans
    client = read_traceparent(GIVEN)
    assert client is not None
    assert (span.trace_id, span.parent_id, span.role) == (client.trace_id, client.span_id, SpanRole.SERVER)
    assert (span.name, span.error, span.start_ns) == ("chat m", None, 1_000)
    told = dict(span.attributes)
    assert float(told.pop(names.RESPONSE_TIME_TO_FIRST_CHUNK)) >= 0
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trunkline",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": CHAT,
        "trunkline.agent": "gpu-1",
        "trunkline.attempts": 0,
        "trunkline.queue.seconds": 0.0125,
        "trunkline.request.id": "r1",
        "trunkline.route": "chat",
        "trunkline.tenant": "default",
        "trunkline.tier": "standard",
    }
    assert SECRET.decode() not in repr(kept.spans)
    [request] = surface.dispatcher.requests
    sent = read_traceparent(request.trace)
    assert sent is not None
    assert (sent.trace_id, sent.span_id) == (client.trace_id, span.span_id), (
        "deployments go on with this span"
    )
    assert line["trace_id"] == f"{client.trace_id:032x}"


async def test_without_a_trace_of_its_own_a_request_begins_one(surface: Surface) -> None:
    kept = tracing(surface)
    await surface.post(CHAT, ASK, JSON_TYPE)
    [line] = over(surface)
    [span] = kept.spans
    assert (span.parent_id, line["trace_id"]) == (0, f"{span.trace_id:032x}")


async def test_what_is_not_sampled_is_as_if_nothing_were_traced(surface: Surface) -> None:
    kept = tracing(surface, ratio=0.0)
    unsampled = GIVEN[:-2] + "00"
    await surface.post(CHAT, ASK, JSON_TYPE, (b"traceparent", unsampled.encode()))
    await surface.post(CHAT, ASK, JSON_TYPE)
    lines = over(surface)
    assert kept.spans == []
    assert [each.trace for each in surface.dispatcher.requests] == [unsampled, None]
    assert [each.get("trace_id") for each in lines] == [GIVEN[3:35], None], (
        "the log has the client's all the same"
    )


async def test_a_request_that_is_refused_is_an_error_by_its_code(surface: Surface) -> None:
    kept = tracing(surface)

    async def full(request: object) -> FakeResponse:
        raise QueueFull("full")

    surface.dispatcher.serve = full
    await surface.post(CHAT, ASK, JSON_TYPE)
    await surface.post(CHAT, b"no json", JSON_TYPE)
    over(surface)
    full_span, wrong = kept.spans
    assert (full_span.error, full_span.attributes[names.HTTP_STATUS]) == ("queue_full", 429)
    assert wrong.error is not None
    assert wrong.name == "POST chat"
    assert names.REQUEST_MODEL not in wrong.attributes


async def test_histograms_name_the_trace_of_what_they_counted(surface: Surface) -> None:
    metrics = Metrics()
    metrics.know_model("m")
    kept = tracing(surface, metrics=metrics)
    surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",)))
    await surface.post(CHAT, ASK, JSON_TYPE)
    log = RequestLog(metrics, finish_trace=surface.traces.finished, lines=False)  # type: ignore[attr-defined]
    for exchange, status, failure in surface.finished:
        log(exchange, status, failure)
    named = {
        sample.name: sample.exemplar.labels
        for family in openmetrics((await metrics.render_exemplars()).decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }
    trace = {"trace_id": f"{kept.spans[0].trace_id:032x}"}
    assert named == dict.fromkeys(
        ("trunkline_request_seconds_bucket", "trunkline_time_to_first_token_seconds_bucket"), trace
    )
    assert b"trace_id" not in await metrics.render()


async def test_probes_and_scrapes_have_no_spans(surface: Surface) -> None:
    kept = tracing(surface)
    await surface.get("/healthz")
    over(surface)
    assert kept.spans == []
