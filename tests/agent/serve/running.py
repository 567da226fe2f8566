"""A model's server with real processes, inside the test's event loop."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from agent.engines.process import EngineEnd, RestartPolicy
from agent.serve.call import EncodedAnswer, ModelCall
from agent.serve.child import ModelProcess, Scratch
from agent.serve.parcels import ParcelWriter
from agent.serve.server import ModelServer

RESTARTS = RestartPolicy(most=3, first_s=0.01, longest_s=0.05)
PATIENCE_S = 60.0


class RunningModel:
    """``played_models:NAME`` behind a server."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self._bodies = ParcelWriter(server.scratch.directory, "body")

    async def begin(self, item: Any, path: str = "/predict", model: str = "") -> EncodedAnswer:
        """The whole answer, or how a stream begins."""
        async with self.call(item, path, model) as (answer, _):
            begun: EncodedAnswer = answer
            return begun

    async def ask(self, item: Any) -> Any:
        """The answer's JSON. Raises RequestError."""
        return orjson.loads((await self.begin(item)).body)

    @contextlib.asynccontextmanager
    async def call(self, item: Any, path: str = "/predict", model: str = "") -> AsyncIterator[Any]:
        body = self._bodies.of_parts([item if isinstance(item, bytes) else orjson.dumps(item)])
        with self.server.admission.enter():
            call = ModelCall(self.server, "tag")
            try:
                yield await call.begin(path, "", "POST", {}, model, body), call
            finally:
                call.close()
                self.server.scratch.remove(body)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  what it looks at has no event
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(
    name: str, scratch: Path, devices: tuple[str, ...] = ("cpu",), restarts: RestartPolicy = RESTARTS
) -> AsyncIterator[RunningModel]:
    """The model, ready; nothing of it is left afterwards."""
    server = make_server(name, scratch, devices, restarts)
    try:
        async with asyncio.timeout(PATIENCE_S):
            end = await server.start()
        assert end is None, end
        yield RunningModel(server)
    finally:
        await server.close()
    assert os.listdir(scratch) == []


def make_server(
    name: str, scratch: Path, devices: tuple[str, ...] = ("cpu",), restarts: RestartPolicy = RESTARTS
) -> ModelServer:
    launch = partial(_launch, f"tests.agent.serve.played_models:{name}", scratch)
    return ModelServer(launch, Scratch(scratch), devices, restarts=restarts)


async def why_not(name: str, scratch: Path) -> EngineEnd:
    """How starting a model's server ends that cannot be started."""
    server = make_server(name, scratch)
    try:
        async with asyncio.timeout(PATIENCE_S):
            end = await server.start()
    finally:
        await server.close()
    assert end is not None
    return end


async def _launch(spec: str, scratch: Path, device: str) -> ModelProcess:
    return await ModelProcess.start(spec, device, scratch)
