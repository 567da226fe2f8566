"""``python -m tests.agent.engines.behaviour.without_descriptors``: an engine, its backend, for a while no
descriptor.

In a process of its own, as nothing else works then either."""

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from typing import Any

from agent.engines.backend import BackendUnreachable
from agent.engines.http.client import connections
from agent.engines.http.openai import EngineSettings, OpenAIHTTPBackend
from shared.protocol.messages import DeploymentStatus
from tests.agent.engines.http.test_engine_client import chat, head
from tests.agent.support.canned import asked, once, read
from tests.support.scripted_engine import ScriptedEngine

REASON = "the agent has no file descriptors left for connections"


async def ask(backend: OpenAIHTTPBackend, **script: Any) -> bytes:
    body = chat(**script)
    async with asked(backend, head(length=len(body)), once(body)) as response:
        return await read(response)


def take_all() -> list[int]:
    """Every descriptor that there is."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held: list[int] = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return held


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the backend looks at its engine by itself
            await asyncio.sleep(0.01)


async def main() -> None:
    logging.getLogger("asyncio").disabled = True  # it writes a hundred lines for each accept that fails
    connections.KEEP_IDLE_S = 0.0  # else questions go on over the connection that they have
    async with ScriptedEngine() as engine:
        backend = OpenAIHTTPBackend(EngineSettings(url=engine.url, name="e", refresh_s=0.01))
        await backend.start()
        held = take_all()
        asking = [asyncio.create_task(ask(backend, tokens=1000, tokens_per_s=5)) for _ in range(4)]
        await until(lambda: any(task.done() for task in asking))  # others hold the kept connections
        failures = [task.exception() for task in asking if task.done()]
        assert all(isinstance(error, BackendUnreachable) for error in failures), failures
        assert {str(error) for error in failures} == {REASON}
        await until(lambda: backend.deployments()[0].status is DeploymentStatus.FAILED)
        assert backend.deployments()[0].reason == REASON
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for descriptor in held:
            os.close(descriptor)
        await until(lambda: backend.deployments()[0].status is DeploymentStatus.LOADED)
        assert (await ask(backend, tokens=1)).endswith(b"[DONE]\n\n")
        await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
