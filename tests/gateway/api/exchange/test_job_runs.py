"""Jobs go the way of clients' requests, as their keys, and their answers go to their output."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import orjson
import pytest

from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.exchange.job_exchange import FACTS, JobSources
from gateway.api.exchange.job_runs import JobBooks, JobPipeline
from gateway.dispatch.recovery import NotContinuable
from gateway.domain.errors import (
    BodyTooLarge,
    BuffersFull,
    EngineError,
    RouteNotFound,
    StreamBroken,
    Unauthenticated,
)
from gateway.domain.jobs import JobLease, JobRecord, JobState, NewJob, ObjectSlice
from gateway.domain.request import Principal, Request, Tier
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import AnswerHead, OutputSettings, PartialOutput
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.runs import JobAnswer, JobRun
from gateway.observability.audit import RequestFacts
from gateway.observability.metrics import Metrics
from gateway.pipeline.accumulation import AccumulatedRun
from gateway.pipeline.pipeline import Pipeline
from gateway.storage.objects import ObjectStore
from shared.protocol.errors import ErrorCode
from shared.protocol.followed import FOLLOWED, FollowedAnswer, answer_line, progress_line
from shared.protocol.progress import Preview, Progress
from tests.gateway.api.support import FakeDispatcher, FakeResponse, json_response

EVENTS = [b'data: {"n": 1}\n\n', b": waiting\n\n", b'data: {"n": 2}\n\n', b"data: [DONE]\n\n"]
LATER = OutputSettings(interval_s=3600.0)


class Keys:
    """One key."""

    tenant = "acme"

    async def identify(self, presented: str) -> Principal:
        if presented != "key-1":
            raise Unauthenticated("revoked")
        return Principal("key-1", "client", self.tenant)


class Workshop:
    def __init__(self, directory: Path) -> None:
        self.objects = ObjectStore.in_directory(directory)
        self.dispatcher, self.keys = FakeDispatcher(), Keys()
        self.audited: list[RequestFacts] = []
        self.budget = BufferBudget(1 << 20)
        self.continues = False
        run = AccumulatedRun(self.dispatcher.run, lambda model, route: self.continues)
        pipeline = Pipeline(self.keys, run)
        sources = JobSources(
            ObjectOpener(lambda: self.objects), self.budget, BodyLimits(body_bytes=2000), None, time.time
        )
        books = JobBooks(Metrics(), self.audited.append)
        self.run_job = JobPipeline(pipeline, pipeline, sources, books, 1 << 16)
        self.reader = OutputReader(ObjectOpener(lambda: self.objects))

    async def job(self, content: bytes, path: str = "/v1/chat/completions", **given: object) -> JobRecord:
        await self.objects.put_bytes("jobs/j/body", content)
        more = {"body": ObjectSlice("jobs/j/body"), "key_id": "key-1"} | given
        new = NewJob("j", "acme", model="m", path=path, **more)  # type: ignore[arg-type]
        return JobRecord(1, new, JobState.RUNNING, 0.0, 1, JobLease("p", 1, 1))

    async def run(
        self,
        job: JobRecord,
        generation: int = 1,
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> tuple[JobAnswer, bytes]:
        """What came of it, and its result."""
        kept = await self.reader.progress("j")
        async with PartialOutput(self.objects, "j", generation, LATER) as output:
            answer = await self.run_job(JobRun(job, output, kept, progress=progress))
            name, _ = await output.finish() if output.begun else ("", 0)
        return answer, await self.objects.read_bytes(name, 1 << 16) if name else b""

    @property
    def request(self) -> Request:
        return self.dispatcher.requests[-1]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Workshop]:
    shop = Workshop(tmp_path)
    yield shop
    assert shop.budget.used_bytes == 0, "every body gives back its memory"


def body_of(**members: object) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | members)


def stream_of(pieces: Sequence[bytes]) -> FakeResponse:
    return FakeResponse(200, (("content-type", "text/event-stream"),), tuple(pieces))


async def test_an_answer_goes_to_the_output_and_the_job_is_a_batch_request(shop: Workshop) -> None:
    shop.dispatcher.answer(json_response())
    answer, result = await shop.run(await shop.job(body_of()))
    assert answer.status == 200
    assert ("content-type", "application/json") in answer.headers
    assert result
    assert (shop.request.id, shop.request.tier, shop.request.model) == ("j", Tier.BATCH, "m")
    assert shop.request.principal.key_name == "client"
    (facts,) = shop.audited
    assert (facts.status, facts.tenant) == (200, "acme")


async def test_comments_are_no_part_of_an_answer(shop: Workshop) -> None:
    shop.dispatcher.answer(stream_of([EVENTS[1], EVENTS[1], EVENTS[0], EVENTS[2], EVENTS[3]]))
    _, result = await shop.run(await shop.job(body_of(stream=True)))
    assert result == EVENTS[0] + EVENTS[2] + EVENTS[3]


async def test_what_an_engine_works_on_by_itself_is_followed_to_its_answer(shop: Workshop) -> None:
    film = bytes(range(256)) * 40
    answer = FollowedAnswer(200, (("content-type", "video/mp4"),), {"size": "64x32"})
    whole = progress_line(0.25) + progress_line(0.5) + answer_line(answer) + film
    pieces = tuple(whole[at : at + 77] for at in range(0, len(whole), 77))
    shop.dispatcher.answer(FakeResponse(200, (("content-type", FOLLOWED),), pieces))
    told: list[Progress] = []
    job = await shop.job(b'{"model":"m","prompt":"x"}', "/v1/videos", headers=(("accept", "text/plain"),))
    found, result = await shop.run(job, progress=told.append)
    assert (found.status, result) == (200, film)
    assert dict(found.headers) == {"content-type": "video/mp4", FACTS: '{"size":"64x32"}'}
    assert told[-1] == Progress(0.5)
    accepts = [value for name, value in shop.request.headers if name == "accept"]
    assert accepts == [f"{FOLLOWED}, */*;q=0.5"], "the client does not say how its video is made"


async def test_what_any_engine_says_of_its_progress_is_the_jobs(shop: Workshop) -> None:
    async def serve(request: Request) -> FakeResponse:
        assert request.on_progress is not None
        request.on_progress(Progress(0.5))
        request.on_progress(Progress(None, "loading", Preview("image/png", b"x")))
        return json_response()

    shop.dispatcher.serve = serve
    told: list[Progress] = []
    await shop.run(await shop.job(body_of()), progress=told.append)
    assert told == [Progress(0.5), Progress(None, "loading", Preview("image/png", b"x"))]


async def test_a_followed_answer_may_be_a_refusal_or_come_to_nothing(shop: Workshop) -> None:
    job = await shop.job(b'{"model":"m","prompt":"x"}', "/v1/videos")
    head, kind = (("content-type", FOLLOWED),), (("content-type", "application/json"),)
    for status, is_kept in ((400, True), (500, False)):
        whole = answer_line(FollowedAnswer(status, kind)) + b"{}"
        shop.dispatcher.answer(FakeResponse(200, head, (whole,)))
        found, result = await shop.run(job, generation=status)
        assert (found.status, found.refusal, result) == (status, b"{}", b"{}" if is_kept else b"")
    for broken in ((progress_line(0.5),), (b"<html>\n",), ()):
        shop.dispatcher.answer(FakeResponse(200, head, broken))
        with pytest.raises(EngineError, match="follow"):
            await shop.run(job, generation=501)


async def test_a_refusal_is_kept_and_an_error_that_may_pass_is_not(shop: Workshop) -> None:
    for status, is_kept in ((400, True), (404, True), (429, False), (500, False)):
        shop.dispatcher.answer(FakeResponse(status, (("content-type", "application/json"),), (b"{}",)))
        answer, result = await shop.run(await shop.job(body_of()), generation=status)
        assert (answer.status, answer.refusal) == (status, b"{}")
        assert result == (b"{}" if is_kept else b"")


async def test_the_jobs_tier_deadline_and_slice_of_a_file_count(shop: Workshop) -> None:
    body = body_of(service_tier="priority")
    at = ObjectSlice("jobs/j/body", 3, 3 + len(body))
    headers = (("x-trunkline-tier", "realtime"), ("x-stainless-read-timeout", "1"), ("X-Custom", "yes"))
    given = {"body": at, "headers": headers, "deadline_s": time.time() + 100.0, "tier": "standard"}
    job = await shop.job(b"123" + body + b"456", **given)  # type: ignore[arg-type]
    await shop.run(job)
    assert shop.request.tier is Tier.STANDARD
    assert shop.request.deadline_s is not None
    assert 50.0 < shop.request.deadline_s - shop.request.arrived_s <= 100.0
    assert ("x-custom", "yes") in shop.request.headers


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"key_id": "other"}, Unauthenticated),
        ({"path": "/v1/files"}, RouteNotFound),
        ({"tenant": "x"}, Unauthenticated),
        ({"size": 3000}, BodyTooLarge),
    ],
)
async def test_jobs_that_cannot_run_say_why(
    shop: Workshop, given: dict[str, object], error: type[Exception]
) -> None:
    body = body_of(pad="x" * int(str(given.pop("size", 0))))
    shop.keys.tenant = str(given.pop("tenant", "acme"))
    job = await shop.job(body, **given)  # type: ignore[arg-type]
    with pytest.raises(error):
        await shop.run(job)


async def test_bodies_of_jobs_take_of_the_memory_for_bodies(shop: Workshop) -> None:
    shop.budget.large.limit_bytes = shop.budget.small.limit_bytes = 10
    shop.budget.large._first_bytes = shop.budget.small._first_bytes = 5
    with pytest.raises(BuffersFull):
        await shop.run(await shop.job(body_of()))


async def test_a_form_is_read_until_its_model_and_passed_on(shop: Workshop) -> None:
    form = (
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + b"x" * 4000
        + b"\r\n--b--\r\n"
    )
    job = await shop.job(
        form, "/v1/audio/transcriptions", headers=(("content-type", "multipart/form-data; boundary=b"),)
    )
    answer, _ = await shop.run(job)
    assert answer.status == 200
    assert shop.request.route != "chat"


async def kept(shop: Workshop, data: bytes) -> None:
    async with PartialOutput(shop.objects, "j", 1, LATER) as output:
        await output.begin(AnswerHead(200, (("content-type", "text/event-stream"),), "m", "v1"))
        await output.append(data)
        await output.close()


async def test_what_earlier_runs_have_is_gone_on_with(shop: Workshop) -> None:
    await kept(shop, EVENTS[0] + b'data: {"ha')
    begun = []

    async def serve(request: Request) -> FakeResponse:
        begun.append(request.begun)
        return stream_of(EVENTS[2:])

    shop.dispatcher.serve = serve
    _, result = await shop.run(await shop.job(body_of(stream=True)), generation=2)
    assert result == EVENTS[0] + EVENTS[2] + EVENTS[3]
    assert begun[0] is not None
    assert (begun[0].data, begun[0].model, begun[0].version) == (EVENTS[0], "m", "v1")


async def test_what_cannot_be_gone_on_with_starts_over(shop: Workshop) -> None:
    await kept(shop, EVENTS[0])

    async def serve(request: Request) -> FakeResponse:
        if request.begun is not None:
            raise NotContinuable("not this one")
        return stream_of(EVENTS[2:])

    shop.dispatcher.serve = serve
    _, result = await shop.run(await shop.job(body_of(stream=True)), generation=2)
    assert result == EVENTS[2] + EVENTS[3]
    assert len(shop.audited) == 1


PIECES = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"Good "}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"day"},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","choices":[],"usage":{"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
]


def said_in(result: bytes) -> tuple[str, object]:
    answer = orjson.loads(result)
    return answer["choices"][0]["message"]["content"], answer["usage"]


async def test_an_answer_in_one_piece_is_streamed_and_its_result_is_the_whole(shop: Workshop) -> None:
    shop.continues = True
    shop.dispatcher.answer(stream_of(PIECES))
    answer, result = await shop.run(await shop.job(body_of()))
    assert said_in(result) == ("Good day", {"completion_tokens": 2})
    assert ("content-type", "application/json") in answer.headers


async def test_an_answer_in_one_piece_goes_on_where_it_broke_off(shop: Workshop) -> None:
    shop.continues = True
    shop.dispatcher.answer(broken := stream_of(PIECES[:1]))
    broken.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "lost"))
    job = await shop.job(body_of())
    async with PartialOutput(shop.objects, "j", 1, LATER) as output:
        with pytest.raises(EngineError):
            await shop.run_job(JobRun(job, output))
        await output.close()
    assert [piece async for piece in shop.reader.read(job)] == [], "nobody is shown events"

    begun = []

    async def serve(request: Request) -> FakeResponse:
        assert request.begun is not None
        begun.append((request.begun.data, request.streaming))
        return stream_of(PIECES[1:])

    shop.dispatcher.serve = serve
    _, result = await shop.run(job, generation=2)
    assert begun == [(PIECES[0], True)]
    assert said_in(result) == ("Good day", {"completion_tokens": 2})


async def test_a_stream_that_cannot_be_put_together_leaves_nothing_of_it(shop: Workshop) -> None:
    shop.continues = True

    async def serve(request: Request) -> FakeResponse:
        return stream_of([PIECES[0], PIECES[3]]) if request.streaming else json_response()

    shop.dispatcher.serve = serve
    answer, result = await shop.run(await shop.job(body_of()))
    assert result == b'{"ok":true}'
    assert ("content-type", "application/json") in answer.headers


async def test_events_that_cannot_be_gone_on_with_are_begun_anew(shop: Workshop) -> None:
    shop.continues = True
    head = AnswerHead(200, (("content-type", "text/event-stream"),), "m", "v1")
    async with PartialOutput(shop.objects, "j", 1, LATER) as output:
        await output.begin(head, accumulated=True)
        await output.append(PIECES[0])
        await output.close()

    async def serve(request: Request) -> FakeResponse:
        return stream_of(PIECES[3:] if request.begun is not None else PIECES)

    shop.dispatcher.serve = serve
    _, result = await shop.run(await shop.job(body_of()), generation=2)
    assert said_in(result) == ("Good day", {"completion_tokens": 2})
