"""The SDKs of OpenAI and Anthropic, unmodified, at engines that have chat completions only."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anthropic
import openai
import pydantic
import pytest
from openai import AsyncOpenAI

from tests.integration.conftest import MODEL
from tests.support import chat_engine
from tests.support.processes import Gateway, House, answer_to, fetch
from tests.support.proxy import FaultyProxy

TOOL: Any = {"type": "function", "name": "note", "parameters": {"type": "object"}, "strict": False}
TOKENS = 120
GOES_ON = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}


@pytest.fixture
def chat_only(house: House) -> tuple[Gateway, str]:
    gateway = house.gateway()
    key = gateway.key("tests")
    engine = house.engine("--model", MODEL, "--habit", "chat-only")
    house.agent(gateway, engine.url, environment=GOES_ON)
    house.wait_for_model(gateway, key, MODEL)
    return gateway, key


@pytest.fixture
async def sdk(chat_only: tuple[Gateway, str]) -> AsyncIterator[AsyncOpenAI]:
    gateway, key = chat_only
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        yield client


async def test_openai_responses_in_one_piece_and_streamed(sdk: AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model=MODEL, input="once", max_output_tokens=4)
    assert answer.output_text == answer_to("once", 4)
    assert answer.usage is not None
    assert (answer.status, answer.usage.output_tokens) == ("incomplete", 4)
    stream = await sdk.responses.create(model=MODEL, input="once", max_output_tokens=4, stream=True)
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer_to("once", 4)
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_openai_responses_call_tools(sdk: AsyncOpenAI) -> None:
    async with sdk.responses.stream(model=MODEL, input="call", tools=[TOOL], max_output_tokens=3) as stream:
        final = await stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("note", answer_to("call", 3))


async def test_openai_responses_that_refer_to_others_are_refused(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert (caught.value.code, caught.value.param) == ("not_translatable", "previous_response_id")


async def test_anthropic_messages(chat_only: tuple[Gateway, str]) -> None:
    gateway, key = chat_only
    base = gateway.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0) as typed:
        client: Any = typed
        asked: Any = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
        answer = await client.messages.create(**asked)
        assert (answer.content[0].text, answer.stop_reason) == (answer_to("hi", 4), "max_tokens")
        assert answer.usage.output_tokens == 4
        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == final.content[0].text == answer_to("hi", 4)
        tools = [{"name": "note", "input_schema": {"type": "object"}}]
        kinds = []
        async with await client.messages.create(**asked, tools=tools, stream=True) as raw:
            async for event in raw:
                kinds.append(event.type)
                if event.type == "content_block_start":
                    assert (event.content_block.type, event.content_block.name) == ("tool_use", "note")
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**asked, extra_body={"mcp_servers": [{"url": "x"}]})
        body: Any = caught.value.body
        assert body["error"]["type"] == "invalid_request_error"


async def test_a_translated_stream_survives_cut_tunnels_and_a_killed_agent(house: House) -> None:
    """The tunnel is cut in the middle, twice; then the agent is killed, and another engine goes on."""
    gateway = house.gateway()
    key = gateway.key("tests")
    engines = [house.engine("--model", MODEL, "--habit", "chat-only", name=f"e{n}") for n in range(2)]
    async with (
        FaultyProxy("127.0.0.1", gateway.port) as proxy,
        AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client,
    ):
        first = house.agent(gateway, engines[0].url, name="one", dial=proxy.url, environment=GOES_ON)
        await asyncio.to_thread(house.wait_for_model, gateway, key, MODEL)
        ask = partial(client.responses.with_raw_response.create, model=MODEL, input="?", max_output_tokens=1)
        await _answers_at(ask, "one")
        stream = await client.responses.create(
            model=MODEL,
            input="once",
            max_output_tokens=TOKENS,
            stream=True,
            extra_body={"script": {"tokens_per_s": 20}},
        )
        assert stream.response.headers["x-trunkline-agent"] == "one"
        second = house.agent(gateway, engines[1].url, name="two", environment=GOES_ON)
        text, numbers, ends = "", [], []
        async for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                ends.append(event)
            if len(numbers) in (10, 20):
                await proxy.cut()
            if len(numbers) == 40:
                await _answers_at(ask, "two")
                os.killpg(first.pid, signal.SIGKILL)
        house.children.stop(first)
        house.children.stop(second)
    assert text == answer_to("once", TOKENS)
    assert numbers == list(range(len(numbers)))
    (end,) = ends
    assert end.type == "response.incomplete", "as long as it may be"
    assert end.response.output_text == text
    assert end.response.usage is not None
    assert end.response.usage.output_tokens == TOKENS


async def test_a_translated_message_survives_cut_tunnels_and_a_killed_engine(house: House) -> None:
    """The tunnel is cut in the middle, twice; then the engine is killed, and another one goes on."""
    gateway = house.gateway()
    key = gateway.key("tests")
    engines = [house.engine("--model", MODEL, "--habit", "chat-only", name=f"e{n}") for n in range(2)]
    base = gateway.base_url.removesuffix("/v1")
    async with (
        FaultyProxy("127.0.0.1", gateway.port) as proxy,
        anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0) as typed,
    ):
        client: Any = typed
        house.agent(gateway, engines[0].url, name="one", dial=proxy.url, environment=GOES_ON)
        await asyncio.to_thread(house.wait_for_model, gateway, key, MODEL)
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "once"}]}
        ask = partial(client.messages.with_raw_response.create, **asked, max_tokens=1)
        await _answers_at(ask, "one")
        slowly = {"script": {"tokens_per_s": 20}}
        stream = await client.messages.create(**asked, max_tokens=TOKENS, stream=True, extra_body=slowly)
        house.agent(gateway, engines[1].url, name="two", environment=GOES_ON)
        text, kinds, usage = "", list[str](), 0
        async for event in stream:
            kinds.append(event.type)
            if event.type == "content_block_delta":
                text += event.delta.text
            if event.type == "message_delta":
                usage = event.usage.output_tokens
                assert event.delta.stop_reason == "max_tokens", "as long as it may be"
            if len(kinds) in (10, 20):
                await proxy.cut()
            if len(kinds) == 40:
                await _answers_at(ask, "two")
                os.killpg(engines[0].child.pid, signal.SIGKILL)
    assert text == answer_to("once", TOKENS)
    assert usage == TOKENS
    ends = ["content_block_stop", "message_delta", "message_stop"]
    assert [kind for kind in kinds if kind not in ("content_block_delta", "ping")] == [
        *("message_start", "content_block_start"),
        *ends,
    ]


class Weather(pydantic.BaseModel):
    city: str
    celsius: int


async def test_structured_output_by_both_sdks(house: House) -> None:
    """The stand-in answers in the schema that a request wants."""
    gateway = house.gateway()
    key = gateway.key("tests")
    house.agent(gateway, house.listening(house.children.start("chat", "tests.support.chat_engine")))
    await asyncio.to_thread(house.wait_for_model, gateway, key, chat_engine.MODEL)
    said: Any = [{"role": "user", "content": "the weather"}]
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        found = await client.responses.parse(model=chat_engine.MODEL, input="x", text_format=Weather)
        assert found.output_parsed == Weather(city="words", celsius=7)
        async with client.responses.stream(model=chat_engine.MODEL, input="x", text_format=Weather) as stream:
            assert (await stream.get_final_response()).output_parsed == Weather(city="words", celsius=7)
        chat = await client.chat.completions.parse(
            model=chat_engine.MODEL, messages=said, response_format=Weather
        )
        assert chat.choices[0].message.parsed == Weather(city="words", celsius=7)
    base = gateway.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0) as typed:
        sdk: Any = typed
        asked: Any = {"model": chat_engine.MODEL, "max_tokens": 32, "messages": said}
        parsed = await sdk.messages.parse(**asked, output_format=Weather)
        assert parsed.parsed_output == Weather(city="words", celsius=7)
        form = {"format": {"type": "json_schema", "schema": Weather.model_json_schema()}}
        plain = await sdk.messages.create(**asked, output_config=form)
        assert Weather.model_validate_json(plain.content[0].text).celsius == 7
        counted = await sdk.messages.count_tokens(model=chat_engine.MODEL, messages=said)
        assert counted.input_tokens == parsed.usage.input_tokens
    async with asyncio.timeout(60):  # what an engine does not describe is known when it was asked
        while True:
            model = await asyncio.to_thread(fetch, f"{gateway.base_url}/models/{chat_engine.MODEL}", key=key)
            if {"messages", "responses"} <= set(model["translated_routes"]):
                break
    assert (model["context_length"], model["capabilities"]) == (4096, ["completion", "tools"])
    assert set(model["translated_routes"]) <= set(model["routes"])


async def _answers_at(ask: Callable[[], Awaitable[Any]], agent: str) -> None:
    """Returns when a short request of ``ask`` has been answered by ``agent``; it knows then how its engine is
    asked."""
    async with asyncio.timeout(60):
        while True:
            answers = await asyncio.gather(*[ask() for _ in range(4)])
            if agent in [raw.headers["x-trunkline-agent"] for raw in answers]:
                return
