"""Through a whole gateway: kept answers, answers waited for together, and where requests may run."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from gateway.domain.residency import read_where
from gateway.storage import Store
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL, Site

EMBEDDINGS = "/v1/embeddings"
RULES = {"TRUNKLINE_GATEWAY_REUSE__MODELS": json.dumps({MODEL: {"cache_s": 60, "coalesce": True}})}


def key(site: Site, tenant: str, where: str | None = None) -> str:
    with Store.open(site.gateway.state) as store:
        place = None if where is None else read_where(where)
        return store.keys.create(f"{tenant} {len(store.keys.list())}", tenant, time.time(), place)


async def ask(
    client: aiohttp.ClientSession, path: str, body: Mapping[str, Any], key: str
) -> tuple[str | None, str | None, bytes]:
    """What the headers say of reuse, and the body."""
    async with client.post(path, json=body, headers={"authorization": f"Bearer {key}"}) as response:
        assert response.status == 200, await response.text()
        headers = response.headers
        return headers.get("x-trunkline-cache"), headers.get("age"), await response.read()


async def test_answers_are_shared_within_a_tenant_and_go_nowhere_else(
    new_site: Callable[..., Site],
) -> None:
    site = await asyncio.to_thread(new_site, "--slots", "8", gateway_environment=RULES)
    acme, other = key(site, "acme"), key(site, "other")

    def started() -> int:
        return int(site.engine.stats()["started"])

    async with aiohttp.ClientSession(site.gateway.url) as client:
        # kept, for the tenant alone
        vectors = {"model": MODEL, "input": "hello"}
        before = started()
        first = await ask(client, EMBEDDINGS, vectors, acme)
        again = await ask(client, EMBEDDINGS, dict(reversed(vectors.items())) | {"user": "u"}, acme)
        assert (first[0], again[0], again[1]) == ("miss", "hit", "0")
        assert first[2] == again[2]
        assert (await ask(client, EMBEDDINGS, vectors, other))[0] == "miss"
        assert started() == before + 2

        # together
        slow = {"model": MODEL, "input": "slow", "script": {"delay_s": 0.4}}
        told = await asyncio.gather(*(ask(client, EMBEDDINGS, slow, acme) for _ in range(5)))
        assert sorted(str(each[0]) for each in told) == [*4 * ["coalesced"], "miss"]
        assert len({each[2] for each in told}) == 1
        assert started() == before + 3

        # streams at temperature 0, byte for byte
        stream = chat(stream=True, temperature=0, max_tokens=30)
        one, two = await ask(client, CHAT, stream, acme), await ask(client, CHAT, stream, acme)
        assert (one[0], two[0]) == ("miss", "hit")
        assert one[2] == two[2]
        assert two[2].endswith(b"data: [DONE]\n\n")
        assert (await ask(client, CHAT, stream | {"temperature": 0.5}, acme))[0] == "bypass"
        assert started() == before + 5

        # the same key somewhere else
        headers = {"authorization": f"Bearer {key(site, 'acme', 'region=eu')}"}
        async with client.post(EMBEDDINGS, json=vectors, headers=headers) as elsewhere:
            assert elsewhere.status == 503
            assert (await error_of(elsewhere))["code"] == "residency_unavailable"
        headers["x-trunkline-where"] = "region=us"
        async with client.post(EMBEDDINGS, json=vectors, headers=headers) as forbidden:
            assert forbidden.status == 403
            assert (await error_of(forbidden))["code"] == "residency_forbidden"
        async with client.get("/metrics", headers={"authorization": f"Bearer {acme}"}) as page:
            counted = await page.text()
    assert f'trunkline_cache_requests_total{{model="{MODEL}",outcome="coalesced"}} 4.0' in counted
    assert "trunkline_cache_entries 4.0" in counted
