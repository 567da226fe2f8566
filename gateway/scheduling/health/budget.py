"""Extra attempts: how many are allowed, so that retries never become the outage, and when a second copy is
worth it.

Each tenant has its own budgets: one whose requests make engines fail uses up nobody else's.

A second copy is worth it after the 95th percentile of the latest answers, per model and route. The 256 latest
answers are kept and sorted when somebody asks, at most once for every eight new ones: 256 floats are 2 KiB,
sorting them takes some ten microseconds, and unlike a streaming estimator (P²) they forget what was.
"""

from collections import OrderedDict, defaultdict, deque

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
        self._tenants = OrderedDict[str, _Deposits]()
        """In the order in which they were seen last."""

    def deposit(self, tenant: str, now: float, requests: int = 1) -> None:
        """So many requests of ``tenant`` came."""
        self._seen(tenant, now).window.add(requests * self._share, 0.0, now)

    def take(self, tenant: str, now: float) -> bool:
        """Spend one retry of ``tenant``. False when it has none left."""
        window = self._seen(tenant, now).window
        deposited, spent = window.sums(now)
        least = max(1.0, self._least / len(self._tenants))
        if spent + 1.0 > deposited + least + 1e-9:
            return False
        window.add(0.0, 1.0, now)
        return True

    def _seen(self, tenant: str, now: float) -> "_Deposits":
        """A tenant's, who is there now; those who were not for long are forgotten."""
        deposits = self._tenants.pop(tenant, None) or _Deposits()
        deposits.seen_s = now
        self._tenants[tenant] = deposits
        while True:
            longest, first = next(iter(self._tenants.items()))
            if now - first.seen_s <= WINDOW_S and len(self._tenants) <= MOST_TENANTS:
                return deposits
            del self._tenants[longest]


class _Deposits:
    """One tenant's of late."""

    __slots__ = ("seen_s", "window")

    def __init__(self) -> None:
        self.window = CountWindow()
        self.seen_s = 0.0


class HedgeBudget:
    """A share of each tenant's requests, saved up to ``most``, and one to begin with: on a quiet site second
    copies are rare, not none."""

    def __init__(self, share: float = 0.02, most: float = 10.0) -> None:
        self._share = share
        self._most = most
        self._first = 1.0 if share > 0.0 else 0.0
        self._saved = RecentDict[str, float](MOST_TENANTS)

    def deposit(self, tenant: str, requests: int = 1) -> None:
        """So many requests of ``tenant`` came."""
        saved = self._saved.get(tenant, self._first) + requests * self._share
        self._saved[tenant] = saved if saved < self._most else self._most

    def take(self, tenant: str) -> bool:
        """Spend one copy of ``tenant``. False when it has none saved up."""
        saved = self._saved.get(tenant, self._first)
        enough = saved >= 1.0 - 1e-9
        self._saved[tenant] = saved - 1.0 if enough else saved
        return enough


DEPOSIT_S = 1.0
"""Requests of so long are deposited together."""


class AttemptBudgets:
    """Both budgets of all tenants. Requests are counted as they come, and deposited together, but before
    anything is spent."""

    def __init__(self, retries: RetryBudget, second_copies: HedgeBudget) -> None:
        self._retries = retries
        self._second_copies = second_copies
        self._came = defaultdict[str, int](int)
        self._came_s = self._deposit_s = 0.0
        """When the latest of them came, and when they are to be deposited."""

    def came(self, tenant: str, now: float) -> None:
        """A request of ``tenant`` came."""
        if now >= self._deposit_s:
            self._deposit()
            self._deposit_s = now + DEPOSIT_S
        self._came_s = now
        self._came[tenant] += 1

    def take_retry(self, tenant: str, now: float) -> bool:
        """:meth:`RetryBudget.take`."""
        self._deposit()
        return self._retries.take(tenant, now)

    def take_second_copy(self, tenant: str) -> bool:
        """:meth:`HedgeBudget.take`."""
        self._deposit()
        return self._second_copies.take(tenant)

    def _deposit(self) -> None:
        for tenant, requests in self._came.items():
            self._retries.deposit(tenant, self._came_s, requests)
            self._second_copies.deposit(tenant, requests)
        self._came.clear()


LATEST = 256
LEAST_SAMPLES = 20
QUANTILE = 0.95
MOST_KEYS = 1024
FRESH = 8
"""The quantile is computed anew after this many new answers."""


class _Latest:
    __slots__ = ("_cached_s", "new", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=LATEST)
        self.new = FRESH
        """Times that the quantile does not know yet."""
        self._cached_s = 0.0

    def quantile_s(self) -> float | None:
        if len(self.times) < LEAST_SAMPLES:
            return None
        if self.new >= FRESH:
            self.new = 0
            ordered = sorted(self.times)
            self._cached_s = ordered[min(int(QUANTILE * len(ordered)), len(ordered) - 1)]
        return self._cached_s


class AnswerTimes:
    """Answer times of the ``MOST_KEYS`` pairs of model and route that answered last."""

    def __init__(self) -> None:
        self._latest = RecentDict[tuple[str, str], _Latest](MOST_KEYS)

    def note(self, model: str, route: str, time_s: float) -> None:
        """An answer took ``time_s``."""
        key = model, route
        latest = self._latest.get(key)
        if latest is None:
            latest = self._latest.renewed(key, _Latest)
        else:
            self._latest.move_to_end(key)
        latest.times.append(time_s)
        latest.new += 1

    def quantile_s(self, model: str, route: str) -> float | None:
        """What 95 % of the latest answers took at most; None before there were 20."""
        latest = self._latest.get((model, route))
        return None if latest is None else latest.quantile_s()
