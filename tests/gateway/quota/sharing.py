"""Processes that share limits in one engine, on a clock under the test's control."""

import asyncio
from collections.abc import Callable

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.budget_reserve import BudgetReserve
from gateway.quota.lease_client import LeaseClient
from gateway.quota.limit_state import NO_BUDGETS, LimitRefusal, Reservation, reserve
from gateway.quota.pools import StaticProcessCount
from gateway.quota.shared_state import SharedLimitState, SharedParts
from gateway.quota.spending import Amounts, Spending
from gateway.storage import DailySpending
from gateway.storage.leases.memory import MemoryLeaseEngine
from gateway.storage.leases.rules import EngineAway, EngineForgot, LeaseEngine, LeaseGrant, LeaseStatement
from tests.support.clock import ManualClock

MIDNIGHT_S = 1_795_219_200.0
"""2026-11-21, 00:00 UTC."""


NO_RATES = Rates()


class FailingEngine(MemoryLeaseEngine):
    """One that a test takes away, and makes forget."""

    away = False
    calls = 0

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._known: set[str] = set()
        self._untold: set[str] = set()

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        self.calls += 1
        if self.away:
            raise EngineAway("the test says so")
        self._known.add(process)
        grants = await super().exchange(process, statements)
        if process in self._untold:
            self._untold.discard(process)
            raise EngineForgot("the test says so")
        return grants

    def forget(self) -> None:
        """Whoever was heard before learns it at its next exchange."""
        self._limits.clear()
        self._untold = set(self._known)


class Sharing:
    """One process: its client, and one key or tenant with limits."""

    def __init__(
        self,
        engine: LeaseEngine,
        clock: Callable[[], float],
        name: str,
        stored: list[DailySpending] | None = None,
        reserve: LeaseEngine | None = None,
    ) -> None:
        self.clock = clock
        self.stored = [] if stored is None else stored
        kept = None if reserve is None else BudgetReserve(reserve, name, clock)
        processes = StaticProcessCount(2, 1)
        self.client = LeaseClient(engine, name, processes, clock, lambda since: self.stored, kept)
        self.spending = Spending(self.wall())
        parts = SharedParts(self.client.link, clock, self.wall, self.spending)
        self.state = SharedLimitState("tenant 'acme'", "acme", "tenant:acme", parts)

    def wall(self) -> float:
        return MIDNIGHT_S + self.clock()

    def limit(self, rates: Rates = NO_RATES, budgets: Budgets = NO_BUDGETS) -> None:
        self.state.limit(rates, budgets)

    async def lease(self, need: Amounts) -> None:
        """What a request does before it reserves."""
        now = self.clock()
        lacking = self.state.lacking_arrival(now) + self.state.lacking(need, now)
        if lacking:
            waiting = asyncio.ensure_future(self.client.obtain(lacking))
            for _ in range(4):
                await asyncio.sleep(0)
                await self.client.exchange()
                if waiting.done():
                    break
            await waiting

    async def ask(self, tokens: int = 1, gpu_s: float = 0.0) -> Reservation | LimitRefusal:
        need = Amounts(tokens, gpu_s)
        await self.lease(need)
        return reserve((self.state,), need, self.clock(), self.spending, self.wall())

    async def admitted(self, tokens: int = 1) -> bool:
        return isinstance(await self.ask(tokens), Reservation)


def pair(engine: MemoryLeaseEngine, clock: ManualClock, rates: Rates) -> tuple[Sharing, Sharing]:
    both = Sharing(engine, clock, "a"), Sharing(engine, clock, "b")
    for each in both:
        each.limit(rates)
    return both
