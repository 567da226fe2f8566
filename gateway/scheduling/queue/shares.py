"""Limits tenants to a share of the queue's places. Pure."""

from collections import Counter
from collections.abc import Mapping


class QueueShares:
    """Counts the requests that wait of tenants with a share."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._waiting: Counter[tuple[str, str]] = Counter()
        self.any = False
        """Whether a tenant has one."""

    def set(self, shares: Mapping[str, float]) -> None:
        """Shares by tenant, from now on. Those that wait already count only if they were counted when
        they came."""
        self._shares = dict(shares)
        self.any = bool(shares)

    def entered(self, tenant: str, model: str) -> bool:
        """A request waits; whether it is counted, and :meth:`left` is to be told of it."""
        if tenant not in self._shares:
            return False
        self._waiting[tenant, ""] += 1
        self._waiting[tenant, model] += 1
        return True

    def left(self, tenant: str, model: str) -> None:
        """A request that was counted waits no more."""
        for place in ((tenant, ""), (tenant, model)):
            self._waiting[place] -= 1
            if not self._waiting[place]:
                del self._waiting[place]

    def most(self, tenant: str, places: int) -> int:
        """How many of ``places`` the tenant may take: at least one."""
        return max(1, int(places * self._shares.get(tenant, 1.0)))

    def full(self, tenant: str, model: str, of_model: int, in_all: int) -> bool:
        """Whether the tenant uses its whole share, of the places for ``model`` or of all."""
        if tenant not in self._shares:
            return False
        return self._waiting[tenant, model] >= self.most(tenant, of_model) or (
            self._waiting[tenant, ""] >= self.most(tenant, in_all)
        )
