"""Has pools state what they have and lease more, through the one connection to the engine.

One task owns the engine's connection and makes all statements. It is never cancelled while it waits for an
answer: what a cancelled command is answered would be taken for the next one's. Requests wait as long as an
answer of such an engine may take; then it counts as away until it answers, and nobody waits.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

import structlog

from gateway.observability.gauges import Family
from gateway.quota.budget_reserve import RESERVE_SHARE, BudgetReserve
from gateway.quota.pools import EngineLink, Pool, ProcessCount
from gateway.quota.shared_state import Lacking
from gateway.quota.stock_pools import LEAST_SHARE, BudgetPool
from gateway.storage.errors import StateError
from gateway.storage.leases.rules import EngineAway, EngineForgot, LeaseEngine
from gateway.storage.usage import DailySpending
from shared.process.event_loop import wait_to_wake

_log = structlog.get_logger(__name__)

AWAY_S = 0.25
"""An engine that has not answered for so long is away, and shares hold. Until then it is late: a request for
which nothing is leased waits for it, so that nothing is admitted twice where only this process was slow. One
whose connection breaks is away at once."""

STORE_PATIENCE_S = 1.0
"""For the store, which is read once for each budget that the engine does not know."""

TICK_S = 0.125
"""Between two looks for what pools have to say, while any has."""

PROBE_S = 1.0
"""Between two questions whether the engine is there, while nothing else is said; at most, while it is not."""

FIRST_PROBE_S = 0.05

REJOIN_S = 2.0
"""How long shares hold at most once the engine is back."""

MOST_STATEMENTS = 256
"""In one exchange."""

LOOP_STEPS = 8
"""Of the event loop, in which an answer that has come reaches its pool."""


class LeaseClient:
    """The engine, as pools and requests see it. Belongs to the event loop's thread."""

    def __init__(
        self,
        engine: LeaseEngine,
        process: str,
        processes: ProcessCount,
        clock: Callable[[], float],
        spent: Callable[[str], Sequence[DailySpending]],
        reserve: BudgetReserve | None = None,
    ) -> None:
        """``process`` is a name that no other process has had or will have. ``spent`` reads from the store,
        in any thread, what was spent from a day on; it may raise StateError. ``clock`` gives seconds. With a
        ``reserve`` a part of each budget is there."""
        self.link = EngineLink(processes, self._activate)
        self.link.reserve_share = 0.0 if reserve is None else RESERVE_SHARE
        self._reserve = reserve
        self._engine = engine
        self._process = process
        self._clock = clock
        self._spent = spent
        self._active: dict[Pool, None] = {}
        self._known: WeakSet[Pool] = WeakSet()
        """All pools that ever had something to say, to be asked again when the engine is back."""
        self._waiters: dict[asyncio.Future[None], Sequence[Pool]] = {}
        """Those who wait for the next answer, or the next in which it is about all of their pools."""
        self._wake = asyncio.Event()
        self._sent_s: float | None = None
        self._reading_store = False
        self._probe_s = PROBE_S
        self._heard_s = clock()
        self._stopping = False
        self._forgotten = False
        """The engine has lost what was stated, so all processes are to state it before it is believed."""
        self.exchanges = self.statements = self.times_away = 0

    # --- For requests ---

    async def obtain(self, lacking: Lacking) -> None:
        """Have what is lacking leased, as far as there is any; return when the engine has answered, or is
        away. What a budget lacks then comes from the reserve, if there is one."""
        reserve = self._reserve
        if reserve is None:
            await self._obtain_leases(lacking)
            return
        now = self._clock()
        leased = [
            (pool, amount)
            for pool, amount in lacking
            if not isinstance(pool, BudgetPool) or pool.lacks_lease(amount, now)
        ]
        if leased:
            await self._obtain_leases(leased)
        for pool, amount in lacking:
            if isinstance(pool, BudgetPool) and not self._stopping:
                amount = amount or pool.whole * LEAST_SHARE
                if not pool.has(amount, self._clock()) and amount <= pool.whole:
                    await reserve.obtain(pool, amount)

    async def _obtain_leases(self, lacking: Lacking) -> None:
        if self.link.away_s is not None or self._stopping:
            return
        await self._ask(lacking)
        now = self._clock()
        if self.link.late(now) and not all(pool.has(amount, now) for pool, amount in lacking):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = ()
            await self._answered(waiter, self.link.shares_from_s - now)
        now = self._clock()
        if any(pool.lacks(amount, now) for pool, amount in lacking):
            await self._ask(lacking)  # the answer that came late was to what had been asked before

    async def _ask(self, lacking: Lacking) -> None:
        """Ask for it, and wait for an answer as long as that may take."""
        for pool, amount in lacking:
            pool.ask(amount)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = [pool for pool, _ in lacking]
        self._wake.set()
        await self._answered(waiter, self._engine.patience_s)

    async def _answered(self, waiter: "asyncio.Future[None]", seconds: float) -> None:
        """Wait until the engine has answered, is away, or has taken so long."""
        timer = asyncio.get_running_loop().call_later(seconds, self._late, waiter, LOOP_STEPS)
        try:
            await waiter
        finally:
            timer.cancel()

    def _late(self, waiter: "asyncio.Future[None]", steps: int) -> None:
        """An answer is overdue, unless it has come while this process was busy: then its way through the
        event loop takes some steps."""
        loop = asyncio.get_running_loop()
        if waiter.done():
            return
        if steps:
            loop.call_soon(self._late, waiter, steps - 1)
        elif self._reading_store:
            loop.call_later(STORE_PATIENCE_S, self._release, [waiter])
        else:
            if self._sent_s is not None and self._clock() - self._sent_s >= self._engine.patience_s:
                self._lost("no answer in time", self._sent_s + max(AWAY_S, self._engine.patience_s))
            self._release([waiter])

    def _release(self, waiters: Iterable["asyncio.Future[None]"]) -> None:
        for each in waiters:
            if not each.done():
                each.set_result(None)

    def _activate(self, pool: Pool) -> None:
        if pool not in self._active:
            if not self._active:
                self._wake.set()
            self._active[pool] = None
            self._known.add(pool)

    # --- The task that owns the connection ---

    async def run(self) -> None:
        """Runs until :meth:`stop`; then gives back what is leased. Not to be cancelled."""
        while not self._stopping:
            await self._pause()
            await self.exchange()
        for pool in list(self._known):
            pool.give_back()
            pool.restate()
        for _ in range(0, len(self._active), MOST_STATEMENTS):
            if self.link.away_s is None:
                await self.exchange()
        self._release(self._waiters)
        await self._engine.close()
        if self._reserve is not None:
            await self._reserve.close()

    def stop(self) -> None:
        """Nothing more is to be leased."""
        self._stopping = True
        self._wake.set()

    async def _pause(self) -> None:
        """Until there is something to say, or it is time to look."""
        seconds = TICK_S if self._active and self.link.away_s is None else self._probe_s
        await wait_to_wake(self._wake, seconds)

    async def exchange(self) -> None:
        """Make the statements that are due, and take up what is granted."""
        sent_s = self._clock()
        for pool in [each for each in self._active if each.finished]:
            del self._active[pool]
        due = [] if self.link.away_s is not None else [each for each in self._active if each.due(sent_s)]
        if len(due) > MOST_STATEMENTS:
            due = sorted(due, key=lambda each: not each.asks)[:MOST_STATEMENTS]
        if not due and self.link.away_s is None and sent_s < self._heard_s + self._probe_s:
            return
        waiters, self._waiters = self._waiters, {}
        self._sent_s = sent_s
        try:
            grants = await self._engine.exchange(self._process, [each.statement(sent_s) for each in due])
        except EngineAway as error:
            self._sent_s = None
            self._forgotten = self._forgotten or isinstance(error, EngineForgot)
            self._lost(str(error), self._clock())
            self._release(waiters)
            self._probe_s = min(PROBE_S, max(FIRST_PROBE_S, 2 * self._probe_s))
            return
        self._sent_s, self.link.heard = None, True
        now = self._heard_s = self._clock()
        self.exchanges += 1
        self.statements += len(due)
        for pool, grant in zip(due, grants, strict=True):
            pool.granted(grant, sent_s, now)
        if self.link.away_s is not None:
            self._back(now)
        unseeded = [pool for pool in due if isinstance(pool, BudgetPool) and not pool.seeded]
        if not unseeded:
            kept = {each: pools for each, pools in waiters.items() if any(pool.asks for pool in pools)}
        else:
            kept = waiters if await self._seed(unseeded) else {}
        self._release(each for each in waiters if each not in kept)
        if kept:
            self._waiters = kept | self._waiters
            self._wake.set()

    async def _seed(self, pools: list[BudgetPool]) -> bool:
        """Read what was spent of budgets from the store. Whether it could be."""
        self._reading_store = True
        try:
            first_day = min(pool.date for pool in pools)
            rows = await asyncio.to_thread(self._spent, first_day)
        except StateError as error:
            _log.error("budget_not_read", error=str(error))
            return False
        finally:
            self._reading_store = False
        for pool in pools:
            pool.seed_from(rows)
        return True

    # --- Away, and back ---

    def _lost(self, reason: str, shares_from_s: float) -> None:
        if self.link.away_s is not None:
            self.link.shares_from_s = min(self.link.shares_from_s, shares_from_s)
            return
        self.link.shares_from_s = shares_from_s
        self.link.away_s = self._clock()
        self._probe_s = FIRST_PROBE_S
        self.times_away += 1
        _log.warning("shared_limits_away", engine=self._engine.name, reason=reason)
        waiters, self._waiters = self._waiters, {}
        self._release(waiters)

    def _back(self, now: float) -> None:
        assert self.link.away_s is not None
        away_for_s = now - self.link.away_s
        if self._forgotten:  # whoever has not noticed yet does within PROBE_S
            self.link.rejoins_s = now + REJOIN_S
            self._forgotten = False
        elif now >= self.link.shares_from_s:  # some may have taken from their shares
            self.link.rejoins_s = now + min(REJOIN_S, 0.25 + away_for_s)
        self.link.away_s = None
        self._probe_s = PROBE_S
        _log.info("shared_limits_back", engine=self._engine.name, away_s=round(away_for_s, 3))
        for pool in list(self._known):
            pool.drop_needs()
            if pool.in_use:
                pool.restate()
        waiters, self._waiters = self._waiters, {}
        self._release(waiters)  # what they asked for is dropped, and they ask again
        self._wake.set()

    def describe(self) -> dict[str, str | bool]:
        """Where limits are kept together, without a password, and whether it answers, for operators."""
        return {"store": self._engine.name, "reachable": self.link.away_s is None}

    def figures(self) -> list[Family]:
        """For metrics."""
        up = float(self.link.away_s is None)
        return [
            Family("shared_limits_up", "Whether the engine of shared limits answers.", [], {(): up}),
            Family(
                "shared_limits_exchanges",
                "Round trips to the engine of shared limits.",
                [],
                {(): self.exchanges},
                counter=True,
            ),
            Family(
                "shared_limits_statements",
                "Statements made to the engine of shared limits.",
                [],
                {(): self.statements},
                counter=True,
            ),
            Family(
                "shared_limits_lost",
                "How often the engine of shared limits went away.",
                [],
                {(): self.times_away},
                counter=True,
            ),
        ]
