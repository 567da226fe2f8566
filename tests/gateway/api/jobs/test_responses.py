"""Background responses as OpenAI's SDK uses them."""

import asyncio
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from gateway.api.jobs.pages import JobAccess
from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.domain.request import Principal, Request
from gateway.domain.scopes import limited
from gateway.jobs.object_names import body_name
from gateway.jobs.output import AnswerHead, PartialOutput
from gateway.storage.errors import ObjectStorageFull
from gateway.storage.objects import ObjectStore
from tests.gateway.api.jobs.access import JobDoer
from tests.gateway.api.support import JSON_TYPE, KEY, FakeResponse, Surface, error_in, json_response

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "m", "input": "hello", "background": True}
HEAD = AnswerHead(200, (("content-type", "text/event-stream"),))
WHOLE = {"id": "engines", "object": "response", "status": "completed", "model": "m"} | {
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello world", "annotations": []}],
        }
    ]
}


def event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members}))


def delta(text: str) -> bytes:
    return event("response.output_text.delta", delta=text, item_id="msg_1", output_index=0, content_index=0)


BEGIN = event("response.created", response=WHOLE) + event("response.in_progress", response=WHOLE)
END = event("response.completed", response=WHOLE)


class Run:
    """One run of the job that waits."""

    def __init__(self, doer: JobDoer) -> None:
        self.doer, self.job = doer, doer.claim()
        assert self.job.lease is not None
        self.output = PartialOutput(doer.objects, self.job.id, self.job.lease.generation)

    async def __aenter__(self) -> "Run":
        await self.output.begin(HEAD)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.output.close()

    async def says(self, *data: bytes) -> None:
        """What is kept from now on."""
        for each in data:
            await self.output.append(each)
        await self.output.close()

    async def ends(self, *data: bytes) -> None:
        for each in data:
            await self.output.append(each)
        name, size_bytes = await self.output.finish()
        self.doer.end(self.job, JobOutcome(JobState.SUCCEEDED, 200, HEAD.headers, name, size_bytes))


async def numbered(stream: Any) -> list[tuple[int, str]]:
    return [(each.sequence_number, each.type) async for each in stream]


async def test_a_header_says_who_is_told_of_its_end(sdk: AsyncOpenAI, doer: JobDoer) -> None:
    headers = {"x-trunkline-webhook": "https://e.example/hook"}
    await sdk.responses.create(**ASKED, extra_headers=headers)
    assert doer.claim().new.webhook == headers["x-trunkline-webhook"]
    with pytest.raises(openai.BadRequestError, match="Not there"):
        await sdk.responses.create(**ASKED, extra_headers={"x-trunkline-webhook": "https://refused.example/"})


async def test_a_response_is_queued_runs_and_is_complete(
    sdk: AsyncOpenAI, surface: Surface, doer: JobDoer
) -> None:
    made = await sdk.responses.create(**ASKED, temperature=0.5, metadata={"a": "b"})
    assert made.id.startswith("resp_")
    assert (made.status, made.background, made.output, made.error) == ("queued", True, [], None)
    assert (made.temperature, made.metadata, made.model) == (0.5, {"a": "b"}, "m")
    kept = orjson.loads(await doer.objects.read_bytes(body_name(made.id), 10_000))
    assert {name: kept[name] for name in ("background", "stream", "store", "input")} == {
        "background": False,
        "stream": True,
        "store": False,
        "input": "hello",
    }
    assert await sdk.responses.retrieve(made.id) == made
    async with Run(doer) as run:
        assert (await sdk.responses.retrieve(made.id)).status == "in_progress"
        await run.ends(BEGIN, delta("Hello"), delta(" world"), END)
    found = await sdk.responses.retrieve(made.id)
    assert (found.id, found.status, found.output_text) == (made.id, "completed", "Hello world")
    assert (found.background, found.created_at, found.metadata) == (True, made.created_at, {"a": "b"})
    assert (await sdk.responses.cancel(made.id)).status == "completed"
    assert surface.dispatcher.requests == []


@pytest.mark.parametrize("more", [{}, {"background": False}, {"background": None}])
async def test_without_background_an_engine_answers_at_once(surface: Surface, more: Any) -> None:
    body = orjson.dumps({"model": "m", "input": "background", **more})
    sent: list[bytes] = []

    async def serve(request: Request) -> FakeResponse:
        sent.append(request.body.prefix)
        return json_response()

    surface.dispatcher.serve = serve
    call = await surface.post(PATH, body, JSON_TYPE)
    assert (call.status, call.content, sent) == (200, b'{"ok":true}', [body])


async def test_events_come_while_it_runs_and_a_reader_that_left_gets_exactly_the_rest(
    sdk: AsyncOpenAI, doer: JobDoer
) -> None:
    stream = await sdk.responses.create(**ASKED, stream=True)
    first = [await anext(stream) for _ in range(2)]
    assert [(each.sequence_number, each.type) for each in first] == [
        (0, "response.created"),
        (1, "response.queued"),
    ]
    (response_id,) = {each.response.id for each in first if hasattr(each, "response")}
    async with Run(doer) as run:
        half = delta(" world")
        await run.says(BEGIN, delta("Hello"), half[:30])
        more = [await anext(stream) for _ in range(2)]
        assert [each.sequence_number for each in more] == [2, 3]
        await stream.close()
        rest = await sdk.responses.retrieve(response_id, stream=True, starting_after=2)
        assert (await anext(rest)).sequence_number == 3
        await run.ends(half[30:], END)
        assert await numbered(rest) == [(4, "response.output_text.delta"), (5, "response.completed")]
    whole = await numbered(await sdk.responses.retrieve(response_id, stream=True))
    assert [number for number, _ in whole] == list(range(6))
    for after in range(6):
        again = await sdk.responses.retrieve(response_id, stream=True, starting_after=after)
        assert await numbered(again) == whole[after + 1 :]


async def test_what_follows_half_an_event_of_a_run_that_died_is_told_whole(
    sdk: AsyncOpenAI, access: JobAccess, doer: JobDoer
) -> None:
    stream = await sdk.responses.create(**ASKED, stream=True)
    async with Run(doer) as died:
        await died.says(BEGIN, delta("Hello"), delta("lost")[:50])
        events = [await anext(stream) for _ in range(4)]
        assert events[-1].sequence_number == 3
        assert died.job.lease is not None
        assert doer.store.job_claims.give_back(died.job.id, died.job.lease, 0.0)
    kept = await access.output.progress(died.job.id)
    job = doer.claim()
    assert job.lease is not None
    async with PartialOutput(doer.objects, job.id, job.lease.generation) as output:
        await output.begin(HEAD, kept, len(BEGIN + delta("Hello")))
        await output.append(delta(" wonderful world") + END)
        name, size_bytes = await output.finish()
    doer.end(job, JobOutcome(JobState.SUCCEEDED, 200, HEAD.headers, name, size_bytes))
    last = [each async for each in stream]
    assert [(each.sequence_number, getattr(each, "delta", None)) for each in last] == [
        (4, " wonderful world"),
        (5, None),
    ]


async def test_cancelling_ends_it_once(sdk: AsyncOpenAI, doer: JobDoer) -> None:
    made = await sdk.responses.create(**ASKED)
    assert [(await sdk.responses.cancel(made.id)).status for _ in range(2)] == ["cancelled"] * 2
    (last,) = (await numbered(await sdk.responses.retrieve(made.id, stream=True)))[2:]
    assert last == (2, "response.failed")

    runs = await sdk.responses.create(**ASKED)
    job = doer.claim()
    cancelling = asyncio.create_task(sdk.responses.cancel(runs.id))
    await until_cancelling(doer, job)
    doer.end(job, JobOutcome(JobState.CANCELLED))
    assert (await cancelling).status == "cancelled"


async def until_cancelling(doer: JobDoer, job: JobRecord) -> None:
    async with asyncio.timeout(60):
        while not doer.store.jobs.get(job.id).cancelling:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_is_deleted_is_gone(sdk: AsyncOpenAI, doer: JobDoer) -> None:
    made = await sdk.responses.create(**ASKED)
    await sdk.responses.delete(made.id)
    runs = await sdk.responses.create(**ASKED)
    job = doer.claim()
    deleting = asyncio.create_task(sdk.responses.delete(runs.id))
    await until_cancelling(doer, job)
    doer.end(job, JobOutcome(JobState.CANCELLED))
    await deleting
    for each in (made, runs):
        for act in (sdk.responses.retrieve, sdk.responses.cancel, sdk.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await act(each.id)
    assert await doer.objects.names("jobs") == []


async def test_how_it_failed_is_told(sdk: AsyncOpenAI, doer: JobDoer) -> None:
    refused = await sdk.responses.create(**ASKED)
    error = {"code": "engine_refused", "message": "Too long."}
    doer.end(doer.claim(), JobOutcome(JobState.FAILED, 400, error=error))
    await failed(sdk, refused, "invalid_prompt", "Too long.")

    cut = await sdk.responses.create(**ASKED)
    async with Run(doer) as run:
        await run.ends(BEGIN, delta("Hello"))
    await failed(sdk, cut, "server_error", "ended before")
    events = await numbered(await sdk.responses.retrieve(cut.id, stream=True))
    assert events[-2:] == [(3, "response.output_text.delta"), (4, "response.failed")]


async def failed(sdk: AsyncOpenAI, made: Response, code: str, message: str) -> None:
    found = await sdk.responses.retrieve(made.id)
    assert found.error is not None
    assert (found.status, found.error.code) == ("failed", code)
    assert message in found.error.message


async def test_what_is_not_of_the_key_or_not_of_this_gateway_is_not_found(
    sdk: AsyncOpenAI, surface: Surface
) -> None:
    made = await sdk.responses.create(**ASKED)
    with pytest.raises(openai.NotFoundError, match="/engines/"):
        await sdk.responses.retrieve("engines-own")
    surface.keys.principal = Principal("o", "o", "other")
    for act in (sdk.responses.retrieve, sdk.responses.cancel, sdk.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await act(made.id)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"store": False}, "store"),
        ({"store": 1}, "store"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"model": None}, "model"),
    ],
)
async def test_what_it_cannot_be_is_refused(
    surface: Surface, access: JobAccess, members: dict[str, Any], param: str
) -> None:
    call = await surface.post(PATH, orjson.dumps(ASKED | members), JSON_TYPE)
    assert (call.status, error_in(call.content)["param"]) == (400, param)
    assert await access.service.list("default") == ()


@pytest.mark.parametrize("query", [b"starting_after=1", b"stream=true&starting_after=-1", b"stream=maybe"])
async def test_what_cannot_be_read_of_it_is_refused(surface: Surface, query: bytes) -> None:
    made = orjson.loads((await surface.post(PATH, orjson.dumps(ASKED), JSON_TYPE)).content)
    call = surface.ask(
        "GET", f"{PATH}/{made['id']}", (b"authorization", b"Bearer " + KEY.encode()), query=query
    )
    call.body(b"")
    assert (await call.done()).status == 400


async def test_the_same_key_makes_one_response(surface: Surface, access: JobAccess) -> None:
    key, body = (b"idempotency-key", b"once"), orjson.dumps(ASKED)
    first, again = [orjson.loads((await surface.post(PATH, body, JSON_TYPE, key)).content) for _ in range(2)]
    assert first["id"] == again["id"]
    call = await surface.post(PATH, orjson.dumps(ASKED | {"input": "x"}), JSON_TYPE, key)
    assert (call.status, error_in(call.content)["code"]) == (422, "idempotency_key_reused")
    assert len(await access.service.list("default")) == 1


async def test_it_is_for_the_background_even_where_its_client_prefers_a_job(surface: Surface) -> None:
    call = await surface.post(PATH, orjson.dumps(ASKED), JSON_TYPE, (b"prefer", b"respond-async"))
    assert (call.status, orjson.loads(call.content)["object"]) == (200, "response")


async def test_what_the_key_may_not_use_is_no_response(
    surface: Surface, access: JobAccess, doer: JobDoer
) -> None:
    for scopes in (limited(models=["other"]), limited(routes=["chat"])):
        surface.keys.principal = Principal("k", "k", "default", scopes=scopes)
        for stream in (False, True):
            call = await surface.post(PATH, orjson.dumps(ASKED | {"stream": stream}), JSON_TYPE)
            assert call.status == 403
    assert await access.service.list("default") == ()
    assert await doer.objects.names("jobs") == []


async def test_holders_of_tokens_have_no_responses_in_the_background(
    surface: Surface, access: JobAccess
) -> None:
    surface.keys.principal = Principal("jwt_1", "ann", "default", lasting=False)
    call = await surface.post(PATH, orjson.dumps(ASKED), JSON_TYPE)
    assert (call.status, error_in(call.content)["code"]) == (403, "api_key_needed")
    assert await access.service.list("default") == ()


async def test_without_room_there_is_no_response(
    surface: Surface, access: JobAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise ObjectStorageFull("full")

    monkeypatch.setattr(ObjectStore, "put_bytes", full)
    call = await surface.post(PATH, orjson.dumps(ASKED), JSON_TYPE)
    assert (call.status, error_in(call.content)["code"]) == (507, "storage_full")
    assert await access.service.list("default") == ()
