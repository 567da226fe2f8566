"""The process of an engine that the agent starts with a command, from the agent's side."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from agent.engines import process_guard
from agent.engines.process import (
    ChildProcess,
    inherited_environment,
    spawn,
    to_the_end,
)

log = structlog.get_logger("agent.engine")

LAST_WORDS = 10
"""So many of the last lines of an ended engine's output are logged."""

PORT = "{port}"
"""In a command or an environment it stands for the engine's port."""

_GUARD_S = 5.0 + process_guard.KILL_S
"""What the guard may take beyond the engine's grace."""

_PROGRESS = re.compile(r"(\d{1,3})% Completed \| \d+/\d+")
"""vLLM and SGLang: "Loading safetensors checkpoint shards:  25% Completed | 1/4 […]"."""


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
        """Of the engine's first process, which leads its group."""
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


def free_port() -> int:
    """A TCP port of loopback on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
