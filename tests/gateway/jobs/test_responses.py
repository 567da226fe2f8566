"""Background responses: what their engines get, and what is made of what those answer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.ends import JobEnds
from gateway.jobs.leases import RunningJob
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import AnswerHead, PartialOutput
from gateway.jobs.responses import (
    NUMBERS_EACH,
    NumberedEvents,
    engine_body,
    final_response,
    response_end,
    response_object,
)
from gateway.jobs.runs import Publish
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, JobClaim, Submission
from gateway.storage.objects import ObjectStore

NEW = NewJob("resp_1", "t", "k", "m", "/v1/responses", ObjectSlice("b"), metadata={"a": "b"})
JOB = JobRecord(1, NEW, JobState.RUNNING, 5.5, attempts=1)
EVENTS = (("content-type", "text/event-stream; charset=utf-8"),)


def event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members}))


def told(stream: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"background":true}', b'{"stream":true,"store":false,"background":false}'),
        (
            b' { "model" : "m", "background" : true , "store":null,"stream":false} ',
            b' { "model" : "m", "background" :false, "store":false,"stream":true} ',
        ),
        (
            b'{"input":[{"stream":1,"store":"\\"store\\":"}],"background":true,"background":true}',
            b'{"stream":true,"store":false,"input":[{"stream":1,"store":"\\"store\\":"}],'
            b'"background":false,"background":false}',
        ),
        (
            b'{"\\u0062ackground":true,"n":1e400}',
            b'{"stream":true,"store":false,"\\u0062ackground":false,"n":1e400}',
        ),
    ],
)
def test_an_engine_streams_and_stores_nothing_and_all_else_stays(body: bytes, expected: bytes) -> None:
    assert engine_body(body) == expected


def test_a_store_that_is_no_boolean_is_not_rewritten_at_any_length() -> None:
    with pytest.raises(BadRequest):
        engine_body(b'{"background":true,"store":[' + b"1," * 5000 + b"1]}")


def test_events_are_numbered_as_ours_and_the_response_has_the_id_of_its_job() -> None:
    events = NumberedEvents(JOB, {"temperature": 0.5})
    stream = events.announced() + events.begin(1)
    stream += events.read(
        event("response.created", sequence_number=0, response={"id": "x"})
        + event("response.in_progress", sequence_number=1, response={"id": "x", "status": "in_progress"})
        + b": waiting\n\ndata: [DONE]\n\n"
    )
    stream += events.read(event("response.output_text.delta", sequence_number=9, delta="é", item_id="i"))
    assert not events.ended
    stream += events.read(event("response.completed", response={"id": "x", "status": "completed"}))
    assert events.ended
    found = told(stream)
    assert [each["sequence_number"] for each in found] == [0, 1, 2, 3, 4]
    assert [each["type"].removeprefix("response.") for each in found] == [
        "created",
        "queued",
        "in_progress",
        "output_text.delta",
        "completed",
    ]
    assert {each["response"]["id"] for each in found if "response" in each} == {"resp_1"}
    assert {each["response"]["created_at"] for each in found if "response" in each} == {5}
    assert found[0]["response"]["temperature"] == 0.5
    assert (found[3]["delta"], found[3]["item_id"]) == ("é", "i")


@pytest.mark.parametrize("after", range(-1, 6))
def test_a_reader_gets_what_follows_the_number_it_has(after: int) -> None:
    data = b"".join(event("response.output_text.delta", delta=str(each)) for each in range(3))
    whole, rest = NumberedEvents(JOB, {}), NumberedEvents(JOB, {}, after)
    expected, found = (told(each.announced() + each.begin(1) + each.read(data)) for each in (whole, rest))
    assert found == expected[after + 1 :]


def test_an_answer_that_began_anew_has_numbers_of_its_own() -> None:
    delta = event("response.output_text.delta", delta="a")
    events = NumberedEvents(JOB, {}, after=2)
    stream = events.announced() + events.begin(1) + events.read(delta) + events.begin(3) + events.read(delta)
    found = [(each["sequence_number"], each["type"]) for each in told(stream)]
    base = 3 * NUMBERS_EACH
    assert found == [(base, "response.created"), (base + 2, "response.output_text.delta")]


@pytest.mark.parametrize(
    ("state", "status", "said", "code"),
    [
        (JobState.FAILED, 400, {"code": "engine_refused", "message": "No."}, "invalid_prompt"),
        (JobState.FAILED, 429, {"code": "x", "message": "No."}, "rate_limit_exceeded"),
        (JobState.FAILED, None, {"code": "engine_failed", "message": "No."}, "server_error"),
        (JobState.EXPIRED, None, {"code": "deadline_exceeded", "message": "No."}, "server_error"),
    ],
)
def test_why_a_response_failed_is_told_with_the_codes_of_its_type(
    state: JobState, status: int | None, said: dict[str, str], code: str
) -> None:
    job = replace(JOB, state=state, outcome=JobOutcome(state, status, error=said))
    found = response_object(job, {})
    assert (found["status"], found["error"]) == ("failed", {"code": code, "message": "No."})


async def ended(objects: ObjectStore, data: bytes, headers: tuple[tuple[str, str], ...] = EVENTS) -> Any:
    await objects.put_bytes("r", data)
    outcome = JobOutcome(JobState.SUCCEEDED, 200, headers, "r", len(data))
    return await response_end(objects, outcome), outcome


async def test_the_whole_response_is_found_at_the_end_of_any_answer(tmp_path: Path) -> None:
    objects = ObjectStore.in_directory(tmp_path)
    deltas = event("response.output_text.delta", delta='"response.completed"') * 5000
    short, long = {"id": "x", "output": [1]}, {"id": "x", "output": ["y" * 400_000]}
    for response in (short, long):
        end, _ = await ended(objects, deltas + event("response.completed", response=response))
        assert end == response
    end, _ = await ended(objects, orjson.dumps(short), (("content-type", "application/json"),))
    assert end == short


async def test_an_answer_without_its_last_event_is_a_failed_response(tmp_path: Path) -> None:
    objects = ObjectStore.in_directory(tmp_path)
    for data in (b"", event("response.output_text.delta", delta="a"), b"data: {"):
        end, outcome = await ended(objects, data)
        assert end is None
        found = final_response(replace(JOB, state=JobState.SUCCEEDED, outcome=outcome), {}, end)
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
async def test_a_webhook_is_told_how_the_response_ended(store: Store, tmp_path: Path, status: str) -> None:
    objects = ObjectStore.in_directory(tmp_path / "objects")
    job = replace(NEW, webhook="https://example.com/hook")
    store.jobs.submit(Submission("t", (job,)), JobBounds(), 1.0)
    (claimed,) = store.job_claims.claim(JobClaim("p", 1, "m", 1, 30.0), 2.0)
    ends = JobEnds(store.job_claims, store.jobs, ObjectOpener(lambda: objects), wall=lambda: 3.0)
    async with PartialOutput(objects, job.id, 1) as output:
        await output.begin(AnswerHead(200, EVENTS))
        await output.append(event(f"response.{status}", response={"id": "x", "status": status}))
        outcome = JobOutcome(JobState.SUCCEEDED, 200, EVENTS)
        assert await ends.publish(RunningJob(claimed), output, Publish(outcome, with_result=True))
    (delivery,) = store.webhooks.list()
    assert delivery.event.type == f"response.{status}"
