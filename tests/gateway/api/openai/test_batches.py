"""The Batch API as OpenAI's SDK uses it, and what it refuses."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from gateway.domain.files import FilePurpose
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.storage import Store
from tests.gateway.api.support import JSON_TYPE, KEY, FakeKeys, Surface, error_in
from tests.gateway.jobs.batches.workshop import CHAT, Workshop, jsonl, request_line


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    with Store.open(tmp_path / "state") as store:
        yield Workshop(tmp_path, store)


@pytest.fixture
async def surface(workshop: Workshop) -> Surface:
    keys = FakeKeys(Principal("k", "key", "t"))
    return Surface(files=workshop.files, batches=workshop.service, keys=keys)


async def begin(sdk: AsyncOpenAI, lines: int = 3) -> Batch:
    content = jsonl(*(request_line(f"c{number}") for number in range(lines)))
    file = await sdk.files.create(file=("in.jsonl", content), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
    )


async def test_a_batch_goes_its_way(sdk: AsyncOpenAI, workshop: Workshop) -> None:
    made = await begin(sdk)
    assert (made.status, made.endpoint, made.metadata) == ("validating", CHAT, {"a": "b"})
    assert made.expires_at == made.created_at + 86_400
    worker = workshop.worker()
    await worker.look()
    await workshop.answer(1)
    runs = await sdk.batches.retrieve(made.id)
    assert runs.request_counts is not None
    assert (runs.status, runs.model, runs.request_counts.to_dict()) == (
        "in_progress",
        "m",
        {"total": 3, "completed": 1, "failed": 0},
    )
    await workshop.answer()
    await worker.look()
    done = await sdk.batches.retrieve(made.id)
    assert (done.status, done.error_file_id, done.errors) == ("completed", None, None)
    assert done.completed_at == done.finalizing_at == done.in_progress_at == int(workshop.now_s)
    assert done.usage is not None
    assert (done.usage.total_tokens, done.usage.input_tokens_details.cached_tokens) == (15, 0)
    assert done.output_file_id is not None
    output = (await sdk.files.content(done.output_file_id)).content
    first = orjson.loads(output.splitlines()[0])
    assert first["response"]["status_code"] == 200
    assert (first["custom_id"], first["response"]["body"]["said"], first["error"]) == ("c0", "c0", None)
    assert (await sdk.files.retrieve(done.output_file_id)).purpose == "batch_output"


async def test_an_idempotency_key_makes_one_batch(sdk: AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("in.jsonl", jsonl(request_line("c"))), purpose="batch")

    async def begin_once(window: str = "24h") -> str:
        made = await sdk.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window=window,  # type: ignore[arg-type]
            extra_headers={"Idempotency-Key": "once"},
        )
        return made.id

    assert await begin_once() == await begin_once()
    with pytest.raises(openai.UnprocessableEntityError, match="was used before for another request"):
        await begin_once("48h")
    assert len((await sdk.batches.list()).data) == 1


async def test_a_bad_file_says_what_is_wrong(sdk: AsyncOpenAI, workshop: Workshop) -> None:
    file = await sdk.files.create(file=b"{\n", purpose="batch")
    made = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    await workshop.worker().look()
    done = await sdk.batches.retrieve(made.id)
    assert (done.status, done.failed_at) == ("failed", int(workshop.now_s))
    assert done.errors is not None
    assert done.errors.data is not None
    assert done.errors.data[0].to_dict() == {
        "code": "invalid_json_line",
        "line": 1,
        "message": "This line is not parseable as valid JSON.",
        "param": None,
    }


async def test_batches_are_listed_and_cancelled(sdk: AsyncOpenAI, workshop: Workshop) -> None:
    ids = [(await begin(sdk)).id for _ in range(3)]
    page = await sdk.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == (ids[:0:-1], True)
    assert [batch.id async for batch in page] == ids[::-1]
    await workshop.worker().look()
    assert (await sdk.batches.cancel(ids[0])).status == "cancelling"
    await workshop.worker().look()
    done = await sdk.batches.retrieve(ids[0])
    assert (done.status, done.cancelled_at) == ("cancelled", int(workshop.now_s))
    await workshop.answer()
    await workshop.worker().look()
    with pytest.raises(openai.ConflictError, match="is completed and cannot be cancelled") as late:
        await sdk.batches.cancel(ids[1])
    assert late.value.code == "batch_not_cancellable"


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        (
            {"endpoint": "/v1/audio/speech"},
            "endpoint",
            "must be one of /v1/chat/completions, /v1/completions",
        ),
        ({"endpoint": None}, "endpoint", "Missing"),
        ({"completion_window": "tomorrow"}, "completion_window", "must be 24h"),
        ({"completion_window": "8d"}, "completion_window", "up to 168h"),
        ({"metadata": {"trunkline_window": "yes"}}, "metadata", "can only be 'try'"),
        ({"metadata": {"a": 1}}, "metadata.a", "Invalid value"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "at most 512"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16"),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "output_expires_after.anchor",
            "created_at",
        ),
        ({"input_file_id": 3}, "input_file_id", "Invalid value"),
    ],
)
async def test_what_is_no_batch_is_refused(
    surface: Surface, change: dict[str, object], param: str, said: str
) -> None:
    body = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"} | change
    given = {name: value for name, value in body.items() if value is not None}
    call = await surface.post("/v1/batches", orjson.dumps(given), JSON_TYPE)
    error = error_in(call.content)
    assert (call.status, error["param"]) == (400, param), error
    assert said in str(error["message"])


async def test_what_cannot_be_a_batch_is_refused(
    surface: Surface, sdk: AsyncOpenAI, workshop: Workshop
) -> None:
    with pytest.raises(openai.NotFoundError, match="There is no file file-none"):
        await sdk.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    other = await workshop.upload(b"{}", FilePurpose.USER_DATA)
    with pytest.raises(openai.BadRequestError, match="upload it with the purpose 'batch'"):
        await sdk.batches.create(input_file_id=other, endpoint=CHAT, completion_window="24h")
    made = await begin(sdk)
    for scopes, why in (
        (limited(routes=["embeddings"]), "may not use chat"),
        (limited(tiers=["standard"]), "tier"),
    ):
        surface.keys.principal = Principal("k", "key", "t", scopes=scopes)
        with pytest.raises(openai.PermissionDeniedError, match=why):
            await sdk.batches.create(input_file_id=made.input_file_id, endpoint=CHAT, completion_window="24h")
    surface.keys.principal = Principal("k2", "other", "other")
    for ask in (sdk.batches.retrieve, sdk.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await ask(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.batches.create(input_file_id=made.input_file_id, endpoint=CHAT, completion_window="24h")
    assert (await sdk.batches.list()).data == []


@pytest.mark.parametrize(
    "query", [b"limit=0", b"limit=101", b"limit=x", b"limit=" + b"9" * 5000, b"after=batch_none"]
)
async def test_a_list_that_cannot_be_is_refused(surface: Surface, query: bytes) -> None:
    call = surface.ask("GET", "/v1/batches", (b"authorization", b"Bearer " + KEY.encode()), query=query)
    call.body(b"")
    assert (await call.done()).status == (404 if b"after" in query else 400)
    assert (await surface.get("/v1/batches", method="PUT")).status == 405


async def test_a_batch_tells_its_end_where_it_may(sdk: AsyncOpenAI, workshop: Workshop) -> None:
    file = await sdk.files.create(file=("in.jsonl", jsonl(request_line("c"))), purpose="batch")

    async def create(webhook: object) -> Batch:
        return await sdk.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", extra_body={"webhook": webhook}
        )

    for refused in ("https://refused.example/", {"url": "https://refused.example/"}):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(refused)
        assert (caught.value.code, caught.value.param) == ("webhook_refused", "webhook")
    made = await create("https://example.com/hook")
    assert workshop.store.batches.get(made.id, "t").new.webhook == "https://example.com/hook"


async def test_holders_of_tokens_have_no_batches(workshop: Workshop) -> None:
    keys = FakeKeys(Principal("jwt_1", "ann", "t", lasting=False))
    surface = Surface(files=workshop.files, batches=workshop.service, keys=keys)
    body = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}
    refused = await surface.post("/v1/batches", orjson.dumps(body), JSON_TYPE)
    assert (refused.status, error_in(refused.content)["code"]) == (403, "api_key_needed")


async def test_results_are_had_before_the_end(sdk: AsyncOpenAI, workshop: Workshop) -> None:
    made = await begin(sdk)
    await workshop.worker().look()
    await workshop.answer(2)
    path = f"/batches/{made.id}/results"
    found = await sdk.get(path, cast_to=httpx.Response)
    assert found.headers["content-type"] == "application/jsonl"
    assert [orjson.loads(line)["custom_id"] for line in found.content.splitlines()] == ["c0", "c1"]
    some = await sdk.get(path, cast_to=httpx.Response, options={"params": {"lines": "2-"}})
    assert [orjson.loads(line)["custom_id"] for line in some.content.splitlines()] == ["c1"]
    none = await sdk.get(path, cast_to=httpx.Response, options={"params": {"lines": "3"}})
    assert (none.status_code, none.content) == (200, b"")
    for wrong in ("", "x", "2-1"):
        with pytest.raises(openai.BadRequestError, match="'lines'"):
            await sdk.get(path, cast_to=httpx.Response, options={"params": {"lines": wrong}})
    with pytest.raises(openai.NotFoundError, match="There is no batch"):
        await sdk.get("/batches/batch_none/results", cast_to=httpx.Response)
