"""Extra attempts: how many are allowed, so that retries never become the outage, and when a second copy is
worth it (SCHEDULING §6).

Each tenant has its own budgets: one whose requests make engines fail uses up nobody else's.

A second copy is worth it after the 95th percentile of the latest answers, per model and route. The 256 latest
answers are kept and sorted when somebody asks, at most once for every eight new ones: 256 floats are 2 KiB,
sorting them takes some ten microseconds, and unlike a streaming estimator (P²) they forget what was.
"""

from collections import OrderedDict, deque

from gateway.scheduling.recent import WINDOW_S, CountWindow, RecentDict

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
        self._first = 1.0 if share > 0.0 else 0.0
        self._saved = RecentDict[str, float](MOST_TENANTS)

    def deposit(self, tenant: str) -> None:
        """A request of ``tenant`` came."""
        self._saved[tenant] = min(self._saved.get(tenant, self._first) + self._share, self._most)

    def take(self, tenant: str) -> bool:
        """Spend one copy of ``tenant``. False when it has none saved up."""
        saved = self._saved.get(tenant, self._first)
        enough = saved >= 1.0 - 1e-9
        self._saved[tenant] = saved - 1.0 if enough else saved
        return enough


LATEST = 256
LEAST_SAMPLES = 20
QUANTILE = 0.95
MOST_KEYS = 1024
FRESH = 8
"""The quantile is computed anew after this many new answers."""


class _Latest:
    __slots__ = ("_cached_s", "_new", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=LATEST)
        self._cached_s = 0.0
        self._new = FRESH

    def note(self, time_s: float) -> None:
        self._times.append(time_s)
        self._new += 1

    def quantile_s(self) -> float | None:
        if len(self._times) < LEAST_SAMPLES:
            return None
        if self._new >= FRESH:
            self._new = 0
            ordered = sorted(self._times)
            self._cached_s = ordered[min(int(QUANTILE * len(ordered)), len(ordered) - 1)]
        return self._cached_s


class AnswerTimes:
    """Answer times of the ``MOST_KEYS`` pairs of model and route that answered last."""

    def __init__(self) -> None:
        self._latest = RecentDict[tuple[str, str], _Latest](MOST_KEYS)

    def note(self, model: str, route: str, time_s: float) -> None:
        """An answer took ``time_s``."""
        self._latest.renewed((model, route), _Latest).note(time_s)

    def quantile_s(self, model: str, route: str) -> float | None:
        """What 95 % of the latest answers took at most; None before there were 20."""
        latest = self._latest.get((model, route))
        return None if latest is None else latest.quantile_s()
