"""A job is followed as it changes, and its events can be taken up again behind any of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api.jobs.events import COMMENT, EventsPosition, JobEvents, whole_text
from gateway.domain.errors import BadRequest
from gateway.domain.jobs import JobNote, JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.object_names import OutputPosition
from gateway.jobs.output import AnswerHead, PartialOutput
from gateway.jobs.output_reader import OutputPiece
from shared.protocol.progress import Preview, Progress
from tests.gateway.api.jobs.access import JobDoer
from tests.gateway.api.support import BEARER, JSON_TYPE, Surface, error_in

JOB = {"path": "/v1/chat/completions", "body": {"model": "m"}}
NEW = NewJob("job-1", "t", "k", "m", "/v1/chat/completions", ObjectSlice("jobs/job-1/body"))
QUEUED = JobRecord(1, NEW, JobState.QUEUED, 1.0)
RUNNING = JobRecord(1, NEW, JobState.RUNNING, 1.0, attempts=1, progress=0.5, progress_text="step 5")
DONE = JobRecord(1, NEW, JobState.SUCCEEDED, 1.0, attempts=1, outcome=JobOutcome(JobState.SUCCEEDED))


PICTURE = Preview("image/png", b"picture")


class GivenOutput:
    """What a run has written, in pieces."""

    def __init__(self, *pieces: bytes, since: int = 1) -> None:
        self.data, self.since = list(pieces), since

    async def read(self, job: JobRecord, position: OutputPosition) -> AsyncIterator[OutputPiece]:
        offset, at = position.offset if position.since == self.since else 0, 0
        for data in self.data:
            if at + len(data) > offset:
                yield OutputPiece(OutputPosition(self.since, offset), data[offset - at :])
                offset = at + len(data)
            at += len(data)


class GivenChanges:
    """The states of a job, one after the other; before each, what is to happen."""

    def __init__(self, *jobs: JobRecord) -> None:
        self.jobs = list(jobs)

    async def changed(self, job: JobRecord) -> JobRecord:
        if not self.jobs:
            await asyncio.Event().wait()
        return self.jobs.pop(0)


async def preview_of(job: JobRecord) -> Preview | None:
    return PICTURE if job.previews else None


async def show(job: JobRecord) -> dict[str, Any]:
    return {"id": job.id, "status": job.state.value}


def read(stream: bytes) -> list[tuple[str, str, dict[str, Any]]]:
    """Id, name and data of each event."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append((fields["id"], fields["event"], orjson.loads(fields["data"])))
    return found


async def followed(
    output: GivenOutput, jobs: Sequence[JobRecord], position: EventsPosition | None = None
) -> list[tuple[str, str, dict[str, Any]]]:
    events = JobEvents(
        output, GivenChanges(*jobs[1:]), position or EventsPosition(), preview_of, output_every_s=5.0
    )
    return read(b"".join([piece async for piece in events(jobs[0], show)]))


async def test_changes_progress_and_output_are_told_in_order() -> None:
    found = await followed(GivenOutput(b"Hello", b" world"), [QUEUED, RUNNING, DONE])
    assert [name for _, name, _ in found] == [
        "job.queued",
        "job.output",
        "job.output",
        "job.progress",
        "job.running",
        "job.succeeded",
    ]
    assert found[1][2] == {"since": 1, "offset": 0, "text": "Hello"}
    assert found[2][2] == {"since": 1, "offset": 5, "text": " world"}
    assert found[3][2] == {"progress": 0.5, "text": "step 5"}
    assert len({each for each, _, _ in found}) == len(found)


async def test_words_and_previews_are_told_also_where_no_fraction_is_known() -> None:
    loading = replace(RUNNING, progress=None, progress_text="loading")
    steps = [
        loading,
        replace(loading, progress_text="step 1"),
        replace(loading, progress_text="step 1", previews=1),
        replace(loading, progress_text="step 1", progress=0.25, previews=1),
        replace(loading, progress_text="step 1", progress=0.25, previews=2, cancelling=True),
    ]
    found = await followed(GivenOutput(), [QUEUED, *steps, DONE])
    picture = PICTURE.to_dict()
    assert [data for _, name, data in found if name == "job.progress"] == [
        {"progress": None, "text": "loading"},
        {"progress": None, "text": "step 1"},
        {"progress": None, "text": "step 1", "preview": picture},
        {"progress": 0.25, "text": "step 1"},
        {"progress": 0.25, "text": "step 1", "preview": picture},
    ]


async def test_every_event_can_be_gone_on_from() -> None:
    output, jobs = GivenOutput(b"a" * 10, b"b" * 10), [RUNNING, DONE]
    whole = await followed(output, jobs)
    for at, (event_id, _, _) in enumerate(whole):
        rest = await followed(output, jobs[-1:], EventsPosition.read(event_id))
        expected = [name for _, name, _ in whole[at + 1 :] if name not in ("job.progress", "job.running")]
        assert [name for _, name, _ in rest] == expected


async def test_of_a_job_that_starts_over_the_output_begins_again() -> None:
    position = EventsPosition("running", 1, None, OutputPosition(1, 7))
    found = await followed(GivenOutput(b"again", since=2), [DONE], position)
    assert found[0][2] == {"since": 2, "offset": 0, "text": "again"}


async def test_characters_are_not_cut_and_other_bytes_are_told_too() -> None:
    text = "é\N{SNOWMAN}\N{GRINNING FACE}"
    data = text.encode()
    for cut in range(1, len(data)):
        found = await followed(GivenOutput(data[:cut], data[cut:]), [RUNNING, DONE])
        told = [each for _, name, each in found if name == "job.output"]
        assert "".join(each["text"] for each in told) == text
    found = await followed(GivenOutput(b"\xff\xfe\x00", b"abc\xe2\x98"), [DONE])
    assert [each.get("base64") for _, name, each in found if name == "job.output"] == ["//4A", None, "4pg="]


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"", b""),
        (b"abc", b"abc"),
        (b"a\xc3", b"a"),
        (b"\xf0\x9f\x98", b""),
        (b"\x80\x80\x80\x80\x80", b"\x80" * 5),
    ],
)
def test_a_text_is_cut_before_a_character_that_is_not_whole(data: bytes, whole: bytes) -> None:
    assert whole_text(data) == (whole, data[len(whole) :])


@pytest.mark.parametrize(
    "text", ["x", "running.1", "running.1.2.3", "running.-1..1.1", "running.1..1.1;", "é"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        EventsPosition.read(text)


def test_an_id_is_read_as_it_was_written() -> None:
    for position in (
        EventsPosition(),
        EventsPosition("running", 2, 500, OutputPosition(3, 4)),
        EventsPosition("queued", 0, None, OutputPosition(0, 0)),
    ):
        assert EventsPosition.read(str(position)) == position


async def test_a_long_silence_is_filled_with_comments() -> None:
    position = EventsPosition("running", 1, 500)
    events = JobEvents(GivenOutput(), GivenChanges(), position, preview_of, output_every_s=20.0)
    follow = events(RUNNING, show)
    async with asyncio.timeout(60):
        assert await anext(follow) == COMMENT
    await follow.aclose()  # type: ignore[attr-defined]


async def test_a_reader_that_leaves_is_let_go(surface: Surface) -> None:
    made = orjson.loads((await surface.post("/v1/jobs", orjson.dumps(JOB), JSON_TYPE)).content)
    call = surface.ask("GET", f"/v1/jobs/{made['id']}/events", BEARER)
    call.body(b"")
    await call.until(lambda call: b"event: job.queued" in call.content)
    call.disconnect()
    await call.done(30)
    assert surface.finished[-1][1] == 499


async def test_a_job_is_followed_over_http(surface: Surface, doer: JobDoer) -> None:
    made = orjson.loads((await surface.post("/v1/jobs", orjson.dumps(JOB), JSON_TYPE)).content)
    call = surface.ask("GET", f"/v1/jobs/{made['id']}/events", BEARER)
    call.body(b"")
    await call.until(lambda call: b"event: job.queued" in call.content)
    job = doer.claim()
    assert job.lease is not None
    async with PartialOutput(doer.objects, job.id, job.lease.generation) as output:
        await output.begin(AnswerHead(200))
        await output.append(b"data: one\n\n")
        await output.close()
        await call.until(lambda call: b"data: one" in call.content)
        note = JobNote(job.id, job.lease, Progress(0.25, "a quarter", PICTURE))
        assert doer.store.job_claims.note_progress([note])
        await call.until(lambda call: b"a quarter" in call.content)
        assert orjson.dumps(PICTURE.to_dict()) in call.content
        shown = orjson.loads((await surface.get(f"/v1/jobs/{job.id}")).content)
        assert (shown["progress"], shown["progress_text"]) == (0.25, "a quarter")
        assert shown["progress_preview"] == PICTURE.to_dict()
        (listed,) = orjson.loads((await surface.get("/v1/jobs")).content)["data"]
        assert listed["progress_preview"] is None, "a list of a thousand would be long"
        await output.append(b"data: two\n\n")
        name, size_bytes = await output.finish()
    doer.end(job, JobOutcome(JobState.SUCCEEDED, 200, (), name, size_bytes))
    await call.done(30)
    assert call.headers["content-type"].startswith("text/event-stream")
    found = read(call.content)
    assert found[-1][1] == "job.succeeded"
    told = "".join(data["text"] for _, event, data in found if event == "job.output")
    assert told == "data: one\n\ndata: two\n\n"
    first = next(event_id for event_id, event, _ in found if event == "job.output")
    again = await surface.get(f"/v1/jobs/{job.id}/events", (b"last-event-id", first.encode()))
    assert [event for _, event, _ in read(again.content)] == ["job.output", "job.succeeded"]
    wrong = await surface.get(f"/v1/jobs/{job.id}/events", (b"last-event-id", b"5"))
    assert (wrong.status, error_in(wrong.content)["param"]) == (400, "last-event-id")
