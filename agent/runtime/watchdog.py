"""Notices that the event loop did not turn: something blocked it, or the machine stood still."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger("agent")

LOOK_S = 0.5

BLOCKED_S = 1.0
"""A turn that comes so late is told: the heartbeat bears ten times as much, a stream of tokens does not."""

QUIET_S = 60.0
"""After a warning so long only counts."""


class ClockWatchdog:
    """Looks at the clock every ``LOOK_S``."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._told_s = float("-inf")
        self._times = 0
        self._longest_s = 0.0

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            before_s = self._clock()
            await self._sleep(LOOK_S)
            self.turned(self._clock() - before_s - LOOK_S, self._clock())

    def turned(self, late_s: float, now: float) -> None:
        """A turn came ``late_s`` after it should have."""
        if late_s >= BLOCKED_S:
            self._times += 1
            self._longest_s = max(self._longest_s, late_s)
        if self._times and now - self._told_s >= QUIET_S:
            log.warning("the event loop was blocked", times=self._times, longest_s=round(self._longest_s, 1))
            self._told_s, self._times, self._longest_s = now, 0, 0.0
