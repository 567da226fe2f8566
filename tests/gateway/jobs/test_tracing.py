"""A job has one span, whichever processes run it, below the request that submitted it."""

import random
from typing import Any

import pytest

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.tracing import JobTracing, job_span_id
from gateway.observability.request_trace import TracedRequest
from shared.process.tracing.context import TraceContext, TraceSampler
from shared.process.tracing.spans import SpanRole
from tests.support.kept_spans import KeptSpans

SUBMITTED = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7)
ENDED_NS = 1_700_000_060_000_000_000
DONE = JobOutcome(JobState.SUCCEEDED, 200)


def process(ratio: float = 1.0) -> tuple[JobTracing, KeptSpans]:
    """One gateway process, whose random numbers are its own."""
    kept = KeptSpans()
    sampler = TraceSampler(ratio, random.Random(id(kept)).getrandbits)
    return JobTracing(sampler, kept, lambda: ENDED_NS), kept


def job(*headers: tuple[str, str], **more: Any) -> JobRecord:
    new = NewJob("job-1", "acme", "key", "m", "/v1/chat/completions", ObjectSlice("b"), headers, **more)
    return JobRecord(1, new, JobState.RUNNING, 1_700_000_000.0, 2)


def test_a_job_is_below_the_request_that_submitted_it_and_its_runs_are_below_it() -> None:
    tracing, kept = process()
    found = job(("Traceparent", SUBMITTED.traceparent), group="batch-1")
    run = tracing.begin_run(found.new, 5.0)
    assert run is not None
    tracing.run_ended(run, TracedRequest("run chat m", 1.0, {}, None, "chat", "m", SpanRole.CONSUMER))
    tracing.job_ended(found, DONE)
    ran, whole = kept.spans
    assert (whole.trace_id, whole.parent_id) == SUBMITTED[:2]
    assert (whole.name, whole.span_id, whole.error) == ("job chat m", job_span_id("job-1"), None)
    assert (whole.start_ns, whole.end_ns) == (1_700_000_000_000_000_000, ENDED_NS)
    assert dict(whole.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trunkline",
        "gen_ai.request.model": "m",
        "http.response.status_code": 200,
        "trunkline.attempts": 2,
        "trunkline.job.group": "batch-1",
        "trunkline.job.id": "job-1",
        "trunkline.job.state": "succeeded",
        "trunkline.tenant": "acme",
        "trunkline.tier": "batch",
    }
    assert (ran.trace_id, ran.parent_id, ran.role) == (whole.trace_id, whole.span_id, SpanRole.CONSUMER)


@pytest.mark.parametrize("headers", [(), (("traceparent", SUBMITTED.traceparent),)])
def test_another_process_goes_on_in_the_same_trace(headers: tuple[tuple[str, str], ...]) -> None:
    (first, _), (second, kept) = process(), process()
    before, after = (each.begin_run(job(*headers).new, 0.0) for each in (first, second))
    assert before is not None
    assert after is not None
    assert before.parent == after.parent
    assert before.span_id != after.span_id
    second.job_ended(job(*headers), DONE)
    assert (kept.spans[0].trace_id, kept.spans[0].span_id) == before.parent[:2]


def test_what_is_not_sampled_is_not_recorded() -> None:
    tracing, kept = process()
    unsampled = job(("traceparent", SUBMITTED._replace(sampled=False).traceparent))
    assert tracing.begin_run(unsampled.new, 0.0) is None
    tracing.job_ended(unsampled, DONE)
    none, also_kept = process(0.0)
    assert none.begin_run(job().new, 0.0) is None
    none.job_ended(job(), DONE)
    assert kept.spans + also_kept.spans == []


def test_a_job_that_failed_or_came_too_late_is_an_error_and_one_that_was_cancelled_is_none() -> None:
    tracing, kept = process()
    tracing.job_ended(job(), JobOutcome(JobState.FAILED, 400, error={"code": "context_length_exceeded"}))
    tracing.job_ended(job(), JobOutcome(JobState.EXPIRED))
    tracing.job_ended(job(), JobOutcome(JobState.CANCELLED))
    assert [each.error for each in kept.spans] == ["context_length_exceeded", "expired", None]
