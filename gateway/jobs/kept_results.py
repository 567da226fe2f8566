"""How much the results of tenants' jobs have, which bounds what may be submitted."""

import asyncio
from collections.abc import Callable

from gateway.storage.jobs import JobStore, ResultsFull

KNOWN_S = 10.0
"""So long an answer of the store is good for: it adds up the results of all the tenant's jobs."""


class KeptResults:
    """Belongs to the event loop's thread."""

    def __init__(self, jobs: JobStore, most_bytes: int | None, clock: Callable[[], float]) -> None:
        """``most_bytes``: of each tenant; None: there is no bound. ``clock`` is in seconds."""
        self._jobs = jobs
        self._most_bytes = most_bytes
        self._clock = clock
        self._full: dict[str, tuple[float, ResultsFull | None]] = {}

    async def full(self, tenant: str) -> ResultsFull | None:
        """The error of a tenant that may submit nothing more; None: it may. Raises StateError."""
        most = self._most_bytes
        if most is None:
            return None
        known = self._full.get(tenant)
        if known is not None and 0.0 <= self._clock() - known[0] < KNOWN_S:
            return known[1]
        kept = await asyncio.to_thread(self._jobs.kept_bytes, tenant)
        found = None
        if kept >= most:
            found = ResultsFull(
                f"the results of the jobs of {tenant} have {kept} bytes and may have {most}: wait until some "
                "are no longer kept, or ask the gateway's operator for more (jobs.result_bytes)"
            )
        now_s = self._clock()
        fresh = {name: each for name, each in self._full.items() if now_s - each[0] < KNOWN_S}
        self._full = {**fresh, tenant: (now_s, found)}
        return found

    async def check(self, tenant: str) -> None:
        """Raises ResultsFull where nothing more may be submitted, and StateError."""
        found = await self.full(tenant)
        if found is not None:
            raise found
