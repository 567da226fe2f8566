"""Tells in the agent's log that the event loop was blocked, and not again and again."""

from collections.abc import Callable

import structlog

log = structlog.get_logger("agent")

BLOCKED_S = 1.0
"""Without a turn for so long the loop counts as blocked: the heartbeat bears ten times as much, a stream of
tokens does not."""

QUIET_S = 60.0
"""After a warning so long only counts."""


class AgentLoopReporter:
    """Warns of episodes once they are over; of those soon after a warning together with the next one."""

    def __init__(self) -> None:
        self._told_s = float("-inf")
        self._times = 0
        self._longest_s = 0.0

    def loop_blocked(self, now: float, stack: Callable[[], list[str]]) -> None:
        """Nothing is told before it is over."""

    def loop_turns(self, now: float, lasted_s: float) -> None:
        self._times += 1
        self._longest_s = max(self._longest_s, lasted_s)

    process_stood_still = loop_turns

    def looked(self, now: float) -> None:
        if self._times and now - self._told_s >= QUIET_S:
            log.warning("the event loop was blocked", times=self._times, longest_s=round(self._longest_s, 1))
            self._told_s, self._times, self._longest_s = now, 0, 0.0
