"""Aliases through a whole gateway, with agents and engines of two versions, while they are changed."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import typer
from typer.testing import CliRunner

from agent.app import Agent
from agent.config.sources import load as load_agent
from agent.stopping import Stop
from gateway.app.app import Gateway
from gateway.cli.resources import register
from gateway.runtime.config import load
from gateway.runtime.stop_signals import StopSignals
from gateway.storage import Store
from tests.support.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@dataclass
class Site:
    """A gateway, a client of it, and an engine for each model and version."""

    client: httpx.AsyncClient
    engines: dict[str, ScriptedEngine]
    store: Store

    async def ask(
        self, model: str, *, session: str | None = None, name: str = "", **headers: str
    ) -> httpx.Response:
        """A chat in one piece, with the id ``name``; ``headers`` without their prefix."""
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "model": model}
        if session is not None:
            body["user"] = session
        fields = {f"x-trunkline-{field}": value for field, value in headers.items()}
        fields |= {"x-request-id": name} if name else {}
        return await self.client.post(CHAT, json=body | {"max_tokens": 2}, headers=fields)

    async def alias(self, *arguments: str) -> None:
        """``trunkline alias …`` on the gateway's host."""
        app = typer.Typer()
        register(app)
        command = ["alias", *arguments, "--state", str(self.store.state_dir)]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert result.exit_code == 0, result.output

    def asked(self, target: str) -> int:
        """Chats that came to an engine."""
        return self.engines[target].stats.requests.count(f"POST {CHAT}")

    async def metric(self, start: str) -> float:
        """The value of the series that begins like this; 0 if there is none."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


@contextlib.asynccontextmanager
async def site(directory: Path, *targets: str, **flags: Any) -> AsyncIterator[Site]:
    """Agents that serve each of ``targets`` (``MODEL@VERSION``, with two slots)."""
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(Store.open(directory / "state", serve=True))
        settings = load({"listen": "127.0.0.1:0", **flags}, None, {}).settings
        gateway, stop = Gateway(settings, store), StopSignals()
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def announce(where: str) -> None:
            url.set_result(where)

        running = asyncio.create_task(gateway.run(stop, announce))
        _, token = store.tokens.create(600.0, len(targets), ["*"], {}, time.time())
        stops, agents, engines = [], [], {}
        for target in targets:
            model, _, version = target.partition("@")
            engine = await stack.enter_async_context(ScriptedEngine(models=(model,)))
            engines[target] = engine
            name = target.replace("@", "-")
            agent_flags = {
                "gateway": await url,
                "join": token,
                "state": directory / name,
                "name": name,
                "engine": [{"url": engine.url, "version": version}],
                "slots": 2,
            }
            stops.append(Stop())
            agents.append(asyncio.create_task(Agent(load_agent(agent_flags, None), stops[-1]).run()))
        key = store.keys.create("k", "default", time.time())
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=await url, headers=headers) as client:
            serving = gateway._dispatcher.index
            await until(
                lambda: sum(len(serving.serving(t.partition("@")[0])) for t in targets) >= len(targets)
            )
            try:
                yield Site(client, engines, store)
            finally:
                for each in stops:
                    each.ask()
                    each.ask()
                await asyncio.gather(*agents)
                stop.receive()
                stop.receive()
                await running


async def test_a_canary_gets_its_share_and_is_switched_and_rolled_back_while_requests_run(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, "m@v1", "m@v2") as house:
        assert (await house.ask("chat")).status_code == 404
        await house.alias("set", "chat", "m@v1")
        await house.alias("set", "chat", "m@v1=3", "m@v2=1")

        async def versions() -> Counter[str]:
            found: Counter[str] = Counter()
            for start in range(0, 24, 4):
                asked = (house.ask("chat", name=f"request-{start + place}") for place in range(4))
                for answer in await asyncio.gather(*asked):
                    assert (answer.status_code, answer.json()["model"]) == (200, "m")
                    found[answer.headers["x-trunkline-model"]] += 1
            return found

        canary = await versions()
        assert set(canary) == {"m@v1", "m@v2"}
        assert 2 <= canary["m@v2"] <= 12
        assert {target: house.asked(target) for target in house.engines} == canary
        for session in "abcd":
            told = {(await house.ask("chat", session=session)).headers["x-trunkline-model"] for _ in range(3)}
            assert len(told) == 1

        chosen = await house.ask("chat", version="v2")
        assert chosen.headers["x-trunkline-model"] == "m@v2"
        wrong = await house.ask("chat", version="v3")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "version_not_found")

        await house.alias("switch", "chat", "m@v2")
        assert set(await versions()) == {"m@v2"}
        await house.alias("rollback", "chat")
        assert await versions() == canary

        listed = (await house.client.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["chat", "m"]
        assert (await house.client.get("/v1/models/chat")).json()["ready"] is True
        counted = await house.metric('trunkline_alias_requests_total{alias="chat",status="2xx",target="m@v2"')
        assert counted == house.asked("m@v2")
        assert await house.metric("trunkline_version_skew") == 0
        await house.alias("remove", "chat")
        assert await house.metric('trunkline_version_skew{model="m"}') == 1


async def test_a_shadow_gets_copies_and_real_requests_never_notice_it(tmp_path: Path) -> None:
    async with site(tmp_path, "m@v1", "m@v2") as house:
        shadow = house.engines["m@v2"]
        await house.alias("set", "m", "m@v1")
        await house.alias("mirror", "m", "m@v2", "--share", "1")
        for _ in range(5):
            assert (await house.ask("m")).headers["x-trunkline-model"] == "m@v1"
        await until(lambda: house.asked("m@v2") == 5 and not shadow.stats.running)
        assert house.asked("m@v1") == 5

        shadow.direct({"default": {"status": 500}})
        body = {"model": "m", "messages": [], "stream": True, "max_tokens": 3}
        for _ in range(3):
            streamed = await house.client.post(CHAT, json=body)
            assert streamed.text.endswith("data: [DONE]\n\n")
        await until(lambda: house.asked("m@v2") >= 8)

        shadow.direct({"default": {"fault": "hang"}})
        assert {(await house.ask("m")).status_code for _ in range(4)} == {200}
        mirrored = "trunkline_mirrored_requests_total"
        assert await house.metric(f'{mirrored}{{alias="m",outcome="2xx",target="m@v2"}}') == 5
        assert await house.metric(f'{mirrored}{{alias="m",outcome="skipped_busy"') >= 1
        await house.alias("mirror", "m", "--off")
        before = house.asked("m@v2")
        assert (await house.ask("m")).status_code == 200
        assert house.asked("m@v2") == before
        assert house.asked("m@v1") == 13


async def test_a_lighter_model_answers_who_allows_it_while_the_wanted_one_is_full(tmp_path: Path) -> None:
    async with site(tmp_path, "big@", "light@", queue={"max_requests": 1}) as house:
        await house.alias("fallback", "big", "light")
        big = house.engines["big@"]
        big.direct({"default": {"fault": "hang"}})
        held = []
        for _ in range(2):
            held.append(asyncio.create_task(house.ask("big")))
            await until(lambda: big.stats.running == len(held))
        held.append(asyncio.create_task(house.ask("big")))
        while not await house.metric('trunkline_queue_requests{model="big"}'):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        refused = await house.ask("big")
        assert refused.status_code == 429
        answer = await house.ask("big", fallback="allow")
        assert (answer.status_code, answer.json()["model"]) == (200, "light")
        assert answer.headers["x-trunkline-fallback"] == "light"
        assert answer.headers["x-trunkline-model"] == "light"
        assert (await house.ask("big", fallback="other")).status_code == 429
        assert await house.metric('trunkline_fallbacks_total{alias="big",target="light"}') == 1
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)
