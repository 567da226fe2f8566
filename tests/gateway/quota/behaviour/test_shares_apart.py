"""What processes that share limits admit while what they share is away, and after it is back."""

import asyncio

import pytest

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.limit_state import LimitRefusal, Reservation
from gateway.quota.limits import refusal_error
from gateway.quota.spending import Amounts
from gateway.storage.leases.memory import MemoryLeaseEngine
from tests.gateway.quota.sharing import FailingEngine, Sharing, pair
from tests.support.clock import ManualClock


async def test_shares_hold_while_the_engine_is_away_and_sum_to_the_limit(clock: ManualClock) -> None:
    engine = FailingEngine(clock)
    engine.away = True
    a, b = pair(engine, clock, Rates(rpm=10, concurrency=100))
    assert sum([await each.admitted() for _ in range(10) for each in (a, b)]) == 10


async def test_what_all_used_before_the_loss_still_counts(clock: ManualClock) -> None:
    engine = FailingEngine(clock)
    a, b = pair(engine, clock, Rates(rpm=10))
    assert [await a.admitted() for _ in range(8)] == [True] * 8
    await b.ask()
    engine.away = True
    assert sum([await each.admitted() for _ in range(10) for each in (a, b)]) <= 1


async def test_an_engine_that_forgot_everything_is_told_again(clock: ManualClock) -> None:
    engine = FailingEngine(clock)
    a, b = pair(engine, clock, Rates(rpm=10))
    assert sum([await each.admitted() for _ in range(3) for each in (a, b)]) == 6
    engine.away = True
    clock.advance(1.5)
    for each in (a, b):
        await each.client.exchange()
    engine.forget()
    engine.away = False
    clock.advance(1.0)
    assert sum([await each.admitted() for _ in range(10) for each in (a, b)]) <= 4
    for _ in range(8):
        clock.advance(0.5)
        for each in (a, b):
            await each.client.exchange()
    assert a.client.link.away_s is None
    assert sum([await each.admitted() for _ in range(10) for each in (a, b)]) <= 4
    clock.advance(60.0)
    assert sum([await each.admitted() for _ in range(10) for each in (a, b)]) == 10


async def test_what_was_asked_before_the_loss_is_not_leased_from_an_engine_that_knows_too_little(
    clock: ManualClock,
) -> None:
    engine = FailingEngine(clock)
    a, b = pair(engine, clock, Rates(rpm=2))
    assert await b.admitted()
    assert await b.admitted()
    assert not await a.admitted()
    clock.advance(0.2)
    asking = asyncio.ensure_future(a.client.obtain(a.state.lacking(Amounts(1), clock())))
    await asyncio.sleep(0)
    a.client._lost("as if its connection broke", clock())
    await asking
    engine.forget()
    clock.advance(1.0)
    await a.client.exchange()
    await a.client.exchange()
    assert a.client.link.away_s is None
    assert not await a.admitted()


async def refused_while_the_engine_is_away(
    clock: ManualClock,
) -> tuple[FailingEngine, Sharing, LimitRefusal]:
    """A budget that is not spent, and what a request is told that would use it just then."""
    engine = FailingEngine(clock)
    sharing = Sharing(engine, clock, "a")
    sharing.limit(budgets=Budgets(tokens_per_day=100))
    engine.away = True
    refusal = await sharing.ask(1)
    assert isinstance(refusal, LimitRefusal)
    return engine, sharing, refusal


async def test_budgets_are_closed_while_the_engine_is_away(clock: ManualClock) -> None:
    engine, sharing, refusal = await refused_while_the_engine_is_away(clock)
    assert refusal.wait_s == pytest.approx(0.1)
    engine.away = False
    clock.advance(1.0)
    await sharing.client.exchange()
    clock.advance(2.0)
    assert await sharing.admitted(1)


async def test_a_refusal_says_what_all_processes_use_and_while_they_cannot_share_what_this_one_may(
    clock: ManualClock,
) -> None:
    engine = FailingEngine(clock)
    a, b = pair(engine, clock, Rates(rpm=10, concurrency=100))
    assert sum([await a.admitted() for _ in range(10)]) == 10
    refusal = await b.ask()
    assert isinstance(refusal, LimitRefusal)
    assert (refusal.used, refusal.share) == (10, None)
    assert "limit 10, used 10," in str(refusal_error(refusal))

    engine.away = True
    clock.advance(61.0)
    await b.client.exchange()
    assert sum([await b.admitted() for _ in range(10)]) == 5
    refusal = await b.ask()
    assert isinstance(refusal, LimitRefusal)
    assert (refusal.used, refusal.share) == (5, 5)
    said = "limit 10 (of which this gateway has 5 while gateways cannot share it), used 5,"
    assert said in str(refusal_error(refusal))


async def test_a_budget_that_is_only_out_of_reach_is_not_said_to_be_spent(clock: ManualClock) -> None:
    _, _, refusal = await refused_while_the_engine_is_away(clock)
    said = str(refusal_error(refusal))
    assert said.startswith("What all gateways have spent of a budget cannot be looked up just now")
    assert "only 0 left of its part of" in said
    assert refusal.passing, "a job waits for the engine"


async def test_headers_tell_what_all_processes_have_left(clock: ManualClock) -> None:
    a, b = pair(MemoryLeaseEngine(clock), clock, Rates(rpm=10))
    for _ in range(6):
        await a.ask()
    await b.ask()
    assert b.state.requests is not None
    assert b.state.requests.remaining(clock()) == 3
    assert 55 < b.state.requests.reset_s(clock()) <= 61


async def test_an_engine_that_is_emptied_while_it_answers_lets_nobody_have_the_limit_again() -> None:
    clock = ManualClock(1000.0)
    engine = FailingEngine(clock)
    used, idle = (Sharing(engine, clock, name) for name in ("used", "idle"))
    for sharing in (used, idle):
        sharing.limit(Rates(rpm=40))
    admitted = sum([await used.admitted() for _ in range(30)]) + int(await idle.admitted())
    assert admitted == 31
    engine.forget()
    for step in range(80):
        admitted += await idle.admitted()
        clock.advance(0.1)
        if step % 5 == 0:  # a process that has nothing to say asks once a second whether the engine is there
            await used.client.exchange()
        await idle.client.exchange()
    assert 31 < admitted <= 40


async def test_a_process_that_was_paused_beyond_its_lease_admits_nothing_on_what_it_held() -> None:
    clock = ManualClock(1000.0)
    engine = FailingEngine(clock)
    paused, other = (Sharing(engine, clock, name) for name in ("paused", "other"))
    for sharing in (paused, other):
        sharing.limit(Rates(concurrency=3))
    running = [await paused.ask() for _ in range(3)]
    for _ in range(40):  # the other one goes on meanwhile
        clock.advance(0.5)
        await other.client.exchange()
    others = [await other.ask() for _ in range(4)]
    assert [isinstance(each, Reservation) for each in others] == [True] * 3 + [False]
    assert paused.state.concurrency_refusal() is not None, "its lease is over, and it has asked nobody yet"
    for reservation in running:
        assert isinstance(await paused.ask(), LimitRefusal), "its own are still running, and the other's"
        assert isinstance(reservation, Reservation)
        reservation.settle(1, clock.now_s)
    assert isinstance(await paused.ask(), LimitRefusal), "the other has all of it"
    assert isinstance(others[0], Reservation)
    others[0].settle(1, clock.now_s)
    for _ in range(12):
        clock.advance(0.25)
        await other.client.exchange()
    assert isinstance(await paused.ask(), Reservation)
