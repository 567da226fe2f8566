"""One key's, or one tenant's limits where several processes share them. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.leased_window import LeasedWindow
from gateway.quota.limit_state import (
    LEAST_WAIT_S,
    MOST_WAIT_S,
    NO_BUDGETS,
    NO_END,
    Limit,
    LimitRefusal,
    LimitState,
    ReservedShare,
    longest,
)
from gateway.quota.pools import EngineLink, Pool
from gateway.quota.spending import Amounts, Spending
from gateway.quota.stock_pools import BudgetPeriod, BudgetPool, PermitPool
from gateway.storage.usage import DailySpending

Lacking = list[tuple[Pool, float]]
"""Pools of which a lease is to be asked for, and of how much."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What all shared limits of a process have in common. ``clock`` gives seconds, ``wall`` Unix time."""

    link: EngineLink
    clock: Callable[[], float]
    wall: Callable[[], float]
    spending: Spending


class SharedLimitState(LimitState):
    """As :class:`gateway.quota.limit_state.LimitState`, of leases. Ask :meth:`lacking` first, and have leased
    what it says; then everything goes on without waiting."""

    def __init__(self, whose: str, tenant: str, scope: str, parts: SharedParts) -> None:
        """``scope`` names the key or tenant in all processes."""
        super().__init__(whose, tenant)
        self._scope, self._parts = scope, parts
        self._permits: PermitPool | None = None
        self._budget_pools: list[tuple[Limit, str, bool, BudgetPool]] = []

    def limit(self, rates: Rates, budgets: Budgets = NO_BUDGETS) -> None:
        """See :class:`LimitState`; limits count from the next lease on."""
        before = self.requests, self.tokens
        super().limit(rates, budgets)
        self.requests = self._leased("rpm", before[0], rates.rpm)
        self.tokens = self._leased("tpm", before[1], rates.tpm)
        most = rates.concurrency
        if most is None:
            self._permits = None
        elif self._permits is None:
            self._permits = PermitPool(
                f"{self._scope}|concurrency", most, self._parts.link, lambda: self.at_once
            )
        else:
            self._permits.most = most
        pools = {limit: pool for limit, _, _, pool in self._budget_pools}
        self._budget_pools = []
        for limit, amount, of_month, most_spent in self.budgets:
            pool = pools.get(limit) or self._budget_pool(amount, of_month, most_spent)
            pool.change(most_spent)
            self._budget_pools.append((limit, amount, of_month, pool))

    def _leased(self, name: str, before: object, limit: int | None) -> LeasedWindow | None:
        if limit is None:
            return None
        if not isinstance(before, LeasedWindow):
            return LeasedWindow(f"{self._scope}|{name}", limit, self._parts.link)
        before.change(limit)
        return before

    def _budget_pool(self, amount: str, of_month: bool, most: float) -> BudgetPool:
        parts, tenant = self._parts, self._tenant

        def period() -> BudgetPeriod:
            spending, wall_s = parts.spending, parts.wall()
            spending.of(tenant, wall_s)  # takes up a new day
            end_s = spending.month_ends_s if of_month else spending.day_ends_s
            return BudgetPeriod(spending.month if of_month else spending.day, end_s - wall_s)

        def spent() -> float:
            return float(getattr(parts.spending.of(tenant, parts.wall())[of_month], amount))

        def stored(rows: Iterable[DailySpending], first_day: str) -> float:
            last = first_day[:7] if of_month else first_day
            mine = [each for each in rows if each.tenant == tenant and each.day.startswith(last)]
            column = "cost" if amount == "money" else amount
            return float(sum(getattr(each, column) for each in mine))

        name = f"{self._scope}|{amount}|{'month' if of_month else 'day'}"
        return BudgetPool(
            name, most, parts.link, period, spent, lambda: float(getattr(self.reserved, amount)), stored
        )

    # --- What has to be leased ---

    def lacking_arrival(self, now: float) -> Lacking:
        """For one more request at once."""
        permits = self._permits
        return [(permits, 1.0)] if permits is not None and permits.lacks(1.0, now) else []

    def lacking(self, need: Amounts, now: float) -> Lacking:
        """For a request that needs so much, beside its place among those at once."""
        found: Lacking = []
        for window, amount in ((self.requests, 1), (self.tokens, need.tokens)):
            if isinstance(window, LeasedWindow) and window.lacks(amount, now):
                found.append((window, float(amount)))
        for _, name, _, pool in self._budget_pools:
            wanted = float(getattr(need, name))
            if pool.lacks(wanted, now):
                found.append((pool, wanted))
        return found

    # --- As any limits ---

    @property
    def idle(self) -> bool:
        """See :class:`LimitState`."""
        return super().idle and not any(pool.in_use for _, _, _, pool in self._budget_pools)

    def left(self, spending: Spending, wall_s: float) -> Amounts:
        """See :class:`LimitState`; for all processes, as far as the engine has said."""
        left, now = Amounts(NO_END, float("inf"), float("inf")), self._parts.clock()
        for _, amount, _, pool in self._budget_pools:
            rest = pool.left(now)
            if rest < getattr(left, amount):
                setattr(left, amount, int(rest) if amount == "tokens" else rest)
        return left

    def refusal(self, need: Amounts, now: float, spending: Spending, wall_s: float) -> LimitRefusal | None:
        """See :class:`LimitState`."""
        found = [*self._rate_refusals(need, now), *self._budget_refusals(need, spending, wall_s)]
        return longest(found) if found else None

    def _budget_refusals(self, need: Amounts, spending: Spending, wall_s: float) -> list[LimitRefusal]:
        return list(self._unleased(need, spending, wall_s))

    def _unleased(self, need: Amounts, spending: Spending, wall_s: float) -> Iterator[LimitRefusal]:
        now = self._parts.clock()
        for limit, amount, of_month, pool in self._budget_pools:
            needed = float(getattr(need, amount))
            if pool.has(needed, now):
                continue
            used, share = pool.whole - pool.left(now), None
            wait_s: float | None = pool.refused_wait_s(now)
            if used + needed > pool.whole or used >= pool.whole:  # it is spent, and not only out of reach
                end_s = spending.month_ends_s if of_month else spending.day_ends_s
                wait_s = None if needed > pool.whole else max(1.0, end_s - wall_s)
            elif pool.link.away_s is not None or pool.link.local(now):
                share = max(0.0, pool.available(now))
            passing = pool.fits_beside_spent(needed)
            yield LimitRefusal(limit, self.whose, pool.whole, used, needed, wait_s, share, passing)

    def concurrency_refusal(self) -> LimitRefusal | None:
        """See :class:`LimitState`."""
        permits, now = self._permits, self._parts.clock()
        if permits is None or permits.has(self.at_once + 1.0, now):
            return None
        most = permits.most
        wait_s = min(max(self._hold_s / most, LEAST_WAIT_S), MOST_WAIT_S)
        if permits.link.local(now):
            share = permits.link.share(int(most))
            return LimitRefusal(Limit.CONCURRENCY, self.whose, most, self.at_once, 1, wait_s, share)
        used = max(float(self.at_once), min(most, permits.seen_used))
        return LimitRefusal(Limit.CONCURRENCY, self.whose, most, used, 1, wait_s)

    def take(self, need: Amounts, now: float) -> ReservedShare:
        """See :class:`LimitState`."""
        share = super().take(need, now)
        self._touch(now)
        return share

    def give_back(
        self, share: ReservedShare, need: Amounts, tokens: int, now: float, *, counts: bool
    ) -> None:
        """See :class:`LimitState`."""
        super().give_back(share, need, tokens, now, counts=counts)
        self._touch(now)

    def _touch(self, now: float) -> None:
        if self._permits is not None:
            self._permits.touch(now)
        for _, _, _, pool in self._budget_pools:
            pool.touch(now)
