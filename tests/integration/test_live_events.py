"""``GET /admin/events`` of a gateway in a process of its own, with an agent and an engine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway.api.admin.live.patch import apply_patch
from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL, Site

SECRET = "xyzzy-plugh"


class Follower:
    """Reads events, and keeps the state that they make."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.state: dict[str, Any] = {}
        self.requests: list[dict[str, Any]] = []
        self.last_id = ""

    async def take(self) -> str:
        """The kind of the next event."""
        fields: dict[str, str] = {}
        while line := (await self.response.content.readline()).decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        assert SECRET not in fields["data"]
        data = json.loads(fields["data"])
        self.requests += data.pop("requests", [])
        for name in ("requests_left_out", "flow", "tokens", "changes"):
            data.pop(name, None)
        self.state = data if fields["event"] == "snapshot" else apply_patch(self.state, data)
        self.last_id = fields["id"]
        return fields["event"]

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not true():
                await self.take()


@asynccontextmanager
async def following(
    client: aiohttp.ClientSession, more: Mapping[str, str] | None = None
) -> AsyncIterator[Follower]:
    async with client.get("/admin/events", headers=dict(more or {})) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Follower(response)


@pytest.fixture
async def watched(new_site: Callable[..., Site]) -> AsyncIterator[tuple[Site, aiohttp.ClientSession]]:
    site = await asyncio.to_thread(new_site, "--slots", "1")
    with Store.open(site.gateway.state) as store:
        viewer = store.keys.create("looks", "operators", time.time(), role=AdminRole.VIEWER)
    async with aiohttp.ClientSession(
        site.gateway.url, headers={"authorization": f"Bearer {viewer}"}
    ) as client:
        yield site, client


async def _ask(site: Site, name: str, **more: object) -> bytes:
    headers = {"authorization": f"Bearer {site.key}", "x-request-id": name}
    body = chat(messages=[{"role": "user", "content": SECRET}], **more)
    async with (
        aiohttp.ClientSession(site.gateway.url, headers=headers) as client,
        client.post(CHAT, json=body) as response,
    ):
        return await response.read()


async def test_a_page_sees_requests_wait_run_and_end(watched: tuple[Site, aiohttp.ClientSession]) -> None:
    site, client = watched
    async with following(client) as page:
        assert await page.take() == "snapshot"
        assert page.state["agents"]["agent"]["status"] == "ready"
        (key,) = page.state["deployments"]
        assert page.state["deployments"][key]["slots"] == 1
        held = {"stream": True, "max_tokens": 10, "script": {"stepped": True}}
        asked = [asyncio.ensure_future(_ask(site, name, **held)) for name in ("one", "two")]
        await page.until(lambda: page.state["totals"]["waiting"] == 1)
        assert page.state["models"][MODEL]["tiers"] == {"standard": 1}
        assert page.state["deployments"][key]["in_flight"] == 1
        await site.engine.step(lambda: any(each.done() for each in asked))
        await page.until(lambda: [each for each in page.requests if each["event"] == "placed"])
        await site.engine.step(lambda: all(each.done() for each in asked))
        await asyncio.gather(*asked)
        await page.until(lambda: len([each for each in page.requests if each["event"] == "ended"]) == 2)
        assert page.state["totals"]["ended"] >= 2
        last_id, before = page.last_id, page.state
    async with following(client) as staying:
        await staying.take()
        async with following(client, {"last-event-id": staying.last_id}) as back:
            back.state = staying.state
            assert await back.take() == "delta"
    async with following(client, {"last-event-id": last_id}) as late:
        late.state = before
        assert await late.take() in ("snapshot", "delta")
        await late.until(lambda: late.state["totals"]["running"] == 0)


async def test_who_may_not_look_sees_nothing_and_the_stream_ends_with_the_gateway(
    watched: tuple[Site, aiohttp.ClientSession],
) -> None:
    site, client = watched
    headers = {"authorization": f"Bearer {site.key}"}
    async with client.get("/admin/events", headers=headers) as refused:
        assert refused.status == 403
        assert (await error_of(refused))["code"] == "role_required"
    async with client.get("/admin/events?x=1") as wrong:
        assert wrong.status == 400
    async with following(client) as page:
        await page.take()
        await asyncio.to_thread(site.gateway.child.stop)
        async with asyncio.timeout(60):
            while await page.response.content.readline():
                pass


@pytest.mark.parametrize("lost", ["key", "role"])
async def test_the_stream_ends_with_the_key_or_its_role(
    watched: tuple[Site, aiohttp.ClientSession], lost: str
) -> None:
    site, client = watched
    async with following(client) as page:
        await page.take()
        with Store.open(site.gateway.state) as store:
            if lost == "key":
                store.keys.revoke("looks", time.time())
            else:
                store.keys.change("looks", {"role": None})
        async with asyncio.timeout(60):
            while await page.response.content.readline():
                pass
    async with client.get("/admin/events") as refused:
        assert refused.status == (401 if lost == "key" else 403)
