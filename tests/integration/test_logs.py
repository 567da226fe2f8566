"""``GET /admin/logs`` of gateways in processes of their own."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from tests.integration.asking import CHAT, chat, error_of
from tests.support.processes import Gateway, House

SECRET = "xyzzy-plugh"


class Follower:
    """Reads lines, as they come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.lines: list[dict[str, Any]] = []
        self.last_id = ""

    async def take(self) -> bool:
        """False: the stream is over."""
        fields: dict[str, str] = {}
        while line := (await self.response.content.readline()).decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if not fields:
            return False
        assert SECRET not in fields["data"]
        self.last_id = fields["id"]
        if fields["event"] == "lines":
            self.lines += json.loads(fields["data"])
        return True

    async def until(self, **members: object) -> dict[str, Any]:
        """The line with these members."""
        async with asyncio.timeout(20):
            while True:
                for line in self.lines:
                    if members.items() <= line.items():
                        return line
                assert await self.take()


def _operator(gateway: Gateway, role: AdminRole = AdminRole.OPERATOR) -> str:
    with Store.open(gateway.state) as store:
        return store.keys.create(role.value, "operators", time.time(), role=role)


@asynccontextmanager
async def following(
    gateway: Gateway, key: str, last_id: str = "", **query: str
) -> AsyncIterator[tuple[Follower, aiohttp.ClientSession]]:
    headers: Mapping[str, str] = {"authorization": f"Bearer {key}"}
    more = {"last-event-id": last_id} if last_id else {}
    async with (
        aiohttp.ClientSession(gateway.url, headers=headers) as client,
        client.get("/admin/logs", params={"follow": "true", **query}, headers=more) as response,
    ):
        assert response.status == 200, await response.text()
        yield Follower(response), client


async def _ask(client: aiohttp.ClientSession, name: str) -> None:
    body = chat(messages=[{"role": "user", "content": SECRET}])
    async with client.post(CHAT, json=body, headers={"x-request-id": name}) as response:
        assert response.status == 404, "no agent serves any model"


async def test_an_operator_follows_the_log_over_a_restart_and_has_no_line_twice(house: House) -> None:
    gateway = await asyncio.to_thread(house.gateway)
    key, viewer = _operator(gateway), _operator(gateway, AdminRole.VIEWER)
    async with following(gateway, key) as (reader, client):
        await _ask(client, "one")
        line = await reader.until(event="request", id="one")
        assert (line["status"], line["level"], line["logger"]) == (404, "info", "gateway.request")
        async with client.get("/admin/logs", headers={"authorization": f"Bearer {viewer}"}) as refused:
            assert refused.status == 403
            assert (await error_of(refused))["code"] == "role_required"
        async with client.get("/admin/logs?level=loud") as wrong:
            assert wrong.status == 400
            assert (await error_of(wrong))["param"] == "level"
        async with asyncio.timeout(20):
            stopping = asyncio.create_task(asyncio.to_thread(house.children.stop, gateway.child))
            while await reader.take():
                pass
            await stopping
        assert [each["event"] for each in reader.lines].count("stopping") == 1
        last_id, had = reader.last_id, len(reader.lines)
    again = await asyncio.to_thread(lambda: house.gateway(port=gateway.port))
    async with following(again, key, last_id) as (back, client):
        await _ask(client, "two")
        await back.until(id="two")
        assert had
        assert not [each for each in back.lines if each.get("id") == "one"]


async def test_lines_of_all_workers_are_told_by_whichever_is_asked(house: House) -> None:
    gateway = await asyncio.to_thread(house.gateway, "--workers", "2")
    key = _operator(gateway)
    async with following(gateway, key, level="info", logger="gateway.request") as (reader, _):
        processes = set()
        for number in range(100):  # the kernel chooses the worker of each connection
            headers = {"authorization": f"Bearer {key}"}
            async with aiohttp.ClientSession(gateway.url, headers=headers) as client:
                await _ask(client, f"r{number}")
            processes.add((await reader.until(id=f"r{number}"))["process"])
            if len(processes) == 2:
                break
        assert len(processes) == 2


async def test_whose_key_was_revoked_reads_the_log_no_longer(house: House) -> None:
    gateway = await asyncio.to_thread(house.gateway)
    key, other = _operator(gateway), gateway.key("other")
    async with following(gateway, key) as (reader, client):
        await _ask(client, "before")
        await reader.until(id="before")
        with Store.open(gateway.state) as store:
            store.keys.revoke(AdminRole.OPERATOR.value, time.time())
        async with aiohttp.ClientSession(
            gateway.url, headers={"authorization": f"Bearer {other}"}
        ) as somebody_else:
            await _ask(somebody_else, "after")
        async with asyncio.timeout(60):
            while await reader.take():
                pass
        assert "after" not in [line.get("id") for line in reader.lines]
