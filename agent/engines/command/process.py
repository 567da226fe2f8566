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
from agent.engines.process import ChildProcess, EngineEnd, how_ended, to_the_end

log = structlog.get_logger("agent.engine")

TOLD_LINES = 10
"""Of a failed engine's output so many last lines are told."""

REASON_CHARS = 300

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
        self, process: asyncio.subprocess.Process, output: "_Output", engine: str, grace_s: float
    ) -> None:
        super().__init__(process, output.reader)
        self._pipe = output
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
        output = await _Output.open()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(process_guard.__file__)), str(grace_s), *command),
                env=environment,
                stdin=asyncio.subprocess.PIPE,  # its end tells the guard that the agent has died
                stdout=output.write_end,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is for the agent, which lets running requests finish
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(output.write_end)
        started = cls(process, output, engine, grace_s)
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

    async def ended(self) -> EngineEnd:
        """Wait for the engine's end."""
        status = await self.wait()
        lines = [line for _, line in self._last][-TOLD_LINES:]
        if lines:
            log.warning("engine's last words", engine=self._engine, lines=lines)
        words = f": {lines[-1]}" if lines else ""
        return EngineEnd(f"the engine {how_ended(status)}{words}"[:REASON_CHARS])

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

    def _note(self, line: str) -> None:
        super()._note(line)
        log.debug("engine says", engine=self._engine, line=line)
        if found := _PROGRESS.search(line):
            self.on_progress(min(1.0, int(found[1]) / 100))


class _Output:
    """A pipe for an engine's output. One of our own: asyncio does not tell of the end of a process before
    that of the pipes it made for it, and an engine's children may hold this one."""

    def __init__(
        self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport, write_end: int
    ) -> None:
        self.reader = reader
        self.write_end = write_end
        self._transport = transport

    @classmethod
    async def open(cls) -> "_Output":
        read_end, write_end = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
        )
        return cls(reader, transport, write_end)

    def close(self) -> None:
        self._transport.close()


def filled_in(text: str, port: int) -> str:
    return text.replace(PORT, str(port))


def command_environment(added: Mapping[str, str], port: int, base: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without its own settings, which may hold secrets, and with ``added``."""
    kept = {name: value for name, value in base.items() if not name.startswith("TRUNKLINE_")}
    return kept | {name: filled_in(value, port) for name, value in added.items()}


def free_port() -> int:
    """A TCP port of loopback on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
