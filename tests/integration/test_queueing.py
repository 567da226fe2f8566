"""When there is more than the slots hold: waiting, refusing early, and coming back when told."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from openai import AsyncOpenAI

from gateway.domain.scopes import AdminRole
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to, fetch, until

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


async def _occupy(site: Site, client: aiohttp.ClientSession) -> aiohttp.ClientResponse:
    """Take the only slot, until :func:`_let_go`."""
    body = chat(stream=True, max_tokens=3, script={"stepped": True})
    response = await client.post(CHAT, json=body)
    await asyncio.to_thread(until, "the slot is taken", lambda: site.engine.stats()["running"] == 1)
    return response


async def _let_go(site: Site, response: aiohttp.ClientResponse) -> None:
    """Have the engine end what :func:`_occupy` began."""
    reading = asyncio.ensure_future(response.read())
    await site.engine.step(reading.done)
    await reading


async def _until_waiting(site: Site, count: int) -> None:
    """So many requests are in the gateway's queue."""

    key = site.gateway.key(f"looks-{time.monotonic_ns()}", role=AdminRole.VIEWER)

    def there() -> bool:
        asked = fetch(f"{site.gateway.url}/admin/requests?state=queued", key=key)
        return len(asked["requests"]) == count

    await asyncio.to_thread(until, f"{count} wait", there)


async def test_a_request_waits_for_the_slot_and_its_stream_gets_comments_meanwhile(narrow: Site) -> None:
    async with _client(narrow) as client:
        first = await _occupy(narrow, client)
        async with client.post(CHAT, json=chat(stream=True, max_tokens=3)) as waiting:
            received = await waiting.content.readany()
            await _let_go(narrow, first)
            received += await waiting.read()
    assert waiting.status == 200
    assert received.startswith(b":")
    assert received.endswith(b"data: [DONE]\n\n")
    assert narrow.engine.stats()["peak_running"] == 1


async def test_beyond_the_places_to_wait_the_answer_is_429_and_says_when_to_come_back(narrow: Site) -> None:
    async with _client(narrow) as client:
        first = await _occupy(narrow, client)
        second = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await _until_waiting(narrow, 1)
        async with client.post(CHAT, json=chat(max_tokens=2)) as refused:
            assert refused.status == 429
            assert (await error_of(refused))["code"] == "queue_full"
            assert 0 < int(refused.headers["retry-after"]) <= 120
            assert 0 < int(refused.headers["retry-after-ms"]) <= 120_000
        await _let_go(narrow, first)
        async with await second as answered:
            assert answered.status == 200


async def test_the_sdk_comes_back_when_the_429_said_and_is_answered(narrow: Site) -> None:
    sent_s: list[float] = []
    refused: list[tuple[float, float]] = []
    """When a 429 came, and after how many seconds to come back."""

    async def sends(request: httpx.Request) -> None:
        sent_s.append(time.monotonic())

    async def hears(response: httpx.Response) -> None:
        if response.status_code == 429:
            refused.append((time.monotonic(), int(response.headers["retry-after-ms"]) / 1000))

    ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    carrier: Any = httpx.AsyncClient(event_hooks={"request": [sends], "response": [hears]})
    async with (
        _client(narrow) as client,
        AsyncOpenAI(base_url=narrow.base_url, api_key=narrow.key, max_retries=8, http_client=carrier) as sdk,
    ):
        first = await _occupy(narrow, client)
        second = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await _until_waiting(narrow, 1)
        with pytest.raises(openai.RateLimitError):
            await sdk.with_options(max_retries=0).chat.completions.create(**ask)
        again = asyncio.ensure_future(sdk.chat.completions.create(**ask))
        await asyncio.to_thread(until, "it is refused, too", lambda: len(refused) > 1)
        await _let_go(narrow, first)
        assert (await again).choices[0].message.content == answer_to("hi", 2)
        (await second).release()
    for (at_s, wait_s), again_s in zip(refused[1:], sent_s[2:], strict=True):
        assert again_s - at_s >= 0.9 * wait_s


async def test_a_client_that_stops_waiting_gives_its_place_to_another(narrow: Site) -> None:
    async with _client(narrow) as client:
        first = await _occupy(narrow, client)
        leaving = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await _until_waiting(narrow, 1)
        leaving.cancel()
        await _until_waiting(narrow, 0)
        staying = asyncio.ensure_future(client.post(CHAT, json=chat(max_tokens=2)))
        await _until_waiting(narrow, 1)
        await _let_go(narrow, first)
        async with await staying as answered:
            assert answered.status == 200
