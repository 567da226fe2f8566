"""Answers in one piece are streamed by their engines where that is sound, else asked for as they are."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
import pytest

from gateway.dispatch.recovery import NotContinuable
from gateway.domain.errors import EngineError, StreamBroken
from gateway.domain.request import BegunAnswer, Request
from gateway.pipeline.accumulation import AccumulatedRun
from gateway.pipeline.accumulation.run import MOST_REMEMBERED
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Headers, UsageMode
from tests.gateway.api.support import EVENTS, FakeResponse, json_response
from tests.gateway.pipeline.accumulation.support import BODY, request_of

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def piece(text: str, reason: str | None = None) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


WHOLE = (
    piece("Good "),
    b": waiting\n\n" + piece("day", "stop"),
    event({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
)


class Output:
    """In memory."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.begun: list[tuple[str, str]] = []
        self.dropped = 0

    async def begin(self, request: Request, headers: Headers, version: str) -> None:
        self.begun.append((request.model, version))

    async def append(self, data: bytes) -> None:
        self.data.append(data)

    async def pieces(self) -> AsyncIterator[bytes]:
        for each in self.data:
            yield each

    async def drop(self) -> None:
        self.dropped += 1
        self.data.clear()


class Engine:
    """Answers with what is next; notes how it was asked."""

    def __init__(self, *answers: FakeResponse | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[bool, dict[str, Any], UsageMode]] = []
        self.lengths: list[str] = []

    async def run(self, request: Request) -> FakeResponse:
        assert request.body.size_bytes == len(request.body.prefix)
        self.asked.append((request.streaming, orjson.loads(request.body.prefix), request.usage))
        self.lengths.append(dict(request.headers)["content-length"])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def streamed(self) -> list[bool]:
        return [streaming for streaming, _, _ in self.asked]


def events(*chunks: bytes, ended: bool = True) -> FakeResponse:
    return FakeResponse(200, (*EVENTS, ("x-engine", "e"), ("cache-control", "no-cache")), chunks, ended)


def stage(engine: Engine, *, continues: bool = True) -> AccumulatedRun:
    return AccumulatedRun(engine.run, lambda model, route: continues)


def asks(output: Output | None, **given: Any) -> Request:
    return request_of(streamed_output=output, **given)


async def test_a_streamed_answer_is_put_together_and_its_events_are_kept() -> None:
    engine, output = Engine(streamed := events(*WHOLE)), Output()
    response = await stage(engine)(request := asks(output))
    body = response.take_whole()
    assert body is not None
    (choice,) = orjson.loads(body)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Good day", "stop")
    assert orjson.loads(body)["usage"] == USAGE
    headers = dict(response.headers)
    assert headers == {
        "x-engine": "e",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    assert (response.agent, response.attempts, response.status) == ("gpu-1", 1, 200)
    ((streaming, asked, usage),) = engine.asked
    assert (streaming, asked["stream"], usage) == (True, True, UsageMode.KEEP)
    assert engine.lengths == [str(len(orjson.dumps(asked)))]
    assert b"".join(output.data).count(b"waiting") == 0
    assert output.begun == [("m", "")]
    assert streamed.consumed_bytes == len(b"".join(WHOLE))
    assert (request.streaming, request.body.prefix, request.usage) == (False, BODY, UsageMode.NONE)
    assert await response.next_chunks() == []


async def test_a_long_answer_is_put_together_beside_the_event_loop_and_read_in_pieces() -> None:
    text = "x" * 100_000
    engine = Engine(events(piece(text, "stop"), *WHOLE[2:]))
    response = await stage(engine)(asks(Output()))
    assert response.take_whole() is None
    (chunk,) = await response.next_chunks()
    assert orjson.loads(chunk)["choices"][0]["message"]["content"] == text
    response.consumed(len(chunk))
    response.abort()


@pytest.mark.parametrize(
    "request_", [asks(None), asks(Output(), streaming=True), asks(Output(), route="embeddings")]
)
async def test_other_requests_pass_unchanged(request_: Request) -> None:
    engine, streaming = Engine(answer := json_response()), request_.streaming
    assert await stage(engine)(request_) is answer
    assert engine.streamed == [streaming]


async def test_without_an_engine_that_could_go_on_nothing_is_streamed() -> None:
    engine = Engine(answer := json_response())
    assert await stage(engine, continues=False)(asks(Output())) is answer
    assert engine.streamed == [False]


async def test_an_answer_in_one_piece_to_a_request_for_a_stream_is_the_answer() -> None:
    engine = Engine(answer := json_response())
    assert await stage(engine)(asks(Output())) is answer


async def test_an_engine_that_refuses_streams_is_asked_in_one_piece() -> None:
    engine = Engine(refusal := json_response(b"{}", 422), answer := json_response())
    assert await stage(engine)(asks(Output())) is answer
    assert refusal.aborted
    assert engine.streamed == [True, False]
    assert engine.asked[1] == (False, orjson.loads(BODY), UsageMode.NONE)


async def test_an_engine_that_is_busy_is_not_asked_again() -> None:
    engine = Engine(busy := json_response(b"{}", 429))
    assert await stage(engine)(asks(Output())) is busy


async def test_what_cannot_be_put_together_is_asked_in_one_piece_and_so_is_all_that_follows() -> None:
    engine = Engine(events(piece("a", "stop"), b"data: [DONE]\n\n"), *(json_response() for _ in range(2)))
    run, output = stage(engine), Output()
    assert (await run(asks(output))).take_whole() == b'{"ok":true}'
    assert (output.dropped, output.data) == (1, [])
    await run(asks(Output()))
    assert engine.streamed == [True, False, False]
    for number in range(MOST_REMEMBERED):
        run._remember(f"m{number}")
    assert len(run._in_one_piece) == MOST_REMEMBERED


async def test_a_begun_answer_that_cannot_be_put_together_is_begun_anew() -> None:
    output = Output()
    engine = Engine(events(b"data: [DONE]\n\n"))
    begun = BegunAnswer(WHOLE[0], EVENTS, "m", "")
    with pytest.raises(NotContinuable):
        await stage(engine, continues=False)(asks(output, begun=begun))
    assert (engine.streamed, output.dropped) == ([True], 1)


async def test_a_stream_that_breaks_is_an_error_and_the_request_is_as_before() -> None:
    engine, output = Engine(broken := events(WHOLE[0], ended=False)), Output()
    broken.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "It is lost."))
    request = asks(output, seen_tokens=1)
    with pytest.raises(EngineError):
        await stage(engine)(request)
    assert broken.aborted
    assert output.data == [WHOLE[0]], "what there is can be gone on with"
    assert (request.body.prefix, request.streaming) == (BODY, True), "it is counted by what was seen"


async def test_a_request_that_no_engine_took_is_as_before() -> None:
    engine, request = Engine(EngineError("no")), asks(Output())
    with pytest.raises(EngineError):
        await stage(engine)(request)
    assert (request.body.prefix, request.streaming) == (BODY, False)
