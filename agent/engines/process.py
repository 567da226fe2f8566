"""A process that the agent has started: its output, its end, and when a crashed one is started again."""

import asyncio
import re
import signal
from collections import deque
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

LINE_CHARS = 2000
"""Longest line of output that is kept."""

REASON_CHARS = 300
"""Longest reason for an engine's end."""

_READ_BYTES = 4096
_KEPT_LINES = 20
_STRAGGLER_S = 1.0
"""How long to wait for the end of an ended process's output, which a child of its own may keep open."""

_ENDS = re.compile(rb"[\r\n]+")
"""A carriage return as well: that is how progress bars write."""


def inherited_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment ``base`` without its own settings, which may hold secrets."""
    return {name: value for name, value in base.items() if not name.startswith("TRUNKLINE_")}


async def spawn(
    command: Sequence[str], environment: Mapping[str, str], stdout: int
) -> asyncio.subprocess.Process:
    """Raises OSError when the program cannot be run."""
    return await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.PIPE,  # its end tells the program that the agent has died
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the agent, which lets running requests finish
    )


class ChildProcess:
    """A program that :func:`spawn` started. To be stopped by :meth:`stop`, whatever becomes of it.

    ``output`` is read line by line to its end.
    """

    called = "the engine"
    """In sentences about it."""
    line_chars = LINE_CHARS
    """Longest line of output that is taken; the rest of a longer one is dropped."""
    unrecoverable_status: int | None = None
    """With this exit status it would end the same way again."""

    def __init__(self, process: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
        self._process = process
        self._output = output
        self._last: deque[tuple[int | None, str]] = deque(maxlen=_KEPT_LINES)
        """Its last lines with their levels; None: a line without one."""
        self._log_task = asyncio.create_task(self._read_output(), name="engine's log")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status, or minus the signal that ended it, once its output has been read."""
        status = await self._process.wait()
        self._has_ended(status)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._log_task), _STRAGGLER_S)
        return status

    async def ended(self) -> "EngineEnd":
        """Wait for its end, and say how that came."""
        status = await self.wait()
        words = self._last_words(status)
        reason = f"{self.called} {how_ended(status)}" + (f": {words}" if words else "")
        return EngineEnd(reason[:REASON_CHARS], unrecoverable=status == self.unrecoverable_status)

    def hurry(self) -> None:
        """Have it end as if the agent had died: at once, or nearly, also where :meth:`stop` waits for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it if it has not after ``grace_s``."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.terminate()
        try:
            try:
                await asyncio.wait_for(self._process.wait(), grace_s)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self._process.kill()
            await self.wait()
        finally:
            self._log_task.cancel()
            await asyncio.gather(self._log_task, return_exceptions=True)
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _has_ended(self, status: int) -> None:
        """The process has just ended, if not all that it has started."""

    def _last_words(self, status: int) -> str:
        """What its output says of why it ended."""
        return self._last[-1][1] if self._last else ""

    def _note(self, line: str) -> None:
        """A line of its output, not empty."""
        self._last.append((None, line))

    async def _read_output(self) -> None:
        rest = b""
        while data := await self._output.read(_READ_BYTES):
            *lines, rest = _ENDS.split(rest + data)
            for line in lines:
                self._take(line)
            rest = rest[-self.line_chars :]
        self._take(rest)

    def _take(self, line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip()[: self.line_chars]:
            self._note(text)


def how_ended(status: int) -> str:
    """In words for people, after "the process"; a ``status`` below 0 is a signal."""
    if status >= 0:
        return f"ended with status {status}"
    if status == -signal.SIGKILL:
        return "was ended by SIGKILL, as the system does when it is out of memory"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
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


async def first_of(*works: Awaitable[T]) -> T:
    """What the first of ``works`` to end returns or raises; of several that end at once, the one named first.
    The others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """How an engine ended. ``unrecoverable``: started again it would end the same way. ``silent_s``: for so
    long at least it had hung."""

    reason: str
    unrecoverable: bool = False
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a crashed engine is started again, and when one that runs counts as crashed."""

    most: int = 5
    """Crashes in a row after which there is little hope for one that never came to serve: it is tried
    ``rarely_s`` apart."""
    first_s: float = 1.0
    longest_s: float = 30.0
    rarely_s: float = 300.0
    healthy_s: float = 20.0
    """An engine that served for so long begins a new row."""
    hung_s: float = 60.0
    """An engine that answers nothing for so long hangs (:mod:`agent.engines.hang`); infinite: never."""

    def retries_rarely(self, crashes: int, *, served: bool) -> bool:
        """There is little hope after ``crashes`` in a row; ``served``: it could serve before the last."""
        return crashes > self.most and not served

    def delay_s(self, crashes: int, *, served: bool) -> float:
        """How long to wait after the ``crashes``-th crash in a row, from 1."""
        if self.retries_rarely(crashes, served=served):
            return self.rarely_s
        return min(self.longest_s, self.first_s * 2.0 ** min(crashes - 1, 30))
