"""One engine process, from the side of whoever started it."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

import agent
from agent.engines.process import ChildProcess, inherited_environment, spawn
from agent.engines.torch.startup import (
    EXIT_UNUSABLE,
    KEY_VARIABLE,
    EngineOptions,
    EngineReady,
    read_progress,
    read_ready,
)

log = structlog.get_logger("agent.torch_engine")

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


class EngineProcess(ChildProcess):
    """Started by :meth:`start`, and to be stopped by :meth:`stop` whatever becomes of it."""

    called = "the engine process"
    hopeless_status = EXIT_UNUSABLE

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        super().__init__(process, process.stderr)
        self.on_progress: Callable[[float | None, str], None] = lambda share, step: None
        """Called with what loading is at, and the share of the weights that are read (0 to 1, or None)."""

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> "EngineProcess":
        """Raises OSError when the program cannot be run."""
        return cls(await spawn(command, environment, asyncio.subprocess.PIPE))

    async def ready(self) -> EngineReady | None:
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
        found = _LEVEL.match(line)
        level = logging.getLevelNamesMapping()[found[1]] if found else None
        words = line[found.end() :] if found else line
        self._last.append((level, words))
        log.log(level or logging.WARNING, "engine says", line=words, logger_name=found[2] if found else "")
