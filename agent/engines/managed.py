"""A backend that starts its engine itself, and ends it when it is unloaded and when the agent stops."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol, TypedDict, Unpack

import structlog

from agent.engines.backend import (
    LOADING,
    UNLOADING,
    BackendBody,
    BackendRefused,
    BackendRequest,
    BackendUnreachable,
    ResponseReceiver,
)
from agent.engines.hang import HangDetector, until_hung
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.states import engine_state
from agent.engines.process import EngineEnd, RestartPolicy, first_of, to_the_end
from shared.protocol import limits
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus, RequestHead

log = structlog.get_logger("agent.engine")


class Durations(Protocol):
    """How long loading took, by the engine's name."""

    def of(self, engine: str) -> float | None: ...
    def note(self, engine: str, took_s: float) -> None: ...


class Hurried(Protocol):
    """What is needed of :class:`agent.engines.process.ChildProcess`."""

    def hurry(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAttempt:
    """When an engine is loaded, and what that takes."""

    at_start: bool = True
    """Loaded by :meth:`ManagedBackend.start`; otherwise when :meth:`ManagedBackend.load` is called."""
    managed: bool = False
    """A gateway may have it loaded and unloaded; otherwise it is always to be loaded."""
    memory_bytes: int | None = None
    """How much of the host's memory for models it takes; None: not known."""
    load_s: float | None = None
    """How long loading takes, for as long as it has not been measured."""
    idle_timeout_s: float | None = None
    """Without a request for so long it is unloaded; None: never."""
    gpus: tuple[int, ...] = ()
    """Indices of the host's GPUs that it uses; empty: not known."""


class Supervision(TypedDict, total=False):
    """How engines are watched over."""

    restarts: RestartPolicy
    durations: Durations | None
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class ManagedBackend(ABC):
    """Implements :class:`agent.engines.backend.Backend`; its engine is a process that :meth:`_run` runs.

    A crashed engine is started again for as long as it is to be loaded. Unloaded means that nothing of the
    process is left.
    """

    def __init__(
        self,
        name: str,
        known: tuple[DeploymentState, ...],
        loading: LoadAttempt,
        **supervision: Unpack[Supervision],
    ) -> None:
        """``known``: what it will serve, as far as that is known before its first start."""
        self.name = name
        self.loading = loading
        self.unloading = False
        """Its process is being ended; until it has, its memory is not free."""
        self._known = known
        self._restarts = supervision.get("restarts", RestartPolicy())
        self._durations = supervision.get("durations")
        self._clock = supervision.get("clock", time.monotonic)
        self._sleep = supervision.get("sleep", asyncio.sleep)
        self._on_change: Callable[[], None] = lambda: None
        self._supervisor: asyncio.Task[None] | None = None
        """Runs as long as the engine is to be loaded."""
        self._ending: asyncio.Task[None] | None = None
        self._process: Hurried | None = None
        """The engine's last process."""
        self._start_now = asyncio.Event()
        """Set to start a crashed engine again without waiting any longer."""
        self._http: OpenAIHTTPBackend | None = None
        """None unless the engine can serve."""
        self._serving = asyncio.Event()
        """Set while the engine can serve."""
        self._began_s = 0.0
        self._served_s: float | None = None
        """Since when the engine's present process can serve; None: it never could."""
        self._lasted_s = 0.0
        """How long its last process served, until it ended or fell silent."""
        self._status = DeploymentStatus.LOADING if loading.at_start else DeploymentStatus.LOADABLE
        self._reason = LOADING if loading.at_start else ""
        self._progress: float | None = None
        """How much of the load is done, where that can be known."""
        self._step = ""
        """What loading is at, where that is known."""

    @property
    def wanted(self) -> bool:
        """It holds its memory, or is about to: it is loaded or loading, or waits for its next start."""
        return self.unloading or (self._supervisor is not None and not self._supervisor.done())

    @property
    def status(self) -> DeploymentStatus:
        return self._status

    async def start(self) -> None:
        assert self._supervisor is None, "started twice"
        if self.loading.at_start:
            self.load()

    def load(self) -> None:
        """Have the engine started, without waiting for it; one that waits after a crash does not wait any
        longer. Raises :class:`BackendRefused` when it cannot be done now."""
        if self.unloading:
            raise BackendRefused(UNLOADING)
        if not self.wanted:
            self._began_s = self._clock()
            self._set_status(DeploymentStatus.LOADING, LOADING)
            self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")
        elif self._status is DeploymentStatus.FAILED:
            self._start_now.set()
        elif self._http is not None and all(
            d.status is DeploymentStatus.FAILED for d in self._http.deployments()
        ):
            raise BackendRefused("the engine's process runs and does not answer: unload it first")

    def unload(self) -> None:
        """Have the engine ended, without waiting for it. From now on it takes no requests."""
        if self.unloading or (not self.wanted and self._status is DeploymentStatus.LOADABLE):
            return
        self._known = self.deployments() or self._known
        self.unloading = True
        self._ending = asyncio.create_task(self._end(), name=f"unload {self.name}")
        self._on_change()

    async def close(self) -> None:
        """End the engine process, politely first. Requests still running are cut off."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        tasks = [task for task in (self._supervisor, self._ending) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Have the engine process that is being ended end at once."""
        if self._process is not None:
            self._process.hurry()

    def deployments(self) -> tuple[DeploymentState, ...]:
        if self.unloading:
            return tuple(replace(state, reason=UNLOADING) for state in self._known)
        states = self._served_now() or tuple(self._with_status(state) for state in self._known)
        managed, load_s, gpus = self.loading.managed, self._load_s(), self.loading.gpus
        return tuple(replace(state, managed=managed, load_s=load_s, gpu_indices=gpus) for state in states)

    def _load_s(self) -> float | None:
        """How long loading takes: as measured, else as configured."""
        measured_s = None if self._durations is None else self._durations.of(self.name)
        return self.loading.load_s if measured_s is None else measured_s

    def engine(self) -> EngineState:
        states = self.deployments()
        kind = "" if self._http is None else self._http.kind
        state = engine_state(self.name, states, kind=kind, without=self._reason)
        loading = DeploymentStatus.LOADING
        if self._status is not loading or (states and state.status is not loading):
            return state
        return replace(
            state,
            status=loading,
            reason=self._step or self._reason,
            load_progress=self._progress,
            loading_s=round(self._clock() - self._began_s, 1),
            load_s=self._load_s(),
        )

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        """See :meth:`agent.engines.backend.Backend.request`."""
        if self._http is None:
            raise BackendUnreachable(f"the engine is {self._status}: {self._reason or 'not loaded'}")
        return self._http.request(head, body, receiver)

    @abstractmethod
    async def _run(self, life: AsyncExitStack) -> EngineEnd:
        """Run one engine process to its end. Calls :meth:`_serve` once it can serve. What has to be cleaned
        up after it is put on ``life``."""

    async def _one_life(self) -> EngineEnd:
        """Leaves nothing of the engine behind, also when cancelled."""
        end = EngineEnd("the engine is being stopped")
        life = AsyncExitStack()
        try:
            end = await first_of(self._run(life), self._until_hung())
        except (OSError, ValueError) as error:
            end = EngineEnd(f"the engine cannot be started: {error}")
        finally:
            if self._served_s is not None:
                self._lasted_s = self._clock() - self._served_s - end.silent_s
            self._http = None
            self._serving.clear()
            self._set_status(DeploymentStatus.FAILED, end.reason)
            await to_the_end(life.aclose())
        return end

    async def _until_hung(self) -> EngineEnd:
        """The process runs, could serve, and answers nothing any more."""
        await self._serving.wait()
        assert self._http is not None
        clock, hung_s, still_s = asyncio.get_running_loop().time, self._restarts.hung_s, self._http.still_s
        detector = HangDetector(hung_s, still_s, clock())
        reason = await until_hung(detector, self._http.life_signs, clock)
        return EngineEnd(reason, silent_s=hung_s if still_s is None else min(hung_s, still_s))

    async def _supervise(self) -> None:
        """Keep an engine running. Ends when it would end the same way each time."""
        crashes = 0
        while True:
            self._progress, self._step = None, ""
            self._start_now.clear()
            self._began_s, self._served_s, self._lasted_s = self._clock(), None, 0.0
            self._set_status(DeploymentStatus.LOADING, LOADING)
            try:
                end = await self._one_life()
            except Exception as error:
                log.exception("watching over the engine failed", engine=self.name)
                end = EngineEnd(f"watching over the engine failed: {error}")
            served = self._served_s is not None
            crashes = 1 if self._lasted_s >= self._restarts.healthy_s else crashes + 1
            rarely = self._restarts.retries_rarely(crashes, served=served)
            if end.unrecoverable or (rarely and self.loading.managed):
                log.error("engine given up", engine=self.name, reason=end.reason, crashes=crashes)
                self._set_status(DeploymentStatus.FAILED, f"{end.reason} (given up)")
                return
            delay_s = self._restarts.delay_s(crashes, served=served)
            log.warning("engine crashed", engine=self.name, reason=end.reason, again_in_s=delay_s)
            self._set_status(DeploymentStatus.FAILED, f"{end.reason} (again in {delay_s:g} s)")
            await first_of(self._sleep(delay_s), self._start_now.wait())

    def _serve(self, http: OpenAIHTTPBackend, *known: DeploymentState) -> None:
        """Send requests to ``http``, which has been started. ``known``: what it serves, as far as the
        caller knows."""
        self._http, self._served_s = http, self._clock()
        self._serving.set()
        self._known = known or self._served_now() or self._known
        if self._durations is not None:
            self._durations.note(self.name, self._clock() - self._began_s)
        self._set_status(DeploymentStatus.LOADED, "")

    def _served_now(self) -> tuple[DeploymentState, ...]:
        """What the running engine says it serves, if it does."""
        return () if self._http is None else self._http.deployments()

    def _with_status(self, state: DeploymentState) -> DeploymentState:
        loading = self._status is DeploymentStatus.LOADING
        return replace(
            state,
            status=self._status,
            reason=self._reason,
            load_progress=self._progress if loading else None,
            running=0,
            waiting=0,
            kv_use=None,
        )

    async def _end(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self.unloading = False
        self._set_status(DeploymentStatus.LOADABLE, "")
        log.info("engine unloaded", engine=self.name)

    def _set_status(self, status: DeploymentStatus, reason: str) -> None:
        self._status, self._reason = status, reason[: limits.REASON_CHARS]
        self._changed()

    def _note_progress(self, progress: float | None, step: str = "") -> None:
        """Loading is at ``step`` now, of which ``progress`` (0 to 1) is done, where that is known."""
        if (progress, step) != (self._progress, self._step) and self._status is DeploymentStatus.LOADING:
            self._progress, self._step = progress, step
            self._changed()

    def _changed(self) -> None:
        if self.unloading:
            return
        self._known = self._served_now() or self._known
        self._on_change()
