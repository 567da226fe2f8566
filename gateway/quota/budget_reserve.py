"""The part of every budget that is kept in the SQL store, for when the shared store of limits is away or has
granted all of its own part.

A budget L is divided for good: the shared store grants L - R of it, the SQL store R, a quarter. Neither
grants more than its part, whatever it hears of the other, so no more than L is ever granted: not while some
gateways reach one of them and some the other, not when either comes back, and not when the shared store has
lost everything, because then it begins with all that the usage table has. What was spent of R counts at both
then, so that up to R of the budget cannot be had in that period. Nothing is carried over from one to the
other, so there is nothing to agree on at the moment of a change.

What a process spends counts at one of them:

- The SQL store debits *before* use: a grant is leased, then stated as spent, and only then used. It is never
  given back, so a process that ends takes the rest of its last chunk with it: the budget is then used less.
- The shared store is told what was spent beyond what the SQL store has debited (:meth:`BudgetPool._charge`).
- What runs at the loss of the shared store is held by its lease, which every process states again before
  anybody is granted more.
"""

import asyncio
from collections.abc import Callable

import structlog

from gateway.quota.pools import STOCK_TTL_S
from gateway.quota.stock_pools import BudgetPool
from gateway.storage.leases.rules import EngineAway, LeaseEngine, LeaseGrant, LeaseStatement

_log = structlog.get_logger(__name__)

RESERVE_SHARE = 0.25
"""Of each budget."""

PATIENCE_S = 0.5
"""How long one request waits for a part of it."""

AWAY_S = 1.0
"""The store is not asked again for so long after it did not answer."""


class BudgetReserve:
    """Leases from the SQL store for one process. Belongs to the event loop's thread."""

    def __init__(self, engine: LeaseEngine, process: str, clock: Callable[[], float]) -> None:
        """``process`` is a name that no other process has had or will have; ``clock`` gives seconds."""
        self._engine, self._process, self._clock = engine, process, clock
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._away_until_s = float("-inf")
        self._away = False
        self._sequence = 0

    async def obtain(self, pool: BudgetPool, amount: float) -> None:
        """Have what ``pool`` lacks of ``amount`` debited, if there is so much. What is on its way when the
        patience of a request ends is for the next one."""
        if self._clock() < self._away_until_s:
            return
        task = asyncio.ensure_future(self._obtain(pool, amount))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=PATIENCE_S)

    async def close(self) -> None:
        """Wait for what is on its way, and close all connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.close()

    async def _obtain(self, pool: BudgetPool, amount: float) -> None:
        async with self._one_at_a_time:
            now = self._clock()
            missing = amount - pool.available(now)
            if missing <= 0 or now < self._away_until_s:
                return
            try:
                await self._debit(pool, missing, now)
            except EngineAway as error:
                self._away_until_s = self._clock() + AWAY_S
                if not self._away:
                    _log.warning("budget_reserve_away", engine=self._engine.name, reason=str(error))
                self._away = True
            else:
                self._away = False

    async def _debit(self, pool: BudgetPool, missing: float, now: float) -> None:
        """Lease it, state it as spent, and let the pool use it. Raises EngineAway: then it is not used."""
        date = pool.date
        leased = await self._state(pool, pool.debited, need=missing)
        if pool.date != date:  # a statement would be of the new period, whose reserve it would take
            return
        pool.reserve_used, pool.reserve_date = leased.used, date
        if leased.granted <= 0:
            pool.reserve_refused_s = now
            return
        spent = pool.debited + leased.granted
        stated = await self._state(pool, spent)
        if pool.date != date:
            return
        pool.debited, pool.reserve_used = spent, stated.used
        if stated.used <= pool.reserve and self._clock() < now + STOCK_TTL_S:
            pool.credit += leased.granted

    async def _state(self, pool: BudgetPool, spent: float, need: float = 0.0) -> LeaseGrant:
        self._sequence += 1
        statement = LeaseStatement(
            f"reserve|{pool.key}",
            pool.reserve,
            0.0,
            STOCK_TTL_S,
            self._sequence,
            need=need,
            least=need,
            chunk=pool.chunk_of(pool.reserve),
            spent=spent,
            acknowledged=pool.debited,
            seed=0.0,
            lasts_s=pool.lasts_s,
        )
        (grant,) = await self._engine.exchange(self._process, [statement])
        return grant
