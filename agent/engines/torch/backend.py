"""The built-in engine from the agent's side: its process, and the backend that starts and uses it."""

import asyncio
import logging
import math
import os
import re
import secrets
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import structlog

import agent
from agent.engines.engine_program import EXIT_UNUSABLE, KEY_VARIABLE
from agent.engines.http.openai import EngineSettings, OpenAIHTTPBackend
from agent.engines.managed import LoadAttempt, ManagedBackend, Supervision
from agent.engines.model_names import deployment_id
from agent.engines.process import ChildProcess, EngineEnd, inherited_environment, spawn
from agent.engines.torch.startup import (
    EngineFacts,
    EngineOptions,
    locate,
    read_progress,
    read_ready,
)
from shared.protocol.messages import DeploymentState

log = structlog.get_logger("agent.torch_engine")

_REFRESH_S = 2.0
"""The engine runs on the same machine, so its load is read more often than another engine's."""

SOCKET_PATH_BYTES = 100
"""A Unix socket's path may have 107 bytes on Linux and 103 on macOS (unix(7)). Where temporary files lie
deeper, the engine listens on loopback."""

_STOP_GRACE_S = 6.0
"""The engine gives running answers one second and its computing thread three."""

_MEMORY_PER_WEIGHT = 1.2
"""A fifth beside the weights, for activations and a small cache."""

_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([\w.]+):")


def engine_command(options: EngineOptions) -> list[str]:
    """``-P``: a package of this name in the current directory is not taken."""
    return [sys.executable, "-P", "-m", "agent.engines.torch", *options.arguments()]


def engine_environment(key: str | None, base: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment ``base`` without its own settings, and with the package in reach."""
    environment = inherited_environment(base)
    package = str(Path(agent.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, base.get("PYTHONPATH"))))
    if key is not None:
        environment[KEY_VARIABLE] = key
    return environment


def read_log_line(line: str) -> tuple[int | None, str, str]:
    """The level, the words and the logger's name of a line that an engine process has logged
    (:func:`agent.engines.engine_program.log_to_standard_error`); None and the line for any other."""
    if (found := _LEVEL.match(line)) is None:
        return None, line, ""
    return logging.getLevelNamesMapping()[found[1]], line[found.end() :], found[2]


class EngineProcess(ChildProcess):
    """Started by :meth:`start`, and to be stopped by :meth:`stop` whatever becomes of it."""

    called = "the engine process"
    unrecoverable_status = EXIT_UNUSABLE

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        super().__init__(process, process.stderr)
        self.on_progress: Callable[[float | None, str], None] = lambda share, step: None
        """Called with what loading is at, and the share of the weights that are read (0 to 1, or None)."""

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> "EngineProcess":
        """Raises OSError when the program cannot be run."""
        return cls(await spawn(command, environment, asyncio.subprocess.PIPE))

    async def ready(self) -> EngineFacts | None:
        """The engine's facts as soon as it can serve; None when it ended before that. What it says of loading
        goes to ``on_progress``."""
        assert self._process.stdout is not None
        while (line := await self._process.stdout.readline()).endswith(b"\n"):
            progress = read_progress(line)
            if progress is None:
                return read_ready(line)
            self.on_progress(*progress)
        return None

    def _last_words(self, status: int) -> str:
        """One ended by a signal had no time to say why, but the code that crashed may have."""
        level, last = self._last[-1] if self._last else (None, "")
        if status < 0:
            return last if level is None else ""
        errors = [words for level, words in self._last if level is not None and level >= logging.ERROR]
        return errors[-1] if errors else last

    def _note(self, line: str) -> None:
        """Pass its log on, each line at its level; what has none is a library's, or a crash's."""
        level, words, name = read_log_line(line)
        self._last.append((level, words))
        log.log(level or logging.WARNING, "engine says", line=words, logger_name=name)


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
        launch: Launch = EngineProcess.start,
        unix_sockets: bool = hasattr(socket, "AF_UNIX"),
        **supervision: Unpack[Supervision],
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
        super().__init__(name, (state,), loading, **supervision)

    async def _run(self, life: AsyncExitStack) -> EngineEnd:
        made = tempfile.TemporaryDirectory(prefix="trunkline-", ignore_cleanup_errors=True)
        directory = Path(life.enter_context(made))  # ours alone: mode 0700
        path = directory / "engine.sock"
        by_path = self._unix_sockets and len(os.fsencode(path)) <= SOCKET_PATH_BYTES
        key = None if by_path else secrets.token_urlsafe(32)
        options = self._options.model_copy(update={"socket": path if by_path else None})
        process = await self._launch(engine_command(options), engine_environment(key, os.environ))
        life.push_async_callback(process.stop, _STOP_GRACE_S)
        self._process = process
        process.on_progress = self._note_progress
        facts = await process.ready()
        if facts is not None:
            http = self._connection(facts, options.socket, key)
            life.push_async_callback(http.close)
            await http.start()
            log.info(
                "engine ready", engine=self.name, model=facts.model, device=facts.device, slots=facts.slots
            )
            (state,) = self._known
            state = replace(state, routes=facts.routes, slots=facts.slots, capabilities=facts.capabilities)
            self._serve(http, replace(state, context_tokens=facts.context_tokens))
        return await process.ended()

    def _connection(self, facts: EngineFacts, unix_socket: Path | None, key: str | None) -> OpenAIHTTPBackend:
        http = OpenAIHTTPBackend(
            EngineSettings(
                url="http://localhost" if facts.port is None else f"http://127.0.0.1:{facts.port}",
                name=self.name,
                unix_socket=unix_socket,
                api_key=key,
                models=(facts.model,),
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
