"""Tenants of whose budget other requests have reserved what a job needs. Pure.

Each of their jobs would be claimed and refused in turn, however many they are. So none is claimed for as long
as the one that was refused waits, or until a job of the tenant ends here: what it had reserved is free then.
"""

from collections.abc import Callable

from gateway.domain.errors import QuotaExceeded
from gateway.jobs.runs import Publish, Verdict


class BudgetWaits:
    """Of one process. Belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._until_s: dict[str, float] = {}

    @property
    def tenants(self) -> frozenset[str]:
        """Those of which no job is to be claimed now."""
        now = self._clock()
        self._until_s = {tenant: until_s for tenant, until_s in self._until_s.items() if until_s > now}
        return frozenset(self._until_s)

    def note(self, tenant: str, result: Verdict) -> None:
        """A run of a job of ``tenant`` has ended."""
        if isinstance(result, Publish):
            self._until_s.pop(tenant, None)
        elif not result.counts and result.why == QuotaExceeded.code:
            self._until_s[tenant] = self._clock() + result.after_s
