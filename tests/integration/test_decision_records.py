"""Why requests waited and went where they went: over the admin API, and by ``trunkline why``, at a gateway
with two agents in processes of their own."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL, Site
from tests.support.processes import Engine, command, until

SECRET = "xyzzy-plugh"
_KEPT = {"TRUNKLINE_GATEWAY_RECORDS__SLOW_S": "0.4"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two agents with a slot each, and a key that may look."""

    site: Site
    viewer: str
    engines: tuple[Engine, Engine]

    def client(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            self.site.gateway.url, headers={"authorization": f"Bearer {self.site.key}"}
        )

    async def ask(self, client: aiohttp.ClientSession, name: str, **more: object) -> int:
        messages = [{"role": "user", "content": SECRET}]
        body = chat(**({"messages": messages} | more))
        async with client.post(CHAT, json=body, headers={"x-request-id": name}) as response:
            await response.read()
            assert response.headers["x-request-id"] == name
            return response.status

    async def told(self, path: str, status: int = 200) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.viewer}"}
        async with (
            aiohttp.ClientSession(self.site.gateway.url, headers=headers) as client,
            client.get(f"/admin/{path}") as response,
        ):
            assert response.status == status, await response.text()
            return await error_of(response) if status != 200 else dict(await response.json())

    async def record(self, name: str) -> dict[str, Any]:
        """Once its slots are given back. An attempt may take 0 s: the loop's clock counts milliseconds."""
        deadline = time.monotonic() + 60
        while True:
            found = await self.told(f"requests/{name}")
            over = [
                each["outcome"]["code"] != "running" and each["actual"]["total_s"] is not None
                for each in found["decisions"]
            ]
            if found["state"] not in ("queued", "running") and all(over):
                assert SECRET not in json.dumps(found)
                return found
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.05)

    def why(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "TRUNKLINE_KEY": self.viewer}
        return subprocess.run(
            command("why", *arguments, "--url", self.site.gateway.url),
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )


@pytest.fixture
async def pair(new_site: Callable[..., Site]) -> Pair:
    site = await asyncio.to_thread(new_site, "--slots", "1", gateway_environment=_KEPT)
    with Store.open(site.gateway.state) as store:
        viewer = store.keys.create("looks", "operators", time.time(), role=AdminRole.VIEWER)
    second = site.house.engine("--model", MODEL, name="engine-2")
    site.house.agent(site.gateway, second.url, "--slots", "1", name="agent-2")
    found = Pair(site, viewer, (site.engine, second))

    def both() -> bool:
        return len([each for each in _models(found) if each["slots"]]) == 2

    await asyncio.to_thread(until, "both agents serve", both)
    return found


def _models(pair: Pair) -> list[Mapping[str, Any]]:
    async def ask() -> dict[str, Any]:
        return await pair.told("models")

    (model,) = asyncio.run(ask())["models"]
    return list(model["deployments"])


async def test_a_record_says_where_a_request_went_and_what_was_predicted(pair: Pair) -> None:
    async with pair.client() as client:
        assert await pair.ask(client, "first/one", max_tokens=5, stream=True) == 200
    found = await pair.record("first/one")
    assert (found["state"], found["status"], found["model"], found["key"]) == (
        "answered",
        200,
        MODEL,
        "tests",
    )
    assert (found["tokens"]["completion"], found["queue"]["reasons"]) == (5, [])
    assert found["bytes"]["in"] > 0 < found["bytes"]["out"]
    (decision,) = found["decisions"]
    assert (decision["outcome"]["code"], decision["considered"], decision["why"]) == ("answered", 2, None)
    chosen, other = decision["candidates"]
    assert chosen["chosen"]
    assert chosen["deployment"] == decision["deployment"] == found["deployment"]
    assert not other["chosen"]
    assert other["excluded"] is None
    for each in (chosen["predicted"], other["predicted"]):
        first = each["queue"] + each["load"] + each["transfer"] + each["prefill"]
        assert each["first_token"] == pytest.approx(first, abs=1e-5)
        assert each["total"] == pytest.approx(first + each["decode"], abs=1e-5)
    assert chosen["predicted"]["weighed"] <= other["predicted"]["weighed"] + 1e-6
    assert 0 <= decision["actual"]["first_token_s"] <= decision["actual"]["total_s"] <= found["total_s"] + 0.1


async def test_one_that_waits_is_shown_while_it_waits_and_says_why_afterwards(pair: Pair) -> None:
    async with pair.client() as client:
        slow = {"stream": True, "max_tokens": 3, "script": {"stepped": True}}
        running = [asyncio.ensure_future(pair.ask(client, f"runs-{n}", **slow)) for n in range(2)]
        await asyncio.to_thread(until, "both slots are taken", lambda: _taken(pair) == 2)
        waiting = asyncio.ensure_future(pair.ask(client, "waits", max_tokens=2))
        await asyncio.to_thread(until, "it waits", lambda: bool(_queued(pair)))
        (shown,) = (await pair.told("requests?state=queued"))["requests"]
        assert (shown["id"], shown["status"], shown["deployment"], shown["attempts"]) == (
            "waits",
            None,
            None,
            0,
        )
        found = await pair.told("requests/waits")
        assert found["words"][1].startswith("It waits: ")
        assert found["decisions"] == []
        listed = (await pair.told("requests?state=running"))["requests"]
        assert {each["id"] for each in listed} == {"runs-0", "runs-1"}
        await asyncio.sleep(0.5)  # so long it waits at least
        asked = (*running, waiting)
        steps = [engine.step(lambda: all(each.done() for each in asked)) for engine in pair.engines]
        await asyncio.gather(*steps)
        assert await asyncio.gather(*asked) == [200, 200, 200]
    found = await pair.record("waits")
    assert found["slow"]
    assert found["queue"]["waited_s"] > 0.4
    reason = max(found["queue"]["reasons"], key=lambda each: each["s"])
    assert reason["code"] == "no_slot"
    assert reason["s"] > found["queue"]["waited_s"] / 2
    listed = (await pair.told("requests?kind=slow"))["requests"]
    assert "waits" in [each["id"] for each in listed]
    told = await asyncio.to_thread(pair.why, "waits")
    assert told.returncode == 0, told.stderr
    assert "every slot of the model was used" in told.stdout
    as_json = await asyncio.to_thread(pair.why, "waits", "--json")
    assert json.loads(as_json.stdout)["id"] == "waits"


async def test_a_retry_has_its_reason(pair: Pair) -> None:
    async with pair.client() as client:
        for number in range(2):
            name = f"retry-{number}"
            assert await pair.ask(client, name, max_tokens=2, script={"fault": "die"}) == 502
    records = [await pair.record(f"retry-{number}") for number in range(2)]
    retried = [each for each in records if len(each["decisions"]) > 1]
    assert retried, "none was tried again"
    first, second = retried[0]["decisions"][:2]
    assert first["outcome"]["code"] == second["why"]["code"] != "answered"
    assert first["deployment"] != second["deployment"]
    assert first["outcome"]["said"] == "the engine closed the connection without an answer"
    told = await asyncio.to_thread(pair.why, retried[0]["id"])
    assert "the engine closed the connection without an answer" in told.stdout
    avoided = {each["deployment"]: each["excluded"] for each in second["candidates"]}[first["deployment"]]
    assert avoided is not None


async def test_lists_are_filtered_and_come_in_pages(pair: Pair) -> None:
    async with pair.client() as client:
        for number in range(5):
            assert await pair.ask(client, f"page-{number}", max_tokens=1) == 200
            await asyncio.sleep(0.002)
        assert await pair.ask(client, "unknown", model="nothing") == 404
    await pair.record("page-4")
    names: list[str] = []
    after = ""
    while True:
        page = await pair.told(f"requests?model={MODEL}&limit=2{after}")
        names += [each["id"] for each in page["requests"]]
        if page["next"] is None:
            break
        after = f"&after={page['next'].replace('|', '%7C')}"
    assert names == [f"page-{number}" for number in reversed(range(5))]
    (failed,) = (await pair.told("requests?kind=failed"))["requests"]
    assert (failed["id"], failed["error"], failed["state"]) == ("unknown", "model_not_found", "failed")
    assert (await pair.told("requests?tenant=nobody"))["requests"] == []
    assert (await pair.told("requests?agent=agent&slow_than=1000"))["requests"] == []
    for wrong in ("kind=some", "limit=0", "since=noon", "colour=red", "state=", "after=1"):
        error = await pair.told(f"requests?{wrong}", 400)
        assert error["code"] == "invalid_value"
        assert error["param"] == wrong.partition("=")[0]
    error = await pair.told("requests/never-asked", 404)
    assert "2000 requests" in error["message"]
    told = await asyncio.to_thread(pair.why, "never-asked")
    assert told.returncode == 1
    assert "No record" in told.stderr
    assert not told.stdout


def _taken(pair: Pair) -> int:
    return sum(int(each["in_flight"]) for each in _models(pair))


def _queued(pair: Pair) -> list[Any]:
    async def ask() -> dict[str, Any]:
        return await pair.told("requests?state=queued")

    return list(asyncio.run(ask())["requests"])
