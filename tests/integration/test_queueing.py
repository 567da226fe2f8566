"""When there is more than the slots hold: waiting, refusing early, and coming back when told."""

import asyncio
import time
from collections.abc import Callable

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to, until

_ONE_PLACE = {
    "TRUNKLINE_GATEWAY_QUEUE__MAX_REQUESTS": "1",
    "TRUNKLINE_GATEWAY_HTTP__COMMENT_S": "0.2",
}


@pytest.fixture
async def narrow(new_site: Callable[..., Site]) -> Site:
    """One slot, one place to wait, and comments every 0.2 s."""
    return await asyncio.to_thread(new_site, "--slots", "1", gateway_environment=_ONE_PLACE)


def _client(site: Site) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.gateway.url, headers={"authorization": f"Bearer {site.key}"})


async def _occupy(site: Site, client: aiohttp.ClientSession, seconds: float) -> aiohttp.ClientResponse:
    """Take the only slot for that long."""
    tokens = int(20 * seconds)
    body = chat(stream=True, max_tokens=tokens, script={"tokens_per_s": 20})
    response = await client.post(CHAT, json=body)
    await asyncio.to_thread(until, "the slot is taken", lambda: site.engine.stats()["running"] == 1)
    return response


async def test_a_request_waits_for_the_slot_and_its_stream_gets_comments_meanwhile(narrow: Site) -> None:
    async with _client(narrow) as client:
        first = await _occupy(narrow, client, 1.5)
        async with client.post(CHAT, json=chat(stream=True, max_tokens=3)) as waiting:
            received = await waiting.read()
        await first.read()
    assert waiting.status == 200
    assert received.startswith(b":")
    assert received.endswith(b"data: [DONE]\n\n")
    assert narrow.engine.stats()["peak_running"] == 1


async def test_beyond_the_places_to_wait_the_answer_is_429_and_says_when_to_come_back(narrow: Site) -> None:
    async with _client(narrow) as client:
        first = await _occupy(narrow, client, 2)
        second = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await asyncio.sleep(0.2)
        async with client.post(CHAT, json=chat(max_tokens=2)) as refused:
            assert refused.status == 429
            assert (await error_of(refused))["code"] == "queue_full"
            assert 0 < int(refused.headers["retry-after"]) <= 120
            assert 0 < int(refused.headers["retry-after-ms"]) <= 120_000
        await first.read()
        async with await second as answered:
            assert answered.status == 200


async def test_the_sdk_comes_back_when_the_429_said_and_is_answered(narrow: Site) -> None:
    async with (
        _client(narrow) as client,
        AsyncOpenAI(base_url=narrow.base_url, api_key=narrow.key, max_retries=0) as sdk,
    ):
        first = await _occupy(narrow, client, 2)
        second = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await asyncio.sleep(0.2)
        ask = sdk.with_options(max_retries=0).chat.completions
        with pytest.raises(openai.RateLimitError) as refused:
            await ask.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        wait_s = int(refused.value.response.headers["retry-after-ms"]) / 1000
        began_s = time.monotonic()
        again = sdk.with_options(max_retries=8).chat.completions
        answer = await again.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        assert answer.choices[0].message.content == answer_to("hi", 2)
        assert time.monotonic() - began_s >= 0.8 * wait_s
        await first.read()
        (await second).release()


async def test_a_client_that_stops_waiting_gives_its_place_to_another(narrow: Site) -> None:
    async with _client(narrow) as client:
        first = await _occupy(narrow, client, 2)
        leaving = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await asyncio.sleep(0.2)
        leaving.cancel()
        await asyncio.sleep(0.2)
        async with client.post(CHAT, json=chat(max_tokens=2)) as staying:
            assert staying.status == 200
        await first.read()
