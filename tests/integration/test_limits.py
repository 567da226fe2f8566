"""Limits, as real clients meet them: five hundred at once, and changes while the gateway runs."""

import asyncio
import time
from typing import Any

import aiohttp

from gateway.domain.quotas import Rates
from gateway.storage import Store
from gateway.storage.keys import NO_RATES
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import Site

LIMIT = 3_000


def new_key(site: Site, name: str, tenant: str, rates: Rates = NO_RATES) -> str:
    with Store.open(site.gateway.state) as store:
        return store.keys.create(name, tenant, time.time(), rates=rates)


def change(site: Site, tenant: str, **limits: object) -> None:
    with Store.open(site.gateway.state) as store:
        store.limits.tenants.change(tenant, limits, time.time())


def session_of(site: Site, key: str) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {key}"}
    return aiohttp.ClientSession(site.gateway.url, headers=headers, connector=connector)


async def test_five_hundred_at_once_stay_within_a_limit_of_tokens(site: Site) -> None:
    key = new_key(site, "five-hundred", "limited", Rates(tpm=LIMIT))
    ask = chat(max_tokens=20, script={"tokens": 12, "tokens_per_s": 1000})

    async def one(session: aiohttp.ClientSession) -> tuple[int, int, bool]:
        async with session.post(CHAT, json=ask) as response:
            body = await response.json()
            told = "x-ratelimit-remaining-tokens" in response.headers
            return response.status, body["usage"]["total_tokens"] if response.status == 200 else 0, told

    async with session_of(site, key) as session:
        answers = await asyncio.gather(*(one(session) for _ in range(500)))
    used, let_in = sum(tokens for _, tokens, _ in answers), [each[0] for each in answers].count(200)
    told = f"{let_in} of 500 let in, {used} tokens used of {LIMIT} in the minute"
    assert {status for status, _, _ in answers} == {200, 429}, told
    assert all(each[2] for each in answers)
    assert used <= LIMIT, told
    assert let_in >= LIMIT // 60, told
    print(told)  # noqa: T201


async def answered(session: aiohttp.ClientSession, ask: dict[str, Any]) -> aiohttp.ClientResponse:
    """The answer, read whole."""
    response = await session.post(CHAT, json=ask)
    await response.read()
    return response


async def test_a_change_takes_effect_at_once(site: Site) -> None:
    key = new_key(site, "changed", "changing")
    async with session_of(site, key) as session:
        ask = chat(max_tokens=5)
        free = await answered(session, ask)
        assert (free.status, "x-ratelimit-limit-requests" in free.headers) == (200, False)
        change(site, "changing", rpm=2)
        first, second, third = [await answered(session, ask) for _ in range(3)]
        assert [first.status, second.status, third.status] == [200, 200, 429]
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert third.headers["x-ratelimit-remaining-requests"] == "0"
        assert 0 < int(third.headers["retry-after"]) <= 61
        error = await error_of(third)
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        change(site, "changing", rpm=None, tokens_per_day=1)
        spent = await answered(session, ask)
        assert (spent.status, (await error_of(spent))["code"]) == (429, "insufficient_quota")
        change(site, "changing", tokens_per_day=None)
        assert (await answered(session, ask)).status == 200
