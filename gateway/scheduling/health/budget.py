"""Budgets for extra work, so that retries never become the outage (SCHEDULING §6).

Each tenant has its own: one whose requests make engines fail uses up nobody else's.
"""

from collections import OrderedDict

from gateway.scheduling.health.window import WINDOW_S, CountWindow

MOST_TENANTS = 4096
"""Tenants remembered; one not seen for longest begins anew."""


class RetryBudget:
    """A share of a tenant's requests of the last 10 s, and a few a second, so that small sites may retry.

    Figures and rule as in Finagle's RetryBudget: 20 % of requests, at least 10 a second, credit that expires
    after 10 s. The tenants of the last 10 s have these ten a second in equal shares.
    """

    def __init__(self, share: float = 0.2, least_per_s: float = 10.0) -> None:
        self._share = share
        self._least = least_per_s * WINDOW_S
        self._tenants = OrderedDict[str, tuple[CountWindow, float]]()
        """With when they were seen last, in the order of that."""

    def deposit(self, tenant: str, now: float) -> None:
        """A request of ``tenant`` came."""
        self._window(tenant, now).add(self._share, 0.0, now)

    def take(self, tenant: str, now: float) -> bool:
        """Spend one retry of ``tenant``. False when it has none left."""
        window = self._window(tenant, now)
        deposited, spent = window.sums(now)
        least = max(1.0, self._least / len(self._tenants))
        if spent + 1.0 > deposited + least + 1e-9:
            return False
        window.add(0.0, 1.0, now)
        return True

    def _window(self, tenant: str, now: float) -> CountWindow:
        window = self._tenants.pop(tenant, (None, 0.0))[0] or CountWindow()
        self._tenants[tenant] = window, now
        while True:
            longest, (_, seen_s) = next(iter(self._tenants.items()))
            if now - seen_s <= WINDOW_S and len(self._tenants) <= MOST_TENANTS:
                return window
            del self._tenants[longest]


class HedgeBudget:
    """A share of each tenant's requests, saved up to ``most``, and one to begin with: on a quiet site second
    copies are rare, not none."""

    def __init__(self, share: float = 0.02, most: float = 10.0) -> None:
        self._share = share
        self._most = most
        self._saved = OrderedDict[str, float]()

    def deposit(self, tenant: str) -> None:
        """A request of ``tenant`` came."""
        self._keep(tenant, min(self._saved.pop(tenant, self._first) + self._share, self._most))

    def take(self, tenant: str) -> bool:
        """Spend one copy of ``tenant``. False when it has none saved up."""
        saved = self._saved.pop(tenant, self._first)
        enough = saved >= 1.0 - 1e-9
        self._keep(tenant, saved - 1.0 if enough else saved)
        return enough

    @property
    def _first(self) -> float:
        return 1.0 if self._share > 0.0 else 0.0

    def _keep(self, tenant: str, saved: float) -> None:
        self._saved[tenant] = saved
        if len(self._saved) > MOST_TENANTS:
            self._saved.popitem(last=False)
