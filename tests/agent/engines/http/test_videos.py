"""Videos that an engine makes by itself are one answer that takes its time."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from agent.engines.backend import BackendFailed
from agent.engines.http import videos
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.videos import is_followed
from shared.protocol.followed import FOLLOWED, FollowedAnswer, FollowedReader
from shared.protocol.messages import RequestHead
from shared.protocol.progress import Progress
from tests.agent.support.canned import Response, added, asked, canned, once, read, until
from tests.agent.support.http_backend import backend
from tests.support.scripted_engine import Fault, Script, ScriptedEngine
from tests.support.scripted_engine.videos import video_bytes

JSON_TYPE = ("content-type", "application/json")
HEAD = RequestHead(
    "e/scripted", "POST", "/v1/videos", (JSON_TYPE, ("accept", f"{FOLLOWED}, */*;q=0.5")), "scripted", "r"
)
BODY = orjson.dumps({"model": "scripted", "prompt": "rain"})


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(videos, "LOOK_S", 0.0)


async def answer_to(made: OpenAIHTTPBackend, head: RequestHead = HEAD) -> tuple[Response, bytes]:
    async with asked(made, head, once(BODY)) as response:
        return response, await read(response)


def followed(data: bytes) -> tuple[FollowedAnswer, bytes]:
    reader = FollowedReader()
    body = reader.feed(data)
    assert reader.answer is not None
    return reader.answer, body


async def test_it_is_followed_to_its_end_and_taken_from_the_engine(no_leaks: None) -> None:
    script = Script(video_steps=4, video_bytes=300_000)
    async with ScriptedEngine(default=script) as engine, backend(engine.url) as made:
        response, data = await answer_to(made)
        assert (response.status, response.headers) == (200, (("content-type", FOLLOWED),))
        told = [orjson.loads(line)["progress"] for line in data.split(b'{"answer"')[0].splitlines()]
        assert told == [0.0, 0.25, 0.5, 0.75]
        answer, body = followed(data)
        assert answer.status == 200
        assert ("content-type", "video/mp4") in answer.headers
        assert ("content-length", "300000") in answer.headers
        assert answer.facts == {"seconds": "2", "size": "64x32"}
        assert body == video_bytes(300_000, "rain")
        await until(lambda: not engine.videos.videos)


async def test_a_gateway_that_hears_of_progress_finds_none_in_the_body(no_leaks: None) -> None:
    script = Script(video_steps=4, video_bytes=1000)
    async with ScriptedEngine(default=script) as engine, backend(engine.url) as made:
        async with asked(made, HEAD, once(BODY), tells_progress=True) as response:
            data = await read(response)
        assert data.startswith(b'{"answer"')
        assert followed(data)[1] == video_bytes(1000, "rain")
        assert response.progress == [Progress(0.0, "queued"), Progress(0.25), Progress(0.5), Progress(0.75)]
        await until(lambda: not engine.videos.videos)


@pytest.mark.parametrize("said", [True, "half", None, -5, 1e300])
def test_progress_that_is_no_share_is_brought_to_one(said: object) -> None:
    video = {"id": "v", "status": "in_progress", "progress": said}
    assert videos._progress(video).fraction in (0.0, 1.0)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("400", 400, "video_failed"),
        ("moderation_blocked", 500, "moderation_blocked"),
        ("500", 500, "video_failed"),
    ],
)
async def test_a_video_that_fails_is_an_error(code: str, status: int, told: str) -> None:
    async with (
        ScriptedEngine(default=Script(video_steps=1, video_error=code)) as engine,
        backend(engine.url) as made,
    ):
        _, data = await answer_to(made)
        answer, body = followed(data)
        error = orjson.loads(body)["error"]
        assert (answer.status, error["code"]) == (status, told)
        assert error["message"] == "the engine could not make it"
        await until(lambda: not engine.videos.videos)


async def test_an_engine_that_answers_with_the_video_is_not_followed() -> None:
    async with ScriptedEngine(default=Script(video_bytes=1000)) as engine, backend(engine.url) as made:
        response, data = await answer_to(made)
        assert (response.status, data) == (200, video_bytes(1000, "rain"))
        assert ("content-type", "video/mp4") in response.headers


async def test_a_refusal_goes_on_as_it_is() -> None:
    async with ScriptedEngine(default=Script(status=422)) as engine, backend(engine.url) as made:
        response, data = await answer_to(made)
        assert response.status == 422
        assert b"as the script says" in data


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", b'{"id": "v"}', b'{"id": "v", "status": []}', b'{"id": "", "status": "queued"}', b"no"],
)
async def test_json_that_is_no_video_in_the_making_goes_on_as_it_is(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with canned(head + body, close=True) as server, backend(server.url) as made:
        response, data = await answer_to(made)
        assert (response.status, data) == (200, body)
    long = b'{"a": "%b"}' % (b"x" * 2 * videos.CREATED_BYTES)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(long)
    async with canned(head + long, close=True) as server, backend(server.url) as made:
        assert (await answer_to(made))[1] == long


async def test_a_request_that_is_given_up_is_taken_from_the_engine() -> None:
    async with ScriptedEngine(default=Script(video_steps=10**6)) as engine, backend(engine.url) as made:
        async with asked(made, HEAD, once(BODY)) as response:
            await response.begun()
            await until(lambda: sum(engine.videos.looks.values()) > 2)
            assert response.request is not None
            response.request.let_go()
        await until(lambda: not engine.videos.videos)
        assert made._running == 0


def _looked(engine: ScriptedEngine) -> bool:
    return sum(engine.videos.looks.values()) > 2


async def test_an_engine_that_forgets_the_video_or_goes_away_has_failed() -> None:
    async def forget(engine: ScriptedEngine) -> None:
        engine.videos.videos.clear()

    async def go(engine: ScriptedEngine) -> None:
        await engine.close()

    acts: list[Callable[[ScriptedEngine], Any]] = [forget, go]
    for act in acts:
        engine = ScriptedEngine(default=Script(video_steps=10**6))
        await engine.start()
        async with backend(engine.url) as made:
            async with asked(made, HEAD, once(BODY)) as response:
                await response.begun()
                await until(partial(_looked, engine))
                await act(engine)
                with pytest.raises(BackendFailed, match="went away while it made the video"):
                    await read(response)
            assert made._running == 0
        await engine.close()


async def test_an_engine_that_says_nothing_for_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        ScriptedEngine(default=Script(video_steps=10**6)) as engine,
        backend(engine.url) as made,
        asked(made, HEAD, once(BODY)) as response,
    ):
        await response.begun()
        monkeypatch.setattr(videos, "SILENT_S", 0.0)
        monkeypatch.setattr(engine.videos, "answer", lambda *asked: (500, b"{}", "application/json"))
        with pytest.raises(BackendFailed, match="said nothing of the video"):
            await read(response)


async def test_an_engine_that_dies_before_its_answer_has_failed() -> None:
    async with ScriptedEngine(default=Script(fault=Fault.DIE)) as engine, backend(engine.url) as made:
        with pytest.raises(BackendFailed):
            await answer_to(made)


async def test_bytes_that_the_engine_does_not_give_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedEngine(default=Script(video_steps=1)) as engine, backend(engine.url) as made:
        answer = engine.videos.answer

        def without_content(method: str, path: str) -> tuple[int, bytes, str]:
            return (404, b"{}", "application/json") if path.endswith("/content") else answer(method, path)

        monkeypatch.setattr(engine.videos, "answer", without_content)
        with pytest.raises(BackendFailed, match="answers 404 when asked for its bytes"):
            await answer_to(made)


async def test_only_who_takes_followed_answers_gets_one() -> None:
    assert is_followed(HEAD)
    assert not is_followed(replace(HEAD, headers=(JSON_TYPE, ("accept", "application/json"))))
    assert not is_followed(replace(HEAD, path="/v1/videos/v/remix"))
    assert not is_followed(replace(HEAD, method="GET"))
    plain = replace(HEAD, headers=(JSON_TYPE,))
    async with ScriptedEngine(default=Script(video_steps=3)) as engine, backend(engine.url) as made:
        _, data = await answer_to(made, plain)
        assert orjson.loads(data)["status"] == "queued"
        assert len(engine.videos.videos) == 1


async def test_nobody_is_asked_while_the_answer_is_not_wanted() -> None:
    """Progress that nobody reads is left out, and the video waits."""
    async with (
        ScriptedEngine(default=Script(video_steps=3)) as engine,
        backend(engine.url) as made,
        asked(made, HEAD, once(BODY)) as response,
    ):
        await response.begun()
        await until(lambda: sum(engine.videos.looks.values()) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any("content" in line for line in engine.stats.requests)
        assert followed(await read(response))[1] == video_bytes(100_000, "rain")


async def test_progress_is_told_again_for_others_to_see_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(videos, "TOLD_S", 0.0)
    async with (
        ScriptedEngine(default=Script(video_steps=1000)) as engine,
        backend(engine.url) as made,
        asked(made, HEAD, once(BODY)) as response,
    ):
        data = bytearray()
        reading = asyncio.ensure_future(response.stream_to(lambda piece: added(data, piece)))
        await until(lambda: data.count(b'{"progress":0.01}') > 1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
