"""OpenAI's own Python SDK against the surface: what it makes of our answers."""

import openai
import pytest
from openai import AsyncOpenAI

from gateway.domain.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineError,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    RequestError,
    StreamBroken,
)
from gateway.domain.request import Request
from gateway.fleet.registry import ServedModel
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import UsageMode
from tests.gateway.api.support import (
    EVENTS,
    FakeCatalog,
    FakeResponse,
    Surface,
    json_response,
    whole_body,
)

CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%b]}\n\n'
PIECE = CHUNK % b'{"index":0,"delta":{"content":"hi"},"finish_reason":null}'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def surface() -> Surface:
    return Surface(catalog=FakeCatalog(ServedModel("org/m", 1, "trunkline", True, 1, ("chat",))))


async def ask(sdk: AsyncOpenAI) -> object:
    return await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


async def test_models_are_listed_and_found_by_ids_with_slashes(sdk: AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == ["org/m"]
    assert (await sdk.models.retrieve("org/m")).owned_by == "trunkline"


async def test_a_stream_is_read_event_by_event(sdk: AsyncOpenAI, surface: Surface) -> None:
    surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(PIECE, PIECE, DONE)))
    stream = await sdk.chat.completions.create(model="m", messages=[], stream=True)
    assert [chunk.choices[0].delta.content async for chunk in stream] == ["hi", "hi"]
    assert surface.dispatcher.request.usage is UsageMode.STRIP


async def test_a_stream_that_breaks_raises_what_happened(sdk: AsyncOpenAI, surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(PIECE,), ended=False))
    response.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "The engine died."))
    stream = await sdk.chat.completions.create(model="m", messages=[], stream=True)
    with pytest.raises(openai.APIError, match="The engine died"):
        [chunk async for chunk in stream]


async def test_comments_are_no_events(sdk: AsyncOpenAI, surface: Surface) -> None:
    comment = b": loading the model, about 20 s left\n\n"
    surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(comment, PIECE, comment, DONE)))
    stream = await sdk.chat.completions.create(model="m", messages=[], stream=True)
    assert len([chunk async for chunk in stream]) == 1


async def test_a_file_is_uploaded(sdk: AsyncOpenAI, surface: Surface) -> None:
    audio = b"RIFF" * 500_000
    bodies: list[bytes] = []

    async def serve(request: Request) -> FakeResponse:
        bodies.append(await whole_body(request))
        return json_response(b'{"text":"hello"}')

    surface.dispatcher.serve = serve
    answer = await sdk.audio.transcriptions.create(model="whisper", file=("a.wav", audio))
    assert answer.text == "hello"
    assert audio in bodies[0]
    assert surface.dispatcher.request.model == "whisper"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (BadRequest("no", param="model"), openai.BadRequestError),
        (ModelNotFound("no"), openai.NotFoundError),
        (QueueFull("no", retry_after_s=1), openai.RateLimitError),
        (EngineError("no"), openai.InternalServerError),
        (NoDeployment("no"), openai.InternalServerError),
        (DeadlineExceeded("no"), openai.InternalServerError),
    ],
)
async def test_every_error_class_is_recognised(
    sdk: AsyncOpenAI, surface: Surface, error: RequestError, raised: type[openai.APIStatusError]
) -> None:
    surface.dispatcher.fail(error)
    with pytest.raises(raised) as caught:
        await ask(sdk)
    assert caught.value.status_code == error.status
    assert caught.value.request_id
    assert caught.value.code == error.code


async def test_a_wrong_key_is_an_authentication_error(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        await ask(sdk.with_options(api_key="wrong"))


async def test_a_full_queue_is_tried_again_after_the_time_it_said(sdk: AsyncOpenAI, surface: Surface) -> None:
    body = b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[]}'

    async def serve(request: Request) -> FakeResponse:
        if len(surface.dispatcher.requests) < 3:
            raise QueueFull("full", retry_after_s=0.001)
        return json_response(body)

    surface.dispatcher.serve = serve
    await ask(sdk.with_options(max_retries=2))
    assert len(surface.dispatcher.requests) == 3


async def test_what_passed_its_deadline_is_not_tried_again(sdk: AsyncOpenAI, surface: Surface) -> None:
    surface.dispatcher.fail(DeadlineExceeded("late"))
    with pytest.raises(openai.InternalServerError):
        await ask(sdk.with_options(max_retries=2))
    assert len(surface.dispatcher.requests) == 1
