"""The server's end of one of the model's processes."""

import asyncio
import itertools
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from agent.engines.engine_program import EXIT_UNUSABLE
from agent.engines.process import ChildProcess, EngineEnd, spawn, to_the_end
from agent.serve.messages import (
    LENGTH_BYTES,
    ModelFacts,
    ProcessFacts,
    ProcessReady,
    ProcessUnusable,
    frame,
    length_of,
    parse,
)
from agent.serve.options import read_line
from agent.serve.parcels import Parcel, remove_unannounced

_log = logging.getLogger("model")

STOP_GRACE_S = 0.5
"""Between asking a process to end and ending it: what it computes then is for nobody."""

END_S = 1.0
"""Within so long after its output a process ends; one that does not is ended."""

_numbers = itertools.count(1)


class ModelChild(Protocol):
    """What is needed of :class:`ModelProcess`."""

    @property
    def prefix(self) -> str: ...
    def send(self, message: NamedTuple) -> None: ...
    def kill(self, why: str) -> None: ...
    async def ready(self, timeout_s: float | None) -> ModelFacts | EngineEnd: ...
    async def serve(self, take: Callable[[Any], None]) -> EngineEnd: ...
    async def stop(self, grace_s: float) -> None: ...


class ModelProcess(ChildProcess):
    """Implements :class:`ModelChild`. Started by :meth:`start`, and to be stopped by :meth:`stop`."""

    called = "the model's process"
    unrecoverable_status = EXIT_UNUSABLE

    def __init__(self, process: asyncio.subprocess.Process, prefix: str) -> None:
        assert process.stderr is not None
        super().__init__(process, process.stderr)
        self.prefix = prefix
        """How the names of its files begin."""
        self._reason = ""
        """Why it ends, where it said so or was ended for a reason."""

    @classmethod
    async def start(cls, spec: str, device: str, scratch: Path) -> "ModelProcess":
        """Raises OSError when it cannot be started."""
        prefix = f"p{next(_numbers)}"
        words = ("-P", "-m", "agent.serve.worker", spec, device, str(scratch), prefix)
        environment = dict(os.environ)
        if device == "codec":  # one thread each: there are as many of them as CPUs
            environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | environment
        return cls(await spawn((sys.executable, *words), environment, asyncio.subprocess.PIPE), prefix)

    def send(self, message: NamedTuple) -> None:
        """Never raises: what a lost process was to do is known to whoever sent it."""
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):
            if self._process.returncode is None and not self._process.stdin.is_closing():
                self._process.stdin.write(frame(message))

    def kill(self, why: str) -> None:
        """End it and all that it has started, at once."""
        self._reason = self._reason or why
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def ready(self, timeout_s: float | None) -> ModelFacts | EngineEnd:
        """What it serves once it has loaded, or how it ended before. ``timeout_s``: how long it may take;
        None: as the model says."""
        facts = await self._message()
        if isinstance(facts, ProcessFacts):
            limit_s = facts.facts.load_timeout_s if timeout_s is None else timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    facts = await self._message()
            except TimeoutError:
                self.kill(f"loading did not end within {limit_s:g} s")
                facts = None
        if isinstance(facts, ProcessReady):
            return facts.facts
        if isinstance(facts, ProcessUnusable):
            self._reason = facts.words
            await self.wait()
            return EngineEnd(facts.words, facts.unrecoverable)
        return await self.ended()

    async def serve(self, take: Callable[[Any], None]) -> EngineEnd:
        """Give what it says to ``take`` until it ends, and say how that came."""
        while (message := await self._message()) is not None:
            take(message)
        return await self.ended()

    async def _message(self) -> Any:
        """The next; None when it has ended, or has closed its output."""
        output = self._process.stdout
        assert output is not None
        try:
            head = await output.readexactly(LENGTH_BYTES)
            return parse(await output.readexactly(length_of(head)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        try:  # its output ends just before it does
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self.kill("it closed its standard output")
        return None

    async def ended(self) -> EngineEnd:
        end = await super().ended()
        return EngineEnd(self._reason, end.unrecoverable) if self._reason else end

    def _has_ended(self, status: int) -> None:
        """What it has started is not to outlive it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _note(self, line: str) -> None:
        """Pass on what the model prints and logs. The agent reads it in one stream with what the server
        process says, so a line that would be taken for the server's own gets a blank before it."""
        super()._note(line)
        apart = "" if read_line(line) is None else " "
        os.write(2, f"{apart}{line}\n".encode(errors="replace"))


Launch = Callable[[str], Awaitable[ModelChild]]
"""Starts a process for a device, or for ``codec``. Raises OSError."""


class Scratch:
    """The directory of large parcels, and which of its files are announced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: set[str] = set()

    def adopt(self, parcel: object) -> None:
        """A process has announced it: from now on it is to be removed by :meth:`remove`."""
        if isinstance(parcel, Parcel) and parcel.file:
            self._files.add(parcel.file)

    def remove(self, *parcels: object) -> None:
        for parcel in parcels:
            if isinstance(parcel, Parcel) and parcel.file:
                self._files.discard(parcel.file)
                with suppress(OSError):
                    os.unlink(parcel.file)

    def sweep(self, prefix: str) -> None:
        """A process has ended: remove what it wrote and never announced."""
        remove_unannounced(self.directory, prefix, self._files.__contains__)


@dataclass(frozen=True, slots=True)
class Supervised:
    """How one life of a process went."""

    end: EngineEnd
    served_s: float
    """How long it could serve; 0: it never could."""


async def one_life(
    launch: Launch,
    place: str,
    scratch: Scratch,
    on_ready: Callable[[ModelChild, ModelFacts], None],
    take: Callable[[Any], None],
    *,
    load_timeout_s: float | None = None,
) -> Supervised:
    """Start a process and run it to its end; leaves nothing of it behind, also when cancelled. An error of
    ours in it counts as one of the process."""
    loop = asyncio.get_running_loop()
    try:
        child = await launch(place)
    except OSError as error:
        return Supervised(EngineEnd(f"the model's process cannot be started: {error}"), 0.0)
    try:
        facts = await child.ready(load_timeout_s)
        if isinstance(facts, EngineEnd):
            return Supervised(facts, 0.0)
        began_s = loop.time()
        on_ready(child, facts)
        end = await child.serve(take)
        return Supervised(end, max(1e-6, loop.time() - began_s))
    except Exception as error:
        _log.exception("watching over the model's process failed")
        return Supervised(EngineEnd(f"watching over the model's process failed: {error}"), 0.0)
    finally:
        await to_the_end(child.stop(STOP_GRACE_S))
        scratch.sweep(child.prefix)
