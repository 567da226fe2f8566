"""A budget is never exceeded, whichever of its two engines is there, and all that they have can be spent."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.quotas import Budgets
from gateway.domain.store_address import StoreAddress
from gateway.quota.limit_state import LimitRefusal, Reservation
from gateway.storage import DailySpending
from gateway.storage.leases.rules import LeaseEngine, LeaseGrant, LeaseStatement
from gateway.storage.leases.sql import SqlLeaseEngine
from gateway.storage.leases.valkey import ValkeyLeaseEngine
from tests.gateway.quota.sharing import FailingEngine, Sharing
from tests.gateway.quota.spent import spend
from tests.support.clock import ManualClock
from tests.support.redis_server import own_redis_server

BUDGET = 400
BUDGETS = Budgets(tokens_per_day=BUDGET)
DAY = "2026-11-21"


class Site:
    """Processes that share a budget, and what was spent by all."""

    def __init__(
        self,
        clock: Callable[[], float],
        wait: Callable[[float], Awaitable[None]],
        engines: Sequence[tuple[LeaseEngine, LeaseEngine]],
    ) -> None:
        """``engines``: of each process, the shared one and that of the reserve."""
        self._clock, self._wait = clock, wait
        self.stored: list[DailySpending] = []
        self.spent = 0
        self.running: list[tuple[Sharing, Reservation, int]] = []
        self.processes = [
            Sharing(shared, clock, f"{uuid.uuid4()}", self.stored, reserve) for shared, reserve in engines
        ]
        for each in self.processes:
            each.limit(budgets=BUDGETS)

    async def ask(self, which: int, tokens: int) -> bool:
        outcome = await self.processes[which].ask(tokens)
        if isinstance(outcome, Reservation):
            self.running.append((self.processes[which], outcome, tokens))
        return isinstance(outcome, Reservation)

    def finish(self, which: int, used: float = 1.0) -> None:
        sharing, reservation, tokens = self.running.pop(which)
        amount = int(tokens * used)
        self.spent += amount
        self.stored[:] = [DailySpending("acme", DAY, self.spent, 0.0, 0.0)]
        spend(sharing.spending, "acme", amount, 0.0, 0.0, sharing.wall())
        reservation.settle(amount, self._clock())

    async def pass_time(self, seconds: float) -> None:
        """As the owner of each connection has it: it looks several times a second."""
        end_s = self._clock() + seconds
        while self._clock() < end_s:
            await self._wait(min(0.6, end_s - self._clock()))
            for each in self.processes:
                await each.client.exchange()

    async def all_that_is_left(self) -> int:
        """Admitted by all in turns until nobody admits a token any more, and finished."""
        admitted, idle = 0, 0
        while idle < 2 * len(self.processes):
            for which in range(len(self.processes)):
                found = await self.ask(which, 5)
                admitted += 5 * found
                idle = 0 if found else idle + 1
                if found:
                    self.finish(-1)
            await self.pass_time(0.2)
        return admitted

    @property
    def used(self) -> int:
        return self.spent + sum(tokens for _, _, tokens in self.running)


class FakeSite(Site):
    """On engines that a test takes away, and a clock that it moves."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.shared, self.reserve = FailingEngine(clock), FailingEngine(clock)

        async def wait(seconds: float) -> None:
            clock.advance(seconds)

        super().__init__(clock, wait, [(self.shared, self.reserve)] * 3)


@pytest.fixture
def site(clock: ManualClock) -> FakeSite:
    return FakeSite(clock)


class BudgetMachine(RuleBasedStateMachine):
    """Both engines come and go, and the shared one forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.site = self.runner.run(self._make())

    async def _make(self) -> FakeSite:
        return FakeSite(ManualClock(1000.0))

    def teardown(self) -> None:
        self.runner.close()

    @rule(which=st.integers(0, 2), tokens=st.integers(1, 150))
    def request(self, which: int, tokens: int) -> None:
        self.runner.run(self.site.ask(which, tokens))

    @rule(which=st.integers(0, 100), share=st.sampled_from([0.0, 0.5, 1.0]))
    def finish(self, which: int, share: float) -> None:
        if self.site.running:
            self.site.finish(which % len(self.site.running), share)

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.0, 5.0, 16.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(self.site.pass_time(seconds))

    @rule()
    def the_shared_store_goes_or_comes(self) -> None:
        self.site.shared.away = not self.site.shared.away

    @rule()
    def the_shared_store_is_emptied(self) -> None:
        if self.site.shared.away:
            self.site.shared.forget()

    @rule()
    def the_sql_store_goes_or_comes(self) -> None:
        self.site.reserve.away = not self.site.reserve.away

    @invariant()
    def no_more_is_spent_and_reserved_than_the_budget(self) -> None:
        assert self.site.used <= BUDGET


TestBudgets = BudgetMachine.TestCase
TestBudgets.settings = settings(max_examples=60, stateful_step_count=40)


async def test_all_of_a_budget_is_had_while_both_engines_are_there(site: FakeSite) -> None:
    await site.all_that_is_left()
    assert BUDGET - 20 <= site.used <= BUDGET


async def test_one_request_may_need_all_that_both_engines_have_left(site: FakeSite) -> None:
    assert await site.ask(0, 10)
    site.finish(-1)
    await site.pass_time(6.0)
    assert await site.ask(1, BUDGET - 10)


async def test_what_others_hold_of_both_engines_passes_and_what_they_were_debited_does_not(
    site: FakeSite,
) -> None:
    assert await site.ask(0, BUDGET - 50)
    refusal = await site.processes[1].ask(100)
    assert isinstance(refusal, LimitRefusal)
    assert refusal.passing
    debited = sum(pool.debited for *_, pool in site.processes[0].state._budget_pools)
    assert debited >= 50
    too_much = await site.processes[1].ask(int(BUDGET - debited) + 1)
    assert isinstance(too_much, LimitRefusal)
    assert not too_much.passing, "the other one never gives back what it was debited"
    site.finish(-1, 0.1)
    await site.pass_time(3.0)
    assert await site.ask(1, 100)


async def test_a_budget_leases_from_the_sql_store_while_the_shared_one_is_away(site: FakeSite) -> None:
    assert await site.ask(0, 60)
    site.shared.away = True
    await site.pass_time(20.0)
    assert await site.ask(1, 30)
    assert await site.ask(2, 30)
    site.finish(1)
    assert await site.all_that_is_left() > 0
    during = site.used
    assert during <= BUDGET

    site.shared.away = False
    await site.pass_time(5.0)
    await site.all_that_is_left()
    assert during < site.used <= BUDGET


async def test_a_shared_store_that_comes_back_empty_lets_nobody_spend_it_again(site: FakeSite) -> None:
    while site.used < 200 and await site.ask(0, 20):
        site.finish(-1)
    site.shared.away = True
    await site.pass_time(20.0)
    await site.all_that_is_left()
    site.shared.forget()
    site.shared.away = False
    await site.pass_time(5.0)
    await site.all_that_is_left()
    assert site.used <= BUDGET


@pytest.mark.parametrize("of_reserve", [0, 30])
async def test_after_a_loss_no_more_is_missing_than_was_spent_of_the_reserve(
    site: FakeSite, of_reserve: int
) -> None:
    while site.used < 100 and await site.ask(0, 20):
        site.finish(-1)
    site.shared.away = True
    await site.pass_time(20.0)  # what was leased is over
    before = site.used
    while site.used < before + of_reserve and await site.ask(0, 10):
        site.finish(-1)
    debited = sum(pool.debited for each in site.processes for *_, pool in each.state._budget_pools)
    assert debited >= of_reserve
    site.shared.forget()
    site.shared.away = False
    await site.pass_time(5.0)
    await site.all_that_is_left()
    assert BUDGET - debited - 5 < site.used <= BUDGET


async def test_a_budget_is_closed_while_both_are_away_and_says_what_it_has(site: FakeSite) -> None:
    site.shared.away = site.reserve.away = True
    refusal = await site.processes[0].ask(1)
    assert isinstance(refusal, LimitRefusal)
    assert (refusal.most, refusal.share) == (BUDGET, 0.0)
    site.reserve.away = False
    await site.pass_time(2.0)
    assert await site.ask(0, 1)


async def test_a_new_day_has_a_new_reserve(site: FakeSite) -> None:
    site.shared.away = True
    first = await site.all_that_is_left()
    assert 80 <= first <= 100
    await site.pass_time(0.2)
    site.clock.advance(86_400.0)
    assert 80 <= await site.all_that_is_left() <= 100


async def test_an_answer_that_comes_after_midnight_takes_nothing_of_the_new_reserve(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.shared.away = True
    await site.pass_time(0.2)
    site.clock.advance(86_399.0 - site.clock())
    exchange, asking = site.reserve.exchange, site.processes[0]

    async def answered_after_midnight(process: str, said: list[LeaseStatement]) -> list[LeaseGrant]:
        grants = await exchange(process, said)
        monkeypatch.undo()
        site.clock.advance(10.0)
        asking.state.left(asking.spending, asking.wall())  # somebody looks at the new day
        return grants

    monkeypatch.setattr(site.reserve, "exchange", answered_after_midnight)
    assert not await site.ask(0, 60)
    assert 80 <= await site.all_that_is_left() <= 100


async def test_a_budget_holds_over_a_redis_server_that_is_killed_and_started_again(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    """It comes back with nothing stored."""
    began_s = time.monotonic()
    with own_redis_server(tmp_path) as server:
        engines = [
            (ValkeyLeaseEngine(server.url), SqlLeaseEngine(postgres_address.url, durable=True))
            for _ in range(2)
        ]
        site = Site(lambda: 1000.0 + time.monotonic() - began_s, asyncio.sleep, engines)
        async with asyncio.timeout(60):
            for n in range(20):
                while not await site.ask(n % 2, 5):  # an engine that answers late is away for a while
                    await site.pass_time(0.05)
                site.finish(-1)
        server.kill()
        await site.pass_time(0.6)
        while_away = await site.all_that_is_left()
        assert while_away >= BUDGET // 4 - 10
        assert site.used < BUDGET

        server.start()
        await site.pass_time(4.0)
        assert all(each.client.link.away_s is None for each in site.processes)
        assert await site.all_that_is_left() > 0
        assert site.used <= BUDGET
        for each in site.processes:
            each.client.stop()
            await each.client.run()
