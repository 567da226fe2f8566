"""The scripted engine goes on with answers that another engine began, and fails as it is told."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import orjson
import pytest

from tests.support.scripted_engine import ScriptedEngine, Trouble, tokens_of

USER = {"role": "user", "content": "hi"}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def _ask(route: str, so_far: str = "") -> dict[str, Any]:
    begun = [USER, {"role": "assistant", "content": so_far}]
    match route:
        case "completions":
            return {"model": "scripted", "prompt": "hi" + so_far}
        case "chat":
            going_on = {"continue_final_message": True, "add_generation_prompt": False}
            return {"model": "scripted", "messages": begun, **going_on} if so_far else {"messages": [USER]}
        case "responses":
            return {"model": "scripted", "input": begun if so_far else "hi"}
        case _:
            return {"model": "scripted", "messages": begun if so_far else [USER]}


def _text(route: str, body: dict[str, Any]) -> str:
    match route:
        case "chat":
            return str(body["choices"][0]["message"]["content"])
        case "completions":
            return str(body["choices"][0]["text"])
        case "responses":
            return str(body["output"][0]["content"][0]["text"])
        case _:
            return str(body["content"][0]["text"])


@pytest.mark.parametrize("route", PATHS)
@pytest.mark.parametrize("cut", [1, 9, 12, 30])
async def test_a_correct_beginning_is_gone_on_with_exactly_there(route: str, cut: int) -> None:
    whole = "".join(tokens_of("hi", 6))
    cut = max(cut, 9) if route == "completions" else cut
    script = {"ends_after": 6}
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        body = _ask(route, whole[:cut]) | {"script": script}
        async with client.post(PATHS[route], json=body) as response:
            assert whole[:cut] + _text(route, await response.json()) == whole


@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
async def test_what_is_no_beginning_of_its_answer_shows_in_what_follows(route: str) -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        body = _ask(route, "0:aaaaaa ") | {"script": {"ends_after": 3}}
        async with client.post(PATHS[route], json=body) as response:
            assert tokens_of("hi", 3)[1] not in _text(route, await response.json())


async def test_max_tokens_count_from_where_it_goes_on_and_the_head_is_repeated_only_when_told() -> None:
    tokens = tokens_of("hi", 5)
    body = _ask("messages", tokens[0] + tokens[1]) | {"max_tokens": 3, "stream": True}
    for repeats in (False, True):
        async with (
            ScriptedEngine(repeats_head=repeats) as engine,
            aiohttp.ClientSession(engine.url) as client,
            client.post(PATHS["messages"], json=body) as response,
        ):
            events = [orjson.loads(line[6:]) async for line in response.content if b"text_delta" in line]
        said = "".join(event["delta"]["text"] for event in events)
        assert said == "".join(tokens if repeats else tokens[2:])


@pytest.mark.parametrize(
    ("trouble", "seen"),
    [
        ("500", 500),
        ("memory", 500),
        ("503", 503),
        ("unended", 500),
        ("cut", 0),
        ("malformed", 0),
        ("refuse", 0),
    ],
)
async def test_a_trouble_strikes_new_requests_until_it_is_over(trouble: str, seen: int) -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as client:
        url, orders = engine.url + PATHS["chat"], f"http://127.0.0.1:{engine.control_port}/_script"
        await (await client.post(orders, json={"trouble": trouble})).read()
        try:
            async with client.post(url, json=_ask("chat")) as response:
                status = response.status
        except aiohttp.ClientError:
            status = 0
        assert status == seen
        await (await client.post(orders, json={"trouble": ""})).read()
        async with client.post(url, json=_ask("chat")) as response:
            assert response.status == 200


async def test_a_stalled_stream_goes_on_when_the_trouble_is_over() -> None:
    async with ScriptedEngine() as engine, aiohttp.ClientSession(engine.url) as client:
        body = _ask("chat") | {"stream": True, "max_tokens": 20, "script": {"tokens_per_s": 500}}
        async with client.post(PATHS["chat"], json=body) as response:
            received = await response.content.readany()
            await engine.suffer(Trouble.STALL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    while True:
                        received += await response.content.readany()
            assert b"[DONE]" not in received
            await engine.suffer(Trouble.NONE)
            received += await response.content.read()
        assert received.endswith(b"data: [DONE]\n\n")
