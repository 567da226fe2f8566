"""The backend of an engine that the agent starts with a command: vLLM, llama.cpp and whatever else serves
HTTP."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from agent.engines.command.process import CommandProcess, command_environment, filled_in, free_port
from agent.engines.http.kind import GENERIC
from agent.engines.http.models import deployment_id
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.managed import Durations, LoadAttempt, ManagedBackend
from agent.engines.process import EngineEnd, RestartPolicy, first_of
from agent.engines.settings import EngineSettings
from shared.protocol.messages import DeploymentState, DeploymentStatus

log = structlog.get_logger("agent.engine")

LOOK_S = (0.05, 0.5)
"""First and longest pause between two looks at an engine that is not ready."""

MISNAMED_S = 10.0
"""So long an engine may serve other models than those it is said to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """How the engine is started, and when it counts as ready."""

    command: tuple[str, ...]
    """Program and arguments; no shell. ``{port}`` stands for the port, in ``environment`` as well."""
    port: int = 0
    """0: a free one, another one each time."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the agent's own."""
    ready_s: float = 600.0
    """How long it may take until it answers."""
    stop_s: float = 10.0
    """How long it may take to end once asked."""


class Process(Protocol):
    """What is needed of :class:`~agent.engines.command.process.CommandProcess`."""

    on_progress: Callable[[float], None]

    async def ended(self) -> EngineEnd: ...
    async def stop(self) -> None: ...


Launch = Callable[[str, tuple[str, ...], Mapping[str, str], float], Awaitable[Process]]


class CommandBackend(ManagedBackend):
    """Implements :class:`agent.engines.backend.Backend`. ``engine`` is as for an engine that runs already;
    its ``url`` only says the host, as the port is that of the command; its ``models`` are offered before it
    ever ran, and only they."""

    def __init__(
        self,
        engine: EngineSettings,
        settings: CommandSettings,
        *,
        loading: LoadAttempt | None = None,
        restarts: RestartPolicy | None = None,
        durations: Durations | None = None,
        launch: Launch = CommandProcess.start,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._launch = launch
        known = tuple(
            DeploymentState(
                id=deployment_id(engine.name, model),
                model=model,
                version=engine.version,
                routes=GENERIC.routes,
                slots=engine.slots or 0,
                continues=engine.continues or {},
            )
            for model in engine.models
        )
        super().__init__(
            engine.name,
            known,
            loading or LoadAttempt(),
            restarts=restarts,
            durations=durations,
            clock=clock,
            sleep=sleep,
        )

    async def _run(self, life: AsyncExitStack) -> EngineEnd:
        settings = self._settings
        port = settings.port or free_port()
        process = await self._launch(
            self.name,
            tuple(filled_in(word, port) for word in settings.command),
            command_environment(settings.environment, port, os.environ),
            settings.stop_s,
        )
        life.push_async_callback(process.stop)
        process.on_progress = self._note_progress
        log.info("engine started", engine=self.name, program=settings.command[0], port=port)
        http = OpenAIHTTPBackend(replace(self._engine, url=f"http://127.0.0.1:{port}", models=()))
        life.push_async_callback(http.close)
        await http.start()
        end = await first_of(process.ended(), self._until_ready(http))
        if end is not None:
            return end
        http.subscribe(self._changed)
        self._serve(http)
        log.info("engine ready", engine=self.name, load_s=round(self._clock() - self._began_s, 1))
        return await process.ended()

    async def _until_ready(self, http: OpenAIHTTPBackend) -> EngineEnd | None:
        """None once all of its models are served; otherwise why they never will be."""
        pause_s, longest_s = LOOK_S
        listed_s: float | None = None
        while True:
            states = http.deployments()
            served = {state.model for state in states if state.status is DeploymentStatus.LOADED}
            if served and served >= set(self._engine.models):
                return None
            now = self._clock()
            listed_s = (listed_s or now) if served else None
            if listed_s is not None and now - listed_s >= MISNAMED_S:
                wanted, found = ", ".join(self._engine.models), ", ".join(sorted(served))
                return EngineEnd(f"the engine serves {found[:100]}, not {wanted[:100]}", hopeless=True)
            if now - self._began_s >= self._settings.ready_s:
                reason = states[0].reason if states else "it does not answer"
                return EngineEnd(f"the engine is not ready after {self._settings.ready_s:g} s: {reason}")
            await asyncio.sleep(pause_s)
            pause_s = min(longest_s, pause_s * 1.5)
            await http.refresh()

    def _served_now(self) -> tuple[DeploymentState, ...]:
        states, wanted = super()._served_now(), self._engine.models
        return tuple(state for state in states if not wanted or state.model in wanted)
