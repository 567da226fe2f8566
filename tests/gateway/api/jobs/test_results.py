"""The engine's own answer comes out, or why there is none."""

import asyncio

import orjson
import pytest

from gateway.domain.jobs import JobOutcome, JobState
from tests.gateway.api.jobs.access import JobDoer
from tests.gateway.api.support import BEARER, JSON_TYPE, Surface, error_in

JOB = {"path": "/v1/chat/completions", "body": {"model": "m"}}


async def submitted(surface: Surface) -> str:
    call = await surface.post("/v1/jobs", orjson.dumps(JOB), JSON_TYPE)
    return str(orjson.loads(call.content)["id"])


async def test_bytes_status_and_type_are_the_engines(surface: Surface, doer: JobDoer) -> None:
    job_id = await submitted(surface)
    await doer.answer(doer.claim(), b"\x00\xff" * 700_000, 201, "image/png")
    call = await surface.get(f"/v1/jobs/{job_id}/result")
    assert (call.status, call.headers["content-type"]) == (201, "image/png")
    assert call.content == b"\x00\xff" * 700_000
    assert call.headers["content-length"] == "1400000"
    head = await surface.get(f"/v1/jobs/{job_id}/result", method="HEAD")
    assert (head.status, head.headers["content-length"], head.content) == (201, "1400000", b"")


async def test_a_refusal_of_an_engine_is_a_result(surface: Surface, doer: JobDoer) -> None:
    job_id = await submitted(surface)
    await doer.answer(doer.claim(), b'{"error":{"message":"no"}}', 400)
    call = await surface.get(f"/v1/jobs/{job_id}/result")
    assert (call.status, call.content) == (400, b'{"error":{"message":"no"}}')


async def test_what_has_not_ended_has_no_result(surface: Surface) -> None:
    job_id = await submitted(surface)
    for headers in ((), ((b"prefer", b"wait=0"),)):
        call = await surface.get(f"/v1/jobs/{job_id}/result", *headers)
        assert (call.status, error_in(call.content)["code"]) == (409, "job_not_finished")
        assert call.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("outcome", "status", "code", "says"),
    [
        (JobOutcome(JobState.CANCELLED), 409, "job_cancelled", "was cancelled"),
        (JobOutcome(JobState.EXPIRED), 504, "deadline_exceeded", "deadline"),
        (JobOutcome(JobState.FAILED), 502, "job_failed", "failed"),
        (
            JobOutcome(
                JobState.FAILED,
                429,
                error={"type": "insufficient_quota", "code": "insufficient_quota", "message": "No budget."},
            ),
            429,
            "insufficient_quota",
            "No budget",
        ),
        (JobOutcome(JobState.FAILED, error={"code": 5, "message": None}), 502, "job_failed", "failed"),
    ],
)
async def test_without_an_answer_it_is_said_why(
    surface: Surface, doer: JobDoer, outcome: JobOutcome, status: int, code: str, says: str
) -> None:
    job_id = await submitted(surface)
    doer.end(doer.claim(), outcome)
    call = await surface.get(f"/v1/jobs/{job_id}/result")
    assert (call.status, error_in(call.content)["code"]) == (status, code)
    assert says in str(error_in(call.content)["message"])


async def test_a_client_that_waits_is_answered_when_the_job_has_ended(
    surface: Surface, doer: JobDoer
) -> None:
    job_id = await submitted(surface)
    prefer = (b"prefer", b"wait=60")
    calls = [surface.ask("GET", f"/v1/jobs/{job_id}{path}", BEARER, prefer) for path in ("/result", "")]
    for call in calls:
        call.body(b"")
    await asyncio.sleep(0)
    assert not any(call.sent for call in calls)
    await doer.answer(doer.claim())
    result, shown = [await call.done(30) for call in calls]
    assert (result.status, result.content) == (200, b'{"ok":true}')
    assert result.headers["preference-applied"] == "wait=60"
    assert orjson.loads(shown.content)["status"] == "succeeded"


async def test_a_client_that_leaves_while_it_waits_is_let_go(surface: Surface) -> None:
    job_id = await submitted(surface)
    call = surface.ask("GET", f"/v1/jobs/{job_id}/result", BEARER, (b"prefer", b"wait=60"))
    call.body(b"")
    await asyncio.sleep(0)
    call.disconnect()
    await call.done(30)
    assert surface.finished[-1][1] == 499


async def test_a_result_whose_bytes_are_gone_is_not_found(surface: Surface, doer: JobDoer) -> None:
    job_id = await submitted(surface)
    await doer.answer(doer.claim())
    outcome = doer.store.jobs.get(job_id).outcome
    assert outcome is not None
    await doer.objects.delete(outcome.result or "")
    call = await surface.get(f"/v1/jobs/{job_id}/result")
    assert (call.status, error_in(call.content)["code"]) == (404, "not_found")
