"""The backend of the built-in engine: starts it, restarts it, and uses it as any other engine."""

import asyncio
import math
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from agent.engines.http.models import deployment_id
from agent.engines.http.openai import EngineSettings, OpenAIHTTPBackend
from agent.engines.managed import Durations, LoadAttempt, ManagedBackend
from agent.engines.process import EngineEnd, RestartPolicy
from agent.engines.torch.process import EngineProcess, engine_command, engine_environment
from agent.engines.torch.startup import EngineOptions, EngineReady, locate
from shared.protocol.messages import DeploymentState

log = structlog.get_logger("agent.torch_engine")

_REFRESH_S = 2.0
"""The engine runs on the same machine, so its load is read more often than another engine's."""

_STOP_GRACE_S = 6.0
"""The engine gives running answers one second and its computing thread three."""

_MEMORY_PER_WEIGHT = 1.2
"""A fifth beside the weights, for activations and a small cache."""

Launch = Callable[[Sequence[str], Mapping[str, str]], Awaitable[EngineProcess]]


class TorchBackend(ManagedBackend):
    """Implements :class:`agent.engines.backend.Backend` for one local model.

    ``model`` is ``demo`` or a Hugging Face model directory. :meth:`start` starts the engine process,
    unless ``loading`` says otherwise, and does not wait for the model to load. A process that crashes is
    started again, one whose model cannot be served is not.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str = "torch",
        slots: int | None = None,
        queue: int | None = None,
        device: str = "auto",
        threads: int | None = None,
        version: str = "",
        continues: Mapping[str, str] | None = None,
        loading: LoadAttempt | None = None,
        restarts: RestartPolicy | None = None,
        durations: Durations | None = None,
        launch: Launch = EngineProcess.start,
        unix_sockets: bool = hasattr(socket, "AF_UNIX"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """A memory given in ``loading`` is what its weights and its cache may take together; otherwise the
        weights' files say about how much that is, and the cache takes what there is.

        Raises ValueError for options that can never work.
        """
        directory, model_name = locate(model)
        loading = loading or LoadAttempt()
        self._options = EngineOptions.of(
            model=directory,
            name=model_name,
            slots=slots,
            queue=queue,
            device=device,
            threads=threads,
            memory_bytes=loading.memory_bytes,
            exit_with_parent=True,
        )
        if loading.memory_bytes is None:
            loading = replace(loading, memory_bytes=estimate_memory_bytes(directory))
        self._version = version
        self._continues = continues
        self._launch = launch
        self._unix_sockets = unix_sockets
        state = DeploymentState(
            id=deployment_id(name, self._options.name),
            model=self._options.name,
            version=version,
            routes=("chat", "completions", "embeddings"),
            slots=slots or 0,
        )
        super().__init__(
            name, (state,), loading, restarts=restarts, durations=durations, clock=clock, sleep=sleep
        )

    async def _run(self, life: AsyncExitStack) -> EngineEnd:
        made = tempfile.TemporaryDirectory(prefix="trunkline-", ignore_cleanup_errors=True)
        directory = Path(life.enter_context(made))  # ours alone: mode 0700
        key = None if self._unix_sockets else secrets.token_urlsafe(32)
        options = self._options.model_copy(
            update={"socket": directory / "engine.sock" if self._unix_sockets else None}
        )
        process = await self._launch(engine_command(options), engine_environment(key, os.environ))
        life.push_async_callback(process.stop, _STOP_GRACE_S)
        process.on_progress = self._note_progress
        ready = await process.ready()
        if ready is not None:
            http = self._connection(ready, options.socket, key)
            life.push_async_callback(http.close)
            await http.start()
            facts = ready.ready
            log.info(
                "engine ready", engine=self.name, model=facts.model, device=facts.device, slots=facts.slots
            )
            (state,) = self._known
            routes, context_tokens = facts.routes, facts.context_tokens
            self._serve(http, replace(state, routes=routes, slots=facts.slots, context_tokens=context_tokens))
        return await process.ended()

    def _connection(self, ready: EngineReady, unix_socket: Path | None, key: str | None) -> OpenAIHTTPBackend:
        http = OpenAIHTTPBackend(
            EngineSettings(
                url="http://localhost" if ready.port is None else f"http://127.0.0.1:{ready.port}",
                name=self.name,
                unix_socket=unix_socket,
                api_key=key,
                models=(ready.ready.model,),
                version=self._version,
                continues=self._continues,
                refresh_s=_REFRESH_S,
            )
        )
        http.subscribe(self._changed)
        return http


def estimate_memory_bytes(directory: Path) -> int | None:
    """What a model takes, judged by its weights' files; None when there are none."""
    try:
        files = [*directory.glob("*.safetensors")] or [*directory.glob("*.bin")]
        size_bytes = sum(file.stat().st_size for file in files)
    except OSError:
        return None
    return math.ceil(size_bytes * _MEMORY_PER_WEIGHT) or None
