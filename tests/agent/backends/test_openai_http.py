"""The backend as the agent uses it: what it offers follows the engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from agent.backends.base import EngineError, EngineUnreachable
from agent.backends.openai_http import EngineSettings, OpenAIHTTPBackend
from shared.messages import DeploymentStatus, RequestHead
from tests.agent.canned import once, read
from tests.support.scripted_engine import ScriptedEngine

BODY = orjson.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]})
HEAD = RequestHead(
    "e/scripted", "POST", "/v1/chat/completions", (("content-type", "application/json"),), "scripted", "r"
)


@asynccontextmanager
async def backend(url: str) -> AsyncIterator[OpenAIHTTPBackend]:
    made = OpenAIHTTPBackend(EngineSettings(url=url, name="e", refresh_s=3600))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def ask(made: OpenAIHTTPBackend) -> int:
    async with made.request(HEAD, once(BODY)) as response:
        await read(response)
        return response.status


async def test_a_started_backend_knows_its_engine(no_leaks: None) -> None:
    async with ScriptedEngine(models=("a", "b")) as engine, backend(engine.url) as made:
        assert [deployment.id for deployment in made.deployments()] == ["e/a", "e/b"]
        assert {deployment.slots for deployment in made.deployments()} == {8}
        assert made.deployments()[0].context_tokens == 4096
        assert made.kind == "generic"
        assert await ask(made) == 200


async def test_an_engine_that_is_not_there_yet_is_no_error(no_leaks: None) -> None:
    async with backend("http://127.0.0.1:9") as made:
        assert made.deployments() == ()
        with pytest.raises(EngineUnreachable):
            await ask(made)


async def test_a_change_is_told_once_and_no_change_not_at_all() -> None:
    async with ScriptedEngine() as engine, backend(engine.url) as made:
        changes: list[int] = []
        made.subscribe(lambda: changes.append(1))
        await made.refresh()
        assert changes == []
        engine.waiting = 3
        await made.refresh()
        assert changes == [1]
        assert made.deployments()[0].waiting == 3


async def test_a_failed_request_makes_it_look_at_once_and_again_when_the_engine_is_back() -> None:
    engine = ScriptedEngine()
    await engine.start()
    port = engine.port
    async with backend(engine.url) as made:
        changed = asyncio.Event()
        made.subscribe(changed.set)
        await engine.close()
        with pytest.raises(EngineError):
            await ask(made)
        await changed.wait()
        assert made.deployments()[0].status is DeploymentStatus.FAILED
        changed.clear()
        async with ScriptedEngine(port=port):
            await made.refresh()
            assert changed.is_set()
            assert made.deployments()[0].status is DeploymentStatus.LOADED
            assert await ask(made) == 200


async def test_an_unwell_engine_is_not_offered() -> None:
    async with ScriptedEngine() as engine, backend(engine.url) as made:
        engine.healthy = False
        await made.refresh()
        assert made.deployments()[0].status is DeploymentStatus.FAILED
        assert "503" in made.deployments()[0].reason
