"""Engines that the agent starts with a command, vLLM, llama.cpp and whatever else serves HTTP: the process of
one, and its backend."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Unpack

import structlog

from agent.engines import process_guard
from agent.engines.http.kind import GENERIC
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.managed import LoadAttempt, ManagedBackend, Supervision
from agent.engines.model_names import deployment_id
from agent.engines.process import (
    ChildProcess,
    EngineEnd,
    first_of,
    inherited_environment,
    spawn,
    to_the_end,
)
from agent.engines.settings import EngineSettings
from shared.process.ports import free_port
from shared.protocol.messages import DeploymentState, DeploymentStatus

log = structlog.get_logger("agent.engine")

LOOK_S = (0.05, 0.5)
"""First and longest pause between two looks at an engine that is not ready."""

MISNAMED_S = 10.0
"""So long an engine may serve other models than those it is said to."""

LAST_WORDS = 10
"""So many of the last lines of an ended engine's output are logged."""

PORT = "{port}"
"""In a command or an environment it stands for the engine's port."""

_GUARD_S = 5.0 + process_guard.KILL_S
"""What the guard may take beyond the engine's grace."""

_PROGRESS = re.compile(r"(\d{1,3})% Completed \| \d+/\d+")
"""vLLM and SGLang: "Loading safetensors checkpoint shards:  25% Completed | 1/4 […]"."""


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


class CannotStart(OSError):
    """The command cannot be run. The message says why."""


class CommandProcess(ChildProcess):
    """Started by :meth:`start`, and to be stopped by :meth:`stop`: then nothing of it is left.

    The guard is the agent's own child and the engine the guard's, so that the engine ends, with all it has
    started, even when the agent is killed.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        engine: str,
        grace_s: float,
    ) -> None:
        """``pipe`` is what ``output`` reads from."""
        super().__init__(process, output)
        self._pipe = pipe
        self.on_progress: Callable[[float], None] = lambda progress: None
        """Called with a share from 0 to 1 when the engine's output says how much of the model is loaded."""
        self.engine_pid: int | None = None
        """The process id of the engine's first process, which leads its group."""
        self._engine = engine
        self._grace_s = grace_s

    @classmethod
    async def start(
        cls, engine: str, command: Sequence[str], environment: Mapping[str, str], grace_s: float
    ) -> "CommandProcess":
        """``engine`` is its name in the log. Raises :class:`CannotStart`."""
        # A pipe of our own: asyncio reports the end of a process only after that of the pipes it made for it,
        # and an engine's children may hold this one.
        read_end, write_end = os.pipe()
        output = asyncio.StreamReader()
        try:
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", buffering=0)
            )
            guard = (sys.executable, "-I", "-S", str(Path(process_guard.__file__)), str(grace_s))
            try:
                process = await spawn((*guard, *command), environment, write_end)
            except BaseException:
                pipe.close()
                raise
        finally:
            os.close(write_end)
        started = cls(process, output, pipe, engine, grace_s)
        assert process.stderr is not None
        try:
            said, _, what = (await process.stderr.readline()).decode(errors="replace").strip().partition(" ")
            if said != "started":
                raise CannotStart(what or "its guard did not start")
            started.engine_pid = int(what)
        except BaseException:
            await to_the_end(started.stop())
            raise
        return started

    async def stop(self, grace_s: float | None = None) -> None:
        """End the engine, in order if it ends within the grace it was started with."""
        try:
            await super().stop(self._grace_s + _GUARD_S if grace_s is None else grace_s)
        finally:
            self._pipe.close()

    def _has_ended(self, status: int) -> None:
        """Where the guard itself may have been killed, the engine's group has lost who ends it."""
        if status == -signal.SIGKILL and self.engine_pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.engine_pid, signal.SIGKILL)

    def _last_words(self, status: int) -> str:
        if lines := [line for _, line in self._last][-LAST_WORDS:]:
            log.warning("engine's last words", engine=self._engine, lines=lines)
        return super()._last_words(status)

    def _note(self, line: str) -> None:
        super()._note(line)
        log.debug("engine says", engine=self._engine, line=line)
        if found := _PROGRESS.search(line):
            self.on_progress(min(1.0, int(found[1]) / 100))


def filled_in(text: str, port: int) -> str:
    return text.replace(PORT, str(port))


def command_environment(added: Mapping[str, str], port: int, base: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment ``base`` without its own settings, and with ``added``."""
    return inherited_environment(base) | {name: filled_in(value, port) for name, value in added.items()}


class Process(Protocol):
    """What is needed of :class:`CommandProcess`."""

    on_progress: Callable[[float], None]

    async def ended(self) -> EngineEnd: ...
    async def stop(self) -> None: ...
    def hurry(self) -> None: ...


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
        launch: Launch = CommandProcess.start,
        **supervision: Unpack[Supervision],
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
        super().__init__(engine.name, known, loading or LoadAttempt(), **supervision)

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
        self._process = process
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
                return EngineEnd(f"the engine serves {found[:100]}, not {wanted[:100]}", unrecoverable=True)
            if now - self._began_s >= self._settings.ready_s:
                reason = states[0].reason if states else "it does not answer"
                return EngineEnd(f"the engine is not ready after {self._settings.ready_s:g} s: {reason}")
            await asyncio.sleep(pause_s)
            pause_s = min(longest_s, pause_s * 1.5)
            await http.refresh()

    def _served_now(self) -> tuple[DeploymentState, ...]:
        states, wanted = super()._served_now(), self._engine.models
        return tuple(state for state in states if not wanted or state.model in wanted)
