"""The OpenAI Python SDK, unmodified, sees an OpenAI server."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to
from tests.support.scripted_engine import embedding_of


def ask(text: str) -> list[ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


def script(**members: object) -> dict[str, object]:
    """The ``extra_body`` that tells the engine what to do."""
    return {"script": members}


@pytest.fixture
async def sdk(site: Site) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=site.base_url, api_key=site.key, max_retries=0) as client:
        yield client


async def test_chat(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=ask("hi"), max_tokens=4)
    assert answer.choices[0].message.content == answer_to("hi", 4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


async def test_chat_streamed(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(model=MODEL, messages=ask("hi"), max_tokens=9, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == answer_to("hi", 9)


async def test_chat_streamed_with_usage(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=ask("hi"), max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_completions_streamed_and_not(sdk: AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model=MODEL, prompt="once", max_tokens=4)
    stream = await sdk.completions.create(model=MODEL, prompt="once", max_tokens=4, stream=True)
    streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert answer.choices[0].text == streamed == answer_to("once", 4)


async def test_responses_streamed_and_not(sdk: AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model=MODEL, input="once", max_output_tokens=4)
    stream = await sdk.responses.create(model=MODEL, input="once", max_output_tokens=4, stream=True)
    deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    assert answer.output_text == "".join(deltas) == answer_to("once", 4)


async def test_embeddings(sdk: AsyncOpenAI) -> None:
    answer = await sdk.embeddings.create(model=MODEL, input=["one", "two"])
    assert [entry.embedding for entry in answer.data] == [embedding_of("one"), embedding_of("two")]


async def test_models(sdk: AsyncOpenAI) -> None:
    assert MODEL in [model.id async for model in sdk.models.list()]
    assert (await sdk.models.retrieve(MODEL)).id == MODEL


async def test_a_file_upload(sdk: AsyncOpenAI) -> None:
    audio = b"RIFF" * 1000
    answer = await sdk.audio.transcriptions.create(model=MODEL, file=("a.wav", audio))
    assert answer.text.startswith(hashlib.sha256(audio).hexdigest())


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
    ],
)
async def test_what_the_engine_refuses_raises_the_class_of_its_status(
    sdk: AsyncOpenAI, status: int, error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error) as raised:
        await sdk.chat.completions.create(model=MODEL, messages=ask("hi"), extra_body=script(status=status))
    assert raised.value.status_code == status
    assert raised.value.request_id


@pytest.mark.parametrize(
    ("status", "error"), [(429, openai.RateLimitError), (503, openai.InternalServerError)]
)
async def test_an_engine_that_has_enough_to_do_for_longer_than_a_request_may_wait_is_an_error(
    impatient: Site, status: int, error: type[openai.APIStatusError]
) -> None:
    async with AsyncOpenAI(base_url=impatient.base_url, api_key=impatient.key, max_retries=0) as sdk:
        patient = sdk.with_options(max_retries=5)  # the engine may have had enough to do before
        assert (await patient.chat.completions.create(model=MODEL, messages=ask("hi"))).choices
        with pytest.raises(error) as raised:
            await sdk.chat.completions.create(
                model=MODEL, messages=ask("hi"), extra_body=script(status=status, retry_after="2")
            )
    assert raised.value.status_code == status
    assert raised.value.request_id


async def test_a_wrong_key_is_an_authentication_error(site: Site) -> None:
    async with AsyncOpenAI(base_url=site.base_url, api_key="sk-tl-wrong", max_retries=0) as wrong:
        with pytest.raises(openai.AuthenticationError) as raised:
            await wrong.chat.completions.create(model=MODEL, messages=ask("hi"))
    assert raised.value.code == "invalid_api_key"


async def test_an_unknown_model_is_not_found(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await sdk.chat.completions.create(model="no-such-model", messages=ask("hi"))
    assert raised.value.code == "model_not_found"
    assert "no-such-model" in raised.value.message


async def test_a_body_over_the_limit_is_a_413(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await sdk.chat.completions.create(model=MODEL, messages=ask("x" * (65 * 1024 * 1024)))
    assert raised.value.status_code == 413


async def test_nobody_there_is_a_connection_error() -> None:
    async with AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0) as nobody:
        with pytest.raises(openai.APIConnectionError):
            await nobody.models.list()


async def test_a_stream_that_breaks_raises_instead_of_ending(sdk: AsyncOpenAI, site: Site) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=ask("hi"), stream=True, extra_body=script(fault="die", after=3)
    )
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]


async def test_a_timeout_raises_and_frees_the_engine(sdk: AsyncOpenAI, site: Site) -> None:
    with pytest.raises(openai.APITimeoutError):
        await sdk.chat.completions.create(
            model=MODEL, messages=ask("hi"), extra_body=script(fault="hang"), timeout=0.5
        )
    await asyncio.to_thread(site.engine.until_idle)


async def test_closing_a_stream_frees_the_engine(sdk: AsyncOpenAI, site: Site) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=ask("hi"), stream=True, max_tokens=1000, extra_body=script(tokens_per_s=20)
    )
    async for _ in stream:
        break
    await stream.close()
    await asyncio.to_thread(site.engine.until_idle)


async def test_cancelling_the_task_frees_the_engine(sdk: AsyncOpenAI, site: Site) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await sdk.chat.completions.create(
                model=MODEL, messages=ask("hi"), extra_body=script(fault="hang")
            )
    await asyncio.to_thread(site.engine.until_idle)


async def test_a_429_of_a_lone_engine_is_waited_out_for_as_long_as_its_header_says(
    sdk: AsyncOpenAI, site: Site
) -> None:
    site.engine.direct(once=[{"status": 429, "retry_after": "1"}])
    began_s = time.monotonic()
    answer = await sdk.with_options(max_retries=0).chat.completions.create(
        model=MODEL, messages=ask("hi"), max_tokens=2
    )
    assert answer.choices[0].message.content == answer_to("hi", 2)
    assert 1.0 <= time.monotonic() - began_s < 45.0


async def test_a_raw_response_carries_the_request_id_and_the_facts(sdk: AsyncOpenAI) -> None:
    raw = await sdk.chat.completions.with_raw_response.create(model=MODEL, messages=ask("hi"))
    assert raw.headers["x-request-id"] == raw.request_id
    assert raw.headers["x-trunkline-agent"] == "agent"


async def test_the_synchronous_client_streams_too(site: Site) -> None:
    def stream() -> str:
        with openai.OpenAI(base_url=site.base_url, api_key=site.key) as client:
            chunks = client.chat.completions.create(
                model=MODEL, messages=ask("hi"), max_tokens=5, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert await asyncio.to_thread(stream) == answer_to("hi", 5)


async def test_errors_have_openais_shape_byte_for_byte(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.gateway.url) as client:
        response = await client.get("/v1/models")
    assert response.status_code == 401
    error = json.loads(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
