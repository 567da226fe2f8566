"""Shared limits in this process's memory, for processes that are none: a simulator's gateways, and tests."""

import time
from collections.abc import Callable

from gateway.storage.leases.rules import LeaseGrant, LeaseStatement, SharedLimit


class MemoryLeaseEngine:
    """The rules and a dict. Loses everything with its process."""

    name = "memory"
    patience_s = 0.02

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._limits: dict[str, SharedLimit] = {}

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        """See :class:`gateway.storage.leases.rules.LeaseEngine`. Never raises EngineAway."""
        now = self._clock()
        limits = self._limits
        return [limits.setdefault(each.key, SharedLimit()).state(process, each, now) for each in statements]

    async def close(self) -> None:
        """There is nothing to close."""
