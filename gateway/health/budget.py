"""Budgets for extra work, so that retries never become the outage (SCHEDULING §6)."""

from gateway.health.window import WINDOW_S, Window


class RetryBudget:
    """A share of the requests of the last 10 s, and a few a second so that small sites may retry at all.

    Figures and rule as in Finagle's RetryBudget: 20 % of requests, at least 10 a second, credit that expires
    after 10 s.
    """

    def __init__(self, share: float = 0.2, least_per_s: float = 10.0) -> None:
        self._share = share
        self._least = least_per_s * WINDOW_S
        self._window = Window()

    def deposit(self, now: float) -> None:
        """A request came."""
        self._window.add(self._share, 0.0, now)

    def take(self, now: float) -> bool:
        """Spend one retry. False when there is none left."""
        deposited, spent = self._window.sums(now)
        if spent + 1.0 > deposited + self._least + 1e-9:
            return False
        self._window.add(0.0, 1.0, now)
        return True


class HedgeBudget:
    """A share of all requests, saved up to ``most``: on a quiet site second copies are rare, not none."""

    def __init__(self, share: float = 0.02, most: float = 10.0) -> None:
        self._share = share
        self._most = most
        self._saved = 0.0

    def deposit(self) -> None:
        """A request came."""
        self._saved = min(self._saved + self._share, self._most)

    def take(self) -> bool:
        """Spend one copy. False when there is none saved up."""
        if self._saved < 1.0 - 1e-9:
            return False
        self._saved -= 1.0
        return True
