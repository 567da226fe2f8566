"""The backend of the built-in engine: starts it, watches over it, and talks to it as to any other engine."""

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from agent.backends.base import EngineResponse, EngineUnreachable, RequestBody
from agent.backends.openai_http import EngineSettings, OpenAIHTTPBackend
from agent.backends.torch_engine.options import EngineOptions, locate
from agent.backends.torch_engine.process import (
    EngineEnd,
    EngineProcess,
    EngineReady,
    engine_command,
    engine_environment,
)
from shared import limits
from shared.messages import DeploymentState, DeploymentStatus, RequestHead

log = structlog.get_logger("agent.torch_engine")

_REFRESH_S = 2.0
"""The engine is next door, so its load is asked for more often than a foreign engine's."""

_STOP_GRACE_S = 6.0
"""The engine gives running answers one second and its computing thread three."""

Launch = Callable[[Sequence[str], Mapping[str, str]], Awaitable[EngineProcess]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a crashed engine is started again."""

    most: int = 5
    """Crashes in a row after which there is little hope for one that never came to serve: it is tried
    ``rarely_s`` apart."""
    first_s: float = 1.0
    longest_s: float = 30.0
    rarely_s: float = 300.0
    healthy_s: float = 20.0
    """An engine that served for so long begins a new row."""

    def delay_s(self, crashes: int, *, served: bool) -> float:
        """How long to wait after the ``crashes``-th crash in a row, from 1; ``served``: it could serve before
        that."""
        if crashes > self.most and not served:
            return self.rarely_s
        return min(self.longest_s, self.first_s * 2.0 ** (crashes - 1))


class TorchBackend:
    """Implements :class:`agent.backends.base.Backend` for one local model.

    ``model`` is ``demo`` or a Hugging Face model directory. The engine process is started by :meth:`start`,
    which does not wait for the model to load; a crashed one is started again, a model that cannot be served
    is not.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str = "torch",
        model_name: str | None = None,
        slots: int | None = None,
        queue: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
        max_context: int | None = None,
        threads: int | None = None,
        continues: Mapping[str, str] | None = None,
        restarts: RestartPolicy | None = None,
        launch: Launch = EngineProcess.start,
        unix_sockets: bool = hasattr(socket, "AF_UNIX"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises ValueError for options that can never work."""
        directory, default_name = locate(model)
        self.name = name
        self._options = EngineOptions(
            model=directory,
            name=model_name or default_name,
            slots=slots,
            queue=queue,
            device=device,
            dtype=dtype,
            max_context=max_context,
            threads=threads,
            exit_with_parent=True,
        )
        self._continues = continues
        self._restarts = restarts or RestartPolicy()
        self._launch = launch
        self._unix_sockets = unix_sockets
        self._clock = clock
        self._sleep = sleep
        self._on_change: Callable[[], None] = lambda: None
        self._supervisor: asyncio.Task[None] | None = None
        self._http: OpenAIHTTPBackend | None = None
        """There while the engine can serve."""
        self._served = False
        """The engine's process of now could serve."""
        self._state = DeploymentState(
            id=f"{name}/{self._options.name}",
            model=self._options.name,
            status=DeploymentStatus.LOADING,
            routes=("chat", "completions", "embeddings"),
            slots=slots or 0,
            reason="the model is being loaded",
        )

    async def start(self) -> None:
        assert self._supervisor is None, "started twice"
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")

    async def close(self) -> None:
        """End the engine process, politely first. Requests still running are cut off."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    def deployments(self) -> tuple[DeploymentState, ...]:
        return (self._http.deployments() if self._http is not None else ()) or (self._state,)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def request(self, head: RequestHead, body: RequestBody) -> AbstractAsyncContextManager[EngineResponse]:
        return self._request(head, body)

    @asynccontextmanager
    async def _request(self, head: RequestHead, body: RequestBody) -> AsyncIterator[EngineResponse]:
        if self._http is None:
            raise EngineUnreachable(f"the engine is {self._state.status}: {self._state.reason}")
        async with self._http.request(head, body) as response:
            yield response

    async def _supervise(self) -> None:
        """Keep an engine running. Ends when it would end the same way each time."""
        crashes = 0
        while True:
            self._become(DeploymentStatus.LOADING, "the model is being loaded")
            began, self._served = self._clock(), False
            try:
                end = await self._one_life()
            except Exception as error:
                log.exception("watching over the engine failed", engine=self.name)
                end = EngineEnd(f"watching over the engine failed: {error}")
            crashes = 1 if self._clock() - began >= self._restarts.healthy_s else crashes + 1
            if end.hopeless:
                log.error("engine given up", engine=self.name, reason=end.reason, crashes=crashes)
                self._become(DeploymentStatus.FAILED, f"{end.reason} (given up)")
                return
            delay_s = self._restarts.delay_s(crashes, served=self._served)
            log.warning("engine crashed", engine=self.name, reason=end.reason, again_in_s=delay_s)
            self._become(DeploymentStatus.FAILED, f"{end.reason} (again in {delay_s:g} s)")
            await self._sleep(delay_s)

    async def _one_life(self) -> EngineEnd:
        """Run one engine process to its end, and leave nothing of it behind."""
        directory = Path(tempfile.mkdtemp(prefix="trunkline-"))  # ours alone: mode 0700
        key = None if self._unix_sockets else secrets.token_urlsafe(32)
        options = replace(self._options, socket=directory / "engine.sock" if self._unix_sockets else None)
        process: EngineProcess | None = None
        end = EngineEnd("the engine is being stopped")
        try:
            process = await self._launch(engine_command(options), engine_environment(key, os.environ))
            ready = await process.ready()
            if ready is not None:
                await self._serve(ready, options.socket, key)
            end = await process.ended()
            return end
        except (OSError, ValueError) as error:
            end = EngineEnd(f"the engine process cannot be started: {error}")
            return end
        finally:
            http, self._http = self._http, None
            self._become(DeploymentStatus.FAILED, end.reason)
            await _to_the_end(_clean_up(http, process, directory))

    async def _serve(self, ready: EngineReady, unix_socket: Path | None, key: str | None) -> None:
        http = OpenAIHTTPBackend(
            EngineSettings(
                url="http://localhost" if ready.port is None else f"http://127.0.0.1:{ready.port}",
                name=self.name,
                unix_socket=unix_socket,
                api_key=key,
                models=(ready.model,),
                continues=self._continues,
                refresh_s=_REFRESH_S,
            )
        )
        http.subscribe(self._changed)
        try:
            await http.start()
        except BaseException:
            await http.close()
            raise
        self._http, self._served = http, True
        self._state = replace(
            self._state, routes=ready.routes, slots=ready.slots, context_tokens=ready.context_tokens
        )
        log.info("engine ready", engine=self.name, model=ready.model, device=ready.device, slots=ready.slots)
        self._become(DeploymentStatus.LOADED, "")

    def _become(self, status: DeploymentStatus, reason: str) -> None:
        self._state = replace(self._state, status=status, reason=reason[: limits.REASON_CHARS])
        self._changed()

    def _changed(self) -> None:
        self._on_change()


async def _clean_up(http: OpenAIHTTPBackend | None, process: EngineProcess | None, directory: Path) -> None:
    """Leave nothing of an engine behind. Takes at most a little more than the grace its process has."""
    try:
        if http is not None:
            await http.close()
        if process is not None:
            await process.stop(_STOP_GRACE_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Carry out ``work``, which ends by itself, even when cancelled; the cancellation comes after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
