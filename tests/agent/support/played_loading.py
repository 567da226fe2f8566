"""A backend that loads and unloads, whose engine is the test."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

from agent.engines.hang import LifeSigns
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.managed import Durations, LoadAttempt, ManagedBackend
from agent.engines.process import EngineEnd, RestartPolicy
from shared.protocol.messages import DeploymentState
from tests.support.clock import ManualClock

GIB = 1024**3


class _Http:
    """What a running engine says it serves."""

    kind = "generic"

    def __init__(self, states: tuple[DeploymentState, ...]) -> None:
        self.states = states
        self.still_s = None
        self.signs = LifeSigns()

    def life_signs(self) -> LifeSigns:
        return self.signs

    def deployments(self) -> tuple[DeploymentState, ...]:
        return self.states


class PlayedLoading(ManagedBackend):
    """``come_up`` lets its engine serve, ``end`` ends it; while ``hold`` is set its end takes for ever."""

    def __init__(
        self,
        name: str = "e",
        clock: ManualClock | None = None,
        *,
        models: int = 1,
        durations: Durations | None = None,
        hung_s: float = 60.0,
        **loading: Any,
    ) -> None:
        names = [name, *(f"{name}-{number}" for number in range(2, models + 1))]
        states = tuple(DeploymentState(id=f"{name}/{model}", model=model, slots=2) for model in names)
        self.states = states
        self.lives = 0
        self.rests: list[float] = []
        self.rested = asyncio.Event()
        self.freed = asyncio.Event()
        self.freed.set()
        self._up = asyncio.Event()
        self._fate: asyncio.Future[EngineEnd] | None = None
        self.http = _Http(states)
        super().__init__(
            name,
            states,
            LoadAttempt(**{"at_start": False, "managed": True} | loading),
            restarts=RestartPolicy(most=2, hung_s=hung_s),
            durations=durations,
            clock=clock or ManualClock(),
            sleep=self._rest_for,
        )

    @property
    def running(self) -> bool:
        """There is a process that may end by itself."""
        return self._fate is not None and not self._fate.done() and not self.unloading

    async def come_up(self) -> None:
        self._up.set()
        await settled()

    async def end(self, reason: str = "it crashed", *, unrecoverable: bool = False) -> None:
        assert self._fate is not None
        self._fate.set_result(EngineEnd(reason, unrecoverable))
        self._up.clear()
        await settled()

    async def _rest_for(self, delay_s: float) -> None:
        self.rests.append(delay_s)
        await self.rested.wait()

    async def _run(self, life: AsyncExitStack) -> EngineEnd:
        self.lives += 1
        life.push_async_callback(self.freed.wait)
        self._fate = asyncio.get_running_loop().create_future()
        up: asyncio.Future[Any] = asyncio.ensure_future(self._up.wait())
        life.callback(up.cancel)
        await asyncio.wait((up, self._fate), return_when=asyncio.FIRST_COMPLETED)
        if not self._fate.done():
            self._serve(cast(OpenAIHTTPBackend, self.http))
        return await self._fate


async def settled() -> None:
    """Everything that can happen now has happened."""
    for _ in range(20):
        await asyncio.sleep(0)
