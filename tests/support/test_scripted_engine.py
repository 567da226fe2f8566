"""The scripted engine keeps to its script."""

import asyncio
import hashlib
import json

import aiohttp
import pytest

from tests.support.scripted_engine import Script, ScriptedEngine, tokens_of


def _texts(stream: str) -> list[str]:
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return [choice["delta"].get("content", "") for choice in choices]


def _chat(**more: object) -> dict[str, object]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]} | more


async def test_the_same_prompt_gives_the_same_tokens_streamed_or_not() -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        async with client.post("/v1/chat/completions", json=_chat(max_tokens=5)) as whole:
            text = (await whole.json())["choices"][0]["message"]["content"]
        async with client.post("/v1/chat/completions", json=_chat(max_tokens=5, stream=True)) as streamed:
            assert "".join(_texts(await streamed.text())) == text == "".join(tokens_of("hi", 5))
    assert (engine.stats.started, engine.stats.finished, engine.stats.running) == (2, 2, 0)


async def test_scripts_come_from_the_request_then_from_the_list_then_from_the_default() -> None:
    async with (
        ScriptedEngine(default=Script(tokens=2)) as engine,
        aiohttp.ClientSession(engine.url) as client,
    ):
        engine.once.append(Script(status=429, retry_after="7"))
        async with client.post("/v1/chat/completions", json=_chat()) as first:
            assert (first.status, first.headers["retry-after"]) == (429, "7")
        async with client.post("/v1/chat/completions", json=_chat()) as second:
            assert (await second.json())["usage"]["completion_tokens"] == 2
        async with client.post("/v1/chat/completions", json=_chat(script={"tokens": 3})) as third:
            assert (await third.json())["usage"]["completion_tokens"] == 3


async def test_a_token_of_a_stepped_answer_comes_when_it_is_told_to() -> None:
    body = _chat(stream=True, max_tokens=3, script={"stepped": True})
    async with (
        ScriptedEngine() as engine,
        aiohttp.ClientSession(engine.url) as client,
        client.post("/v1/chat/completions", json=body) as response,
    ):
        for sent in range(1, 4):
            assert engine.stats.sent_tokens == sent
            async with client.post("/_step") as step:
                assert step.status == 200
        assert "".join(_texts(await response.text())) == "".join(tokens_of("hi", 3))


@pytest.mark.parametrize("fault", ["die", "close", "garbage"])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_faulty_answer_breaks_where_the_script_says(fault: str, after: int) -> None:
    body = _chat(stream=True, script={"fault": fault, "after": after})
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        with pytest.raises(aiohttp.ClientError):
            async with client.post("/v1/chat/completions", json=body) as response:
                await response.read()
    assert engine.stats.running == 0


async def test_a_caller_that_goes_away_is_counted_as_a_cancellation() -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        body = _chat(stream=True, script={"fault": "stall", "after": 1})
        async with client.post("/v1/chat/completions", json=body) as response:
            await response.content.readany()
            assert engine.stats.running == 1
            response.close()
        async with client.get("/_stats") as stats:
            seen = await stats.json()
        assert (seen["running"], seen["cancelled"]) == (0, 1)


async def test_computed_tokens_are_counted_those_of_broken_off_answers_included() -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        async with client.post("/v1/chat/completions", json=_chat(max_tokens=5, stream=True)) as streamed:
            await streamed.read()
        assert engine.stats.computed_tokens == 5
        paced = _chat(max_tokens=20, script={"whole_tokens_per_s": 200})
        async with client.post("/v1/chat/completions", json=paced) as whole:
            assert (await whole.json())["usage"]["completion_tokens"] == 20
        assert engine.stats.computed_tokens == 25
        slow = _chat(max_tokens=100_000, script={"whole_tokens_per_s": 1000})
        asked = asyncio.ensure_future(client.post("/v1/chat/completions", json=slow))
        async with asyncio.timeout(60):
            while not engine.stats.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not asked.done(), "it answered before its tokens were computed"
        asked.cancel()
        async with asyncio.timeout(60):
            while engine.stats.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert 25 < engine.stats.computed_tokens < 100_000


async def test_an_upload_is_answered_with_the_digest_of_the_file() -> None:
    form = aiohttp.FormData({"model": "scripted"})
    form.add_field("file", b"abc" * 1000, filename="a.wav")
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        response = await client.post("/v1/audio/transcriptions", data=form)
        seen = await response.json()
    assert seen["sha256"] == hashlib.sha256(b"abc" * 1000).hexdigest()
    assert seen["fields"] == {"model": "scripted"}


async def test_load_is_told_in_the_names_of_vllm() -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        engine.waiting, engine.kv_use = 3, 0.5
        async with client.get("/metrics") as response:
            text = await response.text()
    assert 'vllm:num_requests_waiting{engine="0",model_name="scripted"} 3.0' in text
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="scripted"} 0.5' in text
