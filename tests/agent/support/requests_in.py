"""Requests from a gateway to a runner over a backend that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent.capacity.engine_registry import EngineRegistry
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.requests.runner import RequestRunner
from shared.protocol.endpoint import Stream
from shared.protocol.messages import DeploymentState
from shared.protocol.peers import GPU_SECONDS, PROGRESS
from tests.agent.support.joined import Joined, PlayedBackend
from tests.support.clock import ManualClock
from tests.support.tunnels import Recorder, request_head

TOKEN = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'


class Agent(Recorder):
    """The agent's listener: gives streams to the runner."""

    runner: RequestRunner
    tells_gpu_s = False
    tells_progress = True
    """What its gateway has agreed on."""

    def on_open(self, stream: Stream) -> None:
        agreed = ((GPU_SECONDS, self.tells_gpu_s), (PROGRESS, self.tells_progress))
        self.runner.open("s", stream, agreed=[name for name, both in agreed if both])


class Set:
    """Everything a test plays with."""

    def __init__(
        self, registry: EngineRegistry, runner: RequestRunner, joined: Joined, clock: ManualClock
    ) -> None:
        self.registry = registry
        self.runner = runner
        self.joined = joined
        self.clock = clock

    def ask(self, body: bytes | None = b"{}", **head: Any) -> tuple[Stream, Recorder]:
        """A request from the gateway; with ``body`` None its body stays open."""
        recorder = Recorder()
        stream = self.joined.gateway.open(request_head(**{"deployment": "e/m", **head}), recorder)
        if body is not None:
            stream.send_data(body)
            stream.end()
        return stream, recorder


@asynccontextmanager
async def agent_with(
    backend: PlayedBackend | OpenAIHTTPBackend,
    clock: ManualClock | None = None,
    *,
    tells_gpu_s: bool = False,
    tells_progress: bool = True,
) -> AsyncIterator[Set]:
    clock = clock or ManualClock()
    registry, listener = EngineRegistry(clock), Agent()
    listener.tells_gpu_s, listener.tells_progress = tells_gpu_s, tells_progress
    registry.add(backend)
    listener.runner = RequestRunner(registry, clock)
    joined = Joined(listener, Recorder())
    yield Set(registry, listener.runner, joined, clock)
    joined.cut()
    assert registry.running == 0


def played(slots: int = 2) -> PlayedBackend:
    return PlayedBackend(DeploymentState(id="e/m", model="m", slots=slots))


async def standing_still(value: Callable[[], int]) -> None:
    """Waits until ``value`` has stopped changing."""
    before, same = value(), 0
    while same < 20:
        await asyncio.sleep(0)
        same = same + 1 if value() == before else 0
        before = value()
