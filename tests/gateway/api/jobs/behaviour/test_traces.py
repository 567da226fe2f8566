"""A request that submits a job, or becomes one: its trace goes on with the job's spans."""

import random

import orjson
import pytest

from gateway.api.exchange.request_tracing import RequestTracing
from gateway.domain.jobs import JobOutcome, JobRecord
from gateway.jobs.tracing import JobTracing, job_span_id
from shared.process.tracing.context import TraceSampler, read_traceparent
from shared.process.tracing.spans import SpanData, SpanRole
from tests.gateway.api.jobs.deferral_shop import PIECES, Shop, streamed, until
from tests.gateway.api.support import CHAT, JSON_TYPE, Surface
from tests.support.kept_spans import KeptSpans

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CLIENT = read_traceparent(GIVEN)


def traced(surface: Surface, tracing: RequestTracing, jobs: JobTracing | None = None) -> None:
    object.__setattr__(surface.app, "begin_trace", tracing.begin)
    object.__setattr__(surface.books, "traces", jobs)


def tracers() -> tuple[RequestTracing, JobTracing, KeptSpans]:
    kept, sampler = KeptSpans(), TraceSampler(1.0, random.Random(7).getrandbits)
    return RequestTracing(sampler, kept), JobTracing(sampler, kept), kept


def requests_span(surface: Surface, tracing: RequestTracing, kept: KeptSpans) -> SpanData:
    """That of the last request, which has no other spans."""
    exchange, status, failure = surface.finished[-1]
    kept.spans.clear()
    tracing.finished(exchange, status, failure, 1.0)
    (span,) = kept.spans
    kept.spans.clear()
    return span


@pytest.mark.parametrize(
    ("path", "body", "more"),
    [
        ("/v1/jobs", {"path": CHAT, "body": {"model": "m", "messages": []}}, ()),
        ("/v1/responses", {"model": "m", "input": "Hi", "background": True}, ()),
        (CHAT, {"model": "m", "messages": []}, ((b"prefer", b"respond-async"),)),
    ],
)
async def test_a_job_has_the_span_of_the_request_that_submitted_it_as_its_parent(
    surface: Surface, path: str, body: dict[str, object], more: tuple[tuple[bytes, bytes], ...]
) -> None:
    tracing, _, kept = tracers()
    traced(surface, tracing)
    given = (b"traceparent", GIVEN.encode())
    call = await surface.post(path, orjson.dumps(body), JSON_TYPE, given, *more)
    assert call.status < 300, call.content
    assert surface.jobs is not None
    (job,) = await surface.jobs.service.list("default")
    span = requests_span(surface, tracing, kept)
    above = [read_traceparent(text) for name, text in job.new.headers if name == "traceparent"]
    assert CLIENT is not None
    assert [each and each[:2] for each in above] == [(CLIENT.trace_id, span.span_id)]


async def test_a_request_that_becomes_a_job_leaves_its_waits_and_attempts_to_the_jobs_run(shop: Shop) -> None:
    tracing, jobs, kept = tracers()
    traced(shop.surface, tracing, jobs)
    ended: list[tuple[JobRecord, JobOutcome]] = []
    shop.ends.on_ended = lambda *end: ended.append(end)
    answer = streamed(shop)
    call = shop.post(1)
    await until(lambda: shop.dispatched)
    (request,) = shop.dispatched
    assert request.dispatch_trace is not None
    request.dispatch_trace.wait(request.arrived_s)
    answer.feed(PIECES[0])
    await shop.deferred(call)
    server = requests_span(shop.surface, tracing, kept)
    request.dispatch_trace.end_wait(request.arrived_s + 0.1)
    answer.feed(*PIECES[1:])
    answer.end()
    await until(lambda: ended)
    run, queue = kept.spans
    assert (run.name, run.role, run.trace_id) == ("run chat m", SpanRole.CONSUMER, server.trace_id)
    assert run.parent_id == job_span_id(ended[0][0].id)
    assert (queue.name, queue.parent_id) == ("queue", run.span_id)
    kept.spans.clear()
    jobs.job_ended(*ended[0])
    assert (kept.spans[0].parent_id, kept.spans[0].span_id) == (server.span_id, run.parent_id)
