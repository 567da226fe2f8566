"""Processes that share limits never admit more than one process would."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.limit_state import Limit, LimitRefusal, Reservation
from gateway.quota.spending import Amounts
from gateway.storage import DailySpending
from gateway.storage.leases.memory import MemoryLeaseEngine
from gateway.storage.leases.rules import LeaseGrant, LeaseStatement
from tests.gateway.quota.sharing import FailingEngine, Sharing, pair
from tests.gateway.quota.spent import spend
from tests.support.clock import ManualClock

RATES = Rates(rpm=12, tpm=100, concurrency=5)
BUDGETS = Budgets(tokens_per_day=400)


class SharedLimitsMachine(RuleBasedStateMachine):
    """The model: every request that was admitted, when, and what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock(1000.0)
        self.engine = MemoryLeaseEngine(self.clock)
        self.born = 0
        self.living = [self.bear() for _ in range(3)]
        self.admitted: list[list[float]] = []
        """When, and how many tokens."""
        self.running: list[tuple[Sharing, Reservation, list[float]]] = []
        self.spent = 0

    def bear(self) -> Sharing:
        self.born += 1
        sharing = self.runner.run(self._bear(f"p{self.born}"))
        return sharing

    async def _bear(self, name: str) -> Sharing:
        sharing = Sharing(self.engine, self.clock, name)
        sharing.limit(RATES, BUDGETS)
        return sharing

    def teardown(self) -> None:
        self.runner.close()

    @rule(which=st.integers(0, 2), tokens=st.integers(1, 60))
    def request(self, which: int, tokens: int) -> None:
        sharing = self.living[which]
        outcome = self.runner.run(sharing.ask(tokens))
        if isinstance(outcome, Reservation):
            counted = [self.clock.now_s, float(tokens)]
            self.admitted.append(counted)
            self.running.append((sharing, outcome, counted))

    @rule(which=st.integers(0, 100), share=st.sampled_from([0.0, 0.5, 1.0]))
    def finish(self, which: int, share: float) -> None:
        if self.running:
            sharing, reservation, counted = self.running.pop(which % len(self.running))
            used = int(counted[1] * share)
            counted[1] = used
            self.spent += used
            spend(sharing.spending, "acme", used, 0.0, 0.0, sharing.wall())
            reservation.settle(used, self.clock.now_s)

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.0, 4.9, 14.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        """As the owner of each connection has it: it looks several times a second."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self.clock.advance(min(0.6, end_s - self.clock.now_s))
            for sharing in self.living:
                self.runner.run(sharing.client.exchange())

    @rule(which=st.integers(0, 2))
    def die(self, which: int) -> None:
        dead = self.living[which]
        self.running = [each for each in self.running if each[0] is not dead]
        self.living[which] = self.bear()

    @invariant()
    def no_minute_has_more_requests_or_tokens_than_the_limits(self) -> None:
        live = [tokens for at_s, tokens in self.admitted if at_s + 60.0 > self.clock.now_s]
        assert len(live) <= 12
        assert sum(live) <= 100

    @invariant()
    def no_more_run_at_once(self) -> None:
        assert len(self.running) <= 5

    @invariant()
    def the_budget_holds_what_was_spent_and_what_may_yet_be(self) -> None:
        assert self.spent + sum(counted[1] for _, _, counted in self.running) <= 400


TestSharedLimits = SharedLimitsMachine.TestCase
TestSharedLimits.settings = settings(max_examples=40, stateful_step_count=30)


async def test_two_processes_admit_all_of_a_limit_and_no_more(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(rpm=100))
    outcomes = [await each.admitted() for _ in range(100) for each in (a, b)]
    assert 94 <= sum(outcomes) <= 100
    clock.advance(0.6)
    for each in (a, b):
        await each.client.exchange()
    outcomes += [await each.admitted() for _ in range(10) for each in (a, b)]
    assert sum(outcomes) == 100


async def test_what_is_leased_is_used_without_asking(clock: ManualClock) -> None:
    engine = FailingEngine(clock)
    a, _ = pair(engine, clock, Rates(rpm=1600))
    assert await a.admitted()
    calls = engine.calls
    for _ in range(99):
        assert not a.state.lacking(Amounts(1), clock())
        assert await a.admitted()
    assert engine.calls == calls


async def test_a_full_minute_is_free_again_to_the_second(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(rpm=10))
    assert [await a.admitted() for _ in range(10)] == [True] * 10
    refusal = await b.ask()
    assert isinstance(refusal, LimitRefusal)
    assert refusal.wait_s is not None
    assert 59.0 <= refusal.wait_s <= 66.0
    for _ in range(50):
        clock.advance(0.2)
        await a.client.exchange()
    clock.advance(50.0)
    assert [await b.admitted() for _ in range(10)] == [True] * 10


async def test_a_lower_limit_counts_at_the_next_lease(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(rpm=10))
    assert [await a.admitted() for _ in range(5)] == [True] * 5
    for each in (a, b):
        each.limit(Rates(rpm=6))
    assert sum([await b.admitted() for _ in range(5)]) <= 1


@pytest.mark.parametrize(
    ("rates", "budgets"),
    [(Rates(rpm=100), Budgets()), (Rates(tpm=100), Budgets()), (Rates(), Budgets(tokens_per_day=100))],
)
async def test_a_limit_that_is_given_again_is_leased_at_once(
    clock: ManualClock, rates: Rates, budgets: Budgets
) -> None:
    (sharing, _) = pair(MemoryLeaseEngine(clock), clock, rates)
    for limit in (budgets, Budgets(), budgets):
        sharing.limit(rates if limit is budgets else Rates(), limit)
        for _ in range(3):
            outcome = await sharing.ask(5)
            assert isinstance(outcome, Reservation)
            outcome.settle(5, clock())
            clock.advance(1.0)
            await sharing.client.exchange()


async def test_tokens_that_were_not_used_are_for_everybody(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(tpm=100))
    outcome = await a.ask(100)
    assert isinstance(outcome, Reservation)
    assert not await b.admitted(50)
    outcome.settle(10, clock())
    clock.advance(0.3)
    await a.client.exchange()
    assert await b.admitted(80)


async def test_tokens_beyond_the_limit_are_owed_by_all(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(tpm=100))
    outcome = await a.ask(100)
    assert isinstance(outcome, Reservation)
    outcome.settle(250, clock())
    minutes = 0
    while not await b.admitted(100):
        for _ in range(60):
            clock.advance(1.0)
            await a.client.exchange()
        minutes += 1
        assert minutes < 6
    assert minutes == 3


async def test_requests_at_once_are_given_back(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(concurrency=2))
    first, second = await a.ask(), await a.ask()
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    refusal = await b.ask()
    assert isinstance(refusal, LimitRefusal)
    assert (refusal.limit, refusal.used) == (Limit.CONCURRENCY, 2)
    first.settle(1, clock())
    clock.advance(0.6)
    await a.client.exchange()
    assert await b.admitted()
    assert not await b.admitted()


async def test_a_dead_process_keeps_requests_at_once_for_its_lease_only(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(concurrency=2))
    assert await a.admitted()
    assert await a.admitted()
    clock.advance(14.9)
    assert not await b.admitted()
    clock.advance(0.2)
    assert await b.admitted()


async def test_a_budget_begins_with_what_the_store_has_and_counts_it_once(clock: ManualClock) -> None:
    engine = MemoryLeaseEngine(clock)
    stored = [
        DailySpending("acme", "2026-11-21", 70, 0.0, 0.0),
        DailySpending("other", "2026-11-21", 9, 0, 0),
    ]
    for name in ("a", "b"):
        each = Sharing(engine, clock, name, stored=stored)
        each.limit(budgets=Budgets(tokens_per_day=100))
        assert await each.admitted(15)
    refusal = await each.ask(1)
    assert isinstance(refusal, LimitRefusal)
    assert refusal.limit is Limit.DAY_TOKENS
    assert refusal.used == pytest.approx(100)
    assert refusal.passing, "15 are reserved here"


async def test_a_budget_that_is_given_again_counts_what_was_spent_without_it(clock: ManualClock) -> None:
    engine, stored = MemoryLeaseEngine(clock), [DailySpending("acme", "2026-11-21", 0, 0.0, 0.0)]
    both = [Sharing(engine, clock, name, stored=stored) for name in ("a", "b")]
    for budgets, tokens in (
        (Budgets(tokens_per_day=100), 10),
        (Budgets(), 35),
        (Budgets(tokens_per_day=100), 0),
    ):
        for each in both:
            each.limit(budgets=budgets)
            outcome = await each.ask(tokens)
            assert isinstance(outcome, Reservation)
            spend(each.spending, "acme", tokens, 0.0, 0.0, each.wall())
            outcome.settle(tokens, clock())
            stored[0] = stored[0]._replace(tokens=stored[0].tokens + tokens)
        for _ in range(60):
            clock.advance(1.0)
            for each in both:
                await each.client.exchange()
    assert not await both[0].admitted(11)
    assert await both[1].admitted(10)


async def test_what_another_process_has_reserved_of_a_budget_passes_and_what_is_spent_does_not(
    clock: ManualClock,
) -> None:
    engine = MemoryLeaseEngine(clock)
    a, b = (Sharing(engine, clock, name) for name in ("a", "b"))
    for each in (a, b):
        each.limit(budgets=Budgets(tokens_per_day=100))
    running = await a.ask(90)
    assert isinstance(running, Reservation)
    refusal = await b.ask(30)
    assert isinstance(refusal, LimitRefusal)
    assert refusal.passing, "nothing is spent yet"
    too_much = await b.ask(101)
    assert isinstance(too_much, LimitRefusal)
    assert not too_much.passing, "it never fits"

    spend(a.spending, "acme", 60, 0.0, 0.0, a.wall())
    running.settle(60, clock())
    clock.advance(1.1)
    await a.client.exchange()
    assert isinstance(await b.ask(30), Reservation)
    clock.advance(1.1)
    for each in (a, b):
        await each.client.exchange()
    refusal = await a.ask(41)
    assert isinstance(refusal, LimitRefusal)
    assert not refusal.passing, "60 are spent, and 41 do not fit beside them"
    refusal = await a.ask(40)
    assert isinstance(refusal, LimitRefusal)
    assert refusal.passing, "30 are reserved by the other one"


async def test_what_a_killed_process_had_reserved_of_a_budget_passes_with_its_lease(
    clock: ManualClock,
) -> None:
    engine = MemoryLeaseEngine(clock)
    killed, other = (Sharing(engine, clock, name) for name in ("killed", "other"))
    for each in (killed, other):
        each.limit(budgets=Budgets(tokens_per_day=100))
    assert await killed.admitted(100)
    refusal = await other.ask(100)
    assert isinstance(refusal, LimitRefusal)
    assert refusal.passing
    clock.advance(15.1)
    assert await other.admitted(100)


async def test_a_new_day_has_a_new_budget(clock: ManualClock) -> None:
    sharing = Sharing(MemoryLeaseEngine(clock), clock, "a")
    sharing.limit(budgets=Budgets(tokens_per_day=100))
    outcome = await sharing.ask(100)
    assert isinstance(outcome, Reservation)
    spend(sharing.spending, "acme", 100, 0.0, 0.0, sharing.wall())
    outcome.settle(100, clock())
    assert not await sharing.admitted(1)
    clock.advance(86_400.0)
    assert await sharing.admitted(100)


class EngineAtMidnight(MemoryLeaseEngine):
    """One whose next answer comes on another day than it was asked for."""

    midnight: Callable[[], object] | None = None

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        grants = await super().exchange(process, statements)
        midnight, self.midnight = self.midnight, None
        if midnight is not None:
            midnight()
        return grants


async def test_an_answer_that_comes_after_midnight_leases_nothing_of_the_new_day(clock: ManualClock) -> None:
    engine = EngineAtMidnight(clock)
    a, b = (Sharing(engine, clock, name) for name in ("a", "b"))
    for each in (a, b):
        each.limit(budgets=Budgets(tokens_per_day=100))
    clock.advance(86_395.0 - clock())
    outcome = await a.ask(90)
    assert isinstance(outcome, Reservation)
    spend(a.spending, "acme", 90, 0.0, 0.0, a.wall())
    outcome.settle(90, clock())
    clock.advance(1.1)

    def midnight() -> None:
        clock.advance(10.0)
        a.state.left(a.spending, a.wall())  # somebody looks at the new day

    engine.midnight = midnight
    await a.client.exchange()
    assert await b.admitted(100)
    assert not await a.admitted(1)


async def test_what_the_store_has_of_a_day_is_no_part_of_the_next_one(clock: ManualClock) -> None:
    engine = EngineAtMidnight(clock)
    stored = [DailySpending("acme", "2026-11-21", 90, 0.0, 0.0)]
    sharing = Sharing(engine, clock, "a", stored=stored)
    sharing.limit(budgets=Budgets(tokens_per_day=100))
    clock.advance(86_395.0 - clock())
    waiting = asyncio.ensure_future(sharing.client.obtain(sharing.state.lacking(Amounts(1), clock())))
    await asyncio.sleep(0)
    await sharing.client.exchange()
    clock.advance(10.0)
    while not waiting.done():
        await sharing.client.exchange()
        await asyncio.sleep(0)
    assert await sharing.admitted(100)
