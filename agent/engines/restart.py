"""Engines that run without the agent and are restarted by a command of the operator's when they hang."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import IO, Protocol

import structlog

from agent.engines.hang import LOOK_S, HangDetector, LifeSigns, until_hung
from agent.engines.process import LINE_CHARS, RestartPolicy, how_ended, inherited_environment

log = structlog.get_logger("agent.engine")

COMMAND_S = 300.0
"""How long the command may take; then it is killed."""

SETTLED_LOOKS = 5
"""An engine serves after a restart once so many looks in a row, :data:`LOOK_S` apart, found it so: a command
may return before the old process has ended."""

_OUTPUT_BYTES = 4096
"""So much of the end of its output is looked at."""


class Restartable(Protocol):
    """An engine that was started by somebody else, as its backend sees it."""

    name: str

    def life_signs(self) -> LifeSigns: ...
    def serves(self) -> bool: ...
    async def refresh(self) -> None: ...
    def begin_restart(self, reason: str) -> None: ...
    async def end_restart(self) -> None: ...


class CommandFailed(Exception):
    """The message says how."""


async def run_command(command: Sequence[str], within_s: float = COMMAND_S) -> None:
    """Run ``command``, which is a program and its arguments, to its end. Its environment is the agent's,
    without the agent's settings. Cancelled, it is left to end by itself. Raises :class:`CommandFailed`."""
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=inherited_environment(os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise CommandFailed(f"it cannot be run: {error}") from error
        try:
            async with asyncio.timeout(within_s):
                status = await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise CommandFailed(f"it did not end within {within_s:g} s") from None
        if status:
            raise CommandFailed(f"it {how_ended(status)}{_last_line(output)}")


def _last_line(output: IO[bytes]) -> str:
    """After ``: ``, if there is one."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:LINE_CHARS]}" if last else ""


class Restarter:
    """Watches one engine from the moment on at which it serves, and has it restarted when it hangs: at once,
    and later and later (``restarts``) if that does not help. Its deployments are failed meanwhile."""

    def __init__(
        self,
        engine: Restartable,
        command: Sequence[str],
        restarts: RestartPolicy,
        still_s: float | None,
        ready_s: float,
        *,
        run: Callable[[Sequence[str]], Awaitable[None]] = run_command,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """To be made in an event loop, whose time ``clock`` is by default. ``still_s`` is that of
        :class:`agent.engines.hang.HangDetector`. ``ready_s``: how long the engine may take to serve after the
        command."""
        self._engine = engine
        self._command = command
        self._restarts = restarts
        self._still_s = still_s
        self._ready_s = ready_s
        self._run = run
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._failures = 0
        """Hangs in a row, each soon after a restart, and restarts after which it did not serve."""

    async def run(self) -> None:
        """Until cancelled."""
        while not self._engine.serves():
            await self._sleep(LOOK_S)
        while True:
            began_s = self._clock()
            detector = HangDetector(self._restarts.hung_s, self._still_s, began_s)
            reason = await until_hung(detector, self._engine.life_signs, self._clock, self._sleep)
            if self._clock() - began_s >= self._restarts.hung_s + self._restarts.healthy_s:
                self._failures = 0
            await self._restart(reason)

    async def _restart(self, reason: str) -> None:
        """Ends when it serves again."""
        engine = self._engine
        while True:
            if self._failures:
                delay_s = self._restarts.delay_s(self._failures, served=False)
                engine.begin_restart(f"{reason} (restarted in {delay_s:g} s)")
                await self._sleep(delay_s)
            self._failures += 1
            engine.begin_restart(f"{reason} (it is being restarted)")
            log.warning("engine restarted", engine=engine.name, reason=reason, program=self._command[0])
            try:
                await self._run(self._command)
            except CommandFailed as error:
                log.warning("the restart command failed", engine=engine.name, reason=str(error))
            if await self._serves_again():
                break
            reason = f"the engine does not serve {self._ready_s:g} s after it was restarted"
        await engine.end_restart()
        log.info("engine serves again", engine=engine.name)

    async def _serves_again(self) -> bool:
        """Wait until the engine serves; False: it does not within the time that it may take."""
        began_s, found = self._clock(), 0
        while found < SETTLED_LOOKS and self._clock() - began_s < self._ready_s:
            await self._engine.refresh()
            found = found + 1 if self._engine.serves() else 0
            await self._sleep(LOOK_S)
        return found >= SETTLED_LOOKS
