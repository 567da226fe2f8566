"""Videos as OpenAI's SDK uses them, and what is refused."""

import asyncio
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from gateway.api.jobs.pages import JobAccess
from gateway.domain.jobs import JobOutcome, JobState
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.jobs.object_names import job_prefix
from tests.gateway.api.jobs.access import JobDoer
from tests.gateway.api.support import BEARER, JSON_TYPE, Surface, error_in
from tests.support.scripted_engine.upload import Upload

PATH = "/v1/videos"
FILM = bytes(range(256)) * 100
ASK = b'{"model":"m","prompt":"rain"}'

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")


async def make(surface: Surface, body: bytes = ASK) -> str:
    return str(orjson.loads((await surface.post(PATH, body, JSON_TYPE)).content)["id"])


async def make_whole(surface: Surface, doer: JobDoer, body: bytes = ASK) -> str:
    video_id = await make(surface, body)
    await doer.answer(doer.claim(), FILM, content_type="video/mp4")
    return video_id


async def test_a_video_is_made_shown_downloaded_and_deleted(
    sdk: AsyncOpenAI, doer: JobDoer, access: JobAccess
) -> None:
    headers = {"x-trunkline-webhook": "https://e.example/made"}
    video = await sdk.videos.create(
        prompt="rain", model="m", seconds="8", size="1280x720", extra_headers=headers
    )
    assert (video.status, video.prompt, video.seconds, video.size) == ("queued", "rain", "8", "1280x720")
    job = doer.claim()
    assert (job.id, job.new.path, job.new.model) == (video.id, PATH, "m")
    assert job.new.webhook == headers["x-trunkline-webhook"]
    assert (await sdk.videos.retrieve(video.id)).status == "in_progress"
    await doer.answer(job, FILM, content_type="video/mp4")
    found = await sdk.videos.poll(video.id)
    assert (found.status, found.progress, found.error) == ("completed", 100, None)
    assert found.expires_at is not None
    content = await sdk.videos.download_content(video.id)
    assert content.response.headers["content-type"] == "video/mp4"
    assert await content.aread() == FILM
    deleted = await sdk.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    with pytest.raises(openai.NotFoundError):
        await sdk.videos.retrieve(video.id)
    assert await doer.objects.names(job_prefix(video.id)) == []


async def test_a_reference_goes_along_as_it_came(sdk: AsyncOpenAI, doer: JobDoer) -> None:
    image = b"\x89PNG" + b"\x00" * 2_000_000
    video = await sdk.videos.create(prompt="rain", model="m", input_reference=("a.png", image, "image/png"))
    job = doer.claim()
    headers = dict(job.new.headers)
    upload = Upload(headers["content-type"])
    async for piece in doer.objects.read(job.new.body.name):
        upload.feed(piece)
    assert upload.fields == {"prompt": "rain", "model": "m"}
    assert (await sdk.videos.retrieve(video.id)).prompt == "rain"


async def test_videos_are_listed_page_by_page_and_nothing_else_is(sdk: AsyncOpenAI, surface: Surface) -> None:
    made = [(await sdk.videos.create(prompt=str(number), model="m")).id for number in range(5)]
    await surface.post("/v1/jobs", b'{"path":"/v1/completions","body":{"model":"m","prompt":"x"}}', JSON_TYPE)
    found = [video async for video in sdk.videos.list(limit=2)]
    assert [video.id for video in found] == made[::-1]
    assert [video.prompt for video in found] == ["4", "3", "2", "1", "0"]
    page = await sdk.videos.list(limit=2, order="asc", after=made[1])
    assert [video.id for video in page.data] == made[2:4]
    assert page.has_more
    with pytest.raises(openai.NotFoundError):
        await sdk.videos.list(after="video_of_nobody")
    with pytest.raises(openai.BadRequestError):
        await sdk.videos.list(limit=0)


@pytest.mark.parametrize("as_form", [True, False])
async def test_a_remix_asks_again_with_another_prompt(
    sdk: AsyncOpenAI, surface: Surface, doer: JobDoer, as_form: bool
) -> None:
    if as_form:
        source = (await sdk.videos.create(prompt="rain", model="m", seconds="8")).id
    else:
        source = await make(surface, b'{"model":"m","prompt":"rain","seconds":"8"}')
    with pytest.raises(openai.ConflictError):
        await sdk.videos.remix(source, prompt="snow")
    await doer.answer(doer.claim(), FILM, content_type="video/mp4")
    headers = {"x-trunkline-webhook": "https://e.example/remixed"}
    remix = await sdk.videos.remix(source, prompt="snow", extra_headers=headers)
    assert remix.remixed_from_video_id == source
    assert (remix.prompt, remix.seconds, remix.status) == ("snow", "8", "queued")
    job = doer.claim()
    assert (job.id, job.new.webhook) == (remix.id, headers["x-trunkline-webhook"])
    body = await doer.objects.read_bytes(job.new.body.name, 1 << 20)
    if as_form:
        upload = Upload(dict(job.new.headers)["content-type"])
        upload.feed(body)
        assert upload.fields == {"prompt": "snow", "model": "m", "seconds": "8"}
    else:
        assert orjson.loads(body) == {"model": "m", "prompt": "snow", "seconds": "8"}
    with pytest.raises(openai.BadRequestError):
        await sdk.videos.remix(source, prompt="")


@pytest.mark.parametrize(
    ("given", "status", "part", "said"),
    [
        (None, 200, FILM, None),
        (b"bytes=0-99", 206, FILM[:100], "bytes 0-99/25600"),
        (b"bytes=25000-", 206, FILM[25000:], "bytes 25000-25599/25600"),
        (b"bytes=-1", 206, FILM[-1:], "bytes 25599-25599/25600"),
        (b"bytes=0-1,3-4", 200, FILM, None),
        (b"bytes=25600-", 416, None, "bytes */25600"),
    ],
)
async def test_parts_of_a_video_are_given(
    surface: Surface, doer: JobDoer, given: bytes | None, status: int, part: bytes | None, said: str | None
) -> None:
    video_id = await make_whole(surface, doer)
    fields = () if given is None else ((b"range", given),)
    call = await surface.get(f"{PATH}/{video_id}/content", *fields)
    assert (call.status, call.headers.get("content-range")) == (status, said)
    if part is None:
        assert error_in(call.content)["code"] == "range_not_satisfiable"
        return
    assert call.content == part
    assert (call.headers["accept-ranges"], call.headers["etag"]) == ("bytes", f'"{video_id}"')
    head = await surface.get(f"{PATH}/{video_id}/content", *fields, method="HEAD")
    assert (head.status, head.content, head.headers["content-length"]) == (status, b"", str(len(part)))


@pytest.mark.parametrize(
    ("variant", "status", "words"),
    [("poster", 400, "'variant' must be one of"), ("thumbnail", 404, "The engine gave no thumbnail")],
)
async def test_variants_that_there_are_not(
    surface: Surface, doer: JobDoer, variant: str, status: int, words: str
) -> None:
    video_id = await make_whole(surface, doer)
    call = surface.ask("GET", f"{PATH}/{video_id}/content", BEARER, query=b"variant=" + variant.encode())
    call.body(b"")
    await call.done()
    assert call.status == status
    assert words in str(error_in(call.content)["message"])


async def test_there_is_no_content_before_its_end_or_of_what_failed(surface: Surface, doer: JobDoer) -> None:
    video_id = await make(surface)
    assert (await surface.get(f"{PATH}/{video_id}/content")).status == 409
    job = doer.claim()
    error = {"type": "x", "code": "bad", "message": "no film", "param": None}
    doer.end(job, JobOutcome(JobState.FAILED, 400, error=error))
    call = await surface.get(f"{PATH}/{video_id}/content")
    assert (call.status, error_in(call.content)["message"]) == (400, "no film")
    other = await make(surface)
    await doer.answer(doer.claim(), b'{"id":"v","status":"queued"}')
    call = await surface.get(f"{PATH}/{other}/content")
    assert (call.status, error_in(call.content)["code"]) == (502, "no_video")


async def test_one_that_runs_is_cancelled_and_deleted(surface: Surface, doer: JobDoer) -> None:
    video_id = await make(surface)
    job = doer.claim()
    deleting = asyncio.ensure_future(surface.get(f"{PATH}/{video_id}", method="DELETE"))
    async with asyncio.timeout(30):
        while not doer.store.jobs.get(video_id).cancelling:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    doer.end(job, JobOutcome(JobState.CANCELLED))
    assert (await deleting).status == 200
    assert (await surface.get(f"{PATH}/{video_id}")).status == 404


@pytest.mark.parametrize(
    ("body", "kind", "status", "param"),
    [
        (b'{"model":"m"}', b"application/json", 400, "prompt"),
        (b'{"prompt":"x"}', b"application/json", 400, "model"),
        (b'{"model":"unknown","prompt":"x"}', b"application/json", 404, "model"),
        (b'{"model":"m","prompt":"x","size":"big"}', b"application/json", 400, "size"),
        (b'{"model":"m","prompt":"x","seconds":"0"}', b"application/json", 400, "seconds"),
        (b"model=m&prompt=x", b"application/x-www-form-urlencoded", 400, "content-type"),
        (b"", b"", 400, "content-type"),
        (b"[]", b"application/json", 400, None),
        (b"--x", b"multipart/form-data", 400, None),
    ],
)
async def test_bad_requests_are_refused_and_leave_nothing(
    surface: Surface, doer: JobDoer, body: bytes, kind: bytes, status: int, param: str | None
) -> None:
    call = await surface.post(PATH, body, (b"content-type", kind))
    assert (call.status, error_in(call.content)["param"]) == (status, param)
    assert doer.store.jobs.list(limit=1) == ()
    assert await doer.objects.names("jobs") == []


async def test_an_input_that_is_too_large_is_refused(
    sdk: AsyncOpenAI, surface: Surface, doer: JobDoer
) -> None:
    length = (b"content-length", str(surface.settings.body.body_bytes + 1).encode())
    kind = (b"content-type", b"multipart/form-data; boundary=x")
    call = surface.ask("POST", PATH, BEARER, length, kind)
    await call.done()
    assert (call.status, error_in(call.content)["code"]) == (413, "request_too_large")
    assert doer.store.jobs.list(limit=1) == ()


async def test_the_same_idempotency_key_makes_one_video(surface: Surface) -> None:
    key = (b"idempotency-key", b"k1")
    first = await surface.post(PATH, ASK, JSON_TYPE, key)
    again = await surface.post(PATH, ASK, JSON_TYPE, key)
    assert orjson.loads(first.content)["id"] == orjson.loads(again.content)["id"]
    assert again.headers["idempotent-replayed"] == "true"
    other = await surface.post(PATH, ASK.replace(b"rain", b"snow"), JSON_TYPE, key)
    assert other.status == 422


async def test_a_key_with_scopes_asks_for_what_it_may_and_sees_its_own(
    surface: Surface, doer: JobDoer
) -> None:
    others = await make_whole(surface, doer)
    surface.keys.principal = Principal("k2", "tests", "default", scopes=limited(routes=["chat"]))
    assert (await surface.post(PATH, ASK, JSON_TYPE)).status == 403
    surface.keys.principal = Principal("k2", "tests", "default", scopes=limited(routes=["videos"]))
    own = await make(surface)
    assert (await surface.get(f"{PATH}/{others}")).status == 404
    listed = orjson.loads((await surface.get(PATH)).content)
    assert [video["id"] for video in listed["data"]] == [own]
    surface.keys.principal = Principal("k2", "tests", "elsewhere")
    assert (await surface.get(f"{PATH}/{own}")).status == 404


async def test_ids_that_are_no_videos_are_not_found(surface: Surface) -> None:
    made: Any = orjson.loads(
        (
            await surface.post(
                "/v1/jobs", b'{"path":"/v1/completions","body":{"model":"m","prompt":"x"}}', JSON_TYPE
            )
        ).content
    )
    for video_id in (made["id"], "nothing", "video_nothing"):
        assert (await surface.get(f"{PATH}/{video_id}")).status == 404
