"""The task that owns the engine's connection, with engines that answer late, or never."""

import asyncio
import time
from collections.abc import Callable

import pytest
import structlog

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.lease_client import MOST_STATEMENTS, LeaseClient
from gateway.quota.limit_state import Reservation, reserve
from gateway.quota.pools import StaticProcessCount
from gateway.quota.shared_state import SharedLimitState, SharedParts
from gateway.quota.spending import Amounts, Spending
from gateway.storage.errors import StateError
from gateway.storage.leases.memory import MemoryLeaseEngine
from gateway.storage.leases.rules import LeaseGrant, LeaseStatement
from tests.gateway.quota.sharing import Sharing


class SlowEngine(MemoryLeaseEngine):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.clock: Callable[[], float] = time.monotonic
        self.open = asyncio.Event()
        self.open.set()
        self.cancelled = self.entered = 0

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        self.entered += 1
        assert self.entered == 1, "two commands at once on one connection"
        try:
            await self.open.wait()
            return await super().exchange(process, statements)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.entered -= 1


async def stopped(sharing: Sharing, task: "asyncio.Task[None]") -> None:
    sharing.client.stop()
    await task


async def lease(sharing: Sharing) -> None:
    lacking = sharing.state.lacking(Amounts(1), sharing.clock())
    if lacking:
        await sharing.client.obtain(lacking)


def families(sharing: Sharing) -> dict[str, float]:
    return {each.name: each.values[()] for each in sharing.client.figures()}


async def test_requests_wait_no_longer_than_patience_and_then_not_at_all() -> None:
    engine = SlowEngine()
    sharing = Sharing(engine, time.monotonic, "a")
    sharing.limit(Rates(rpm=1000))
    task = asyncio.create_task(sharing.client.run())
    engine.open.clear()
    with structlog.testing.capture_logs() as logs:
        await lease(sharing)
        assert sharing.client.link.away_s is not None
        assert sharing.state.lacking(Amounts(1), sharing.clock()) == []
        assert families(sharing)["shared_limits_up"] == 0
        assert sharing.client.describe() == {"store": engine.name, "reachable": False}
        engine.open.set()
        await until(lambda: sharing.client.link.away_s is None)
    assert [each["event"] for each in logs] == ["shared_limits_away", "shared_limits_back"]
    assert sharing.client.describe() == {"store": engine.name, "reachable": True}
    assert families(sharing) | {"shared_limits_exchanges": 0, "shared_limits_statements": 0} == {
        "shared_limits_up": 1,
        "shared_limits_exchanges": 0,
        "shared_limits_statements": 0,
        "shared_limits_lost": 1,
    }
    await stopped(sharing, task)


async def test_a_client_that_leaves_cancels_no_command() -> None:
    engine = SlowEngine()
    sharing = Sharing(engine, time.monotonic, "a")
    sharing.limit(Rates(rpm=1000))
    task = asyncio.create_task(sharing.client.run())
    engine.open.clear()
    request = asyncio.create_task(lease(sharing))
    await until(lambda: engine.entered > 0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    engine.open.set()
    await lease(sharing)
    assert engine.cancelled == 0
    await stopped(sharing, task)


async def test_many_requests_share_one_round_trip() -> None:
    engine = SlowEngine()
    sharing = Sharing(engine, time.monotonic, "a")
    sharing.limit(Rates(rpm=20, tpm=1000), Budgets(tokens_per_day=1000))
    task = asyncio.create_task(sharing.client.run())

    async def one() -> bool:
        return isinstance(await _ask(sharing), Reservation)

    assert await asyncio.gather(*[one() for _ in range(20)]) == [True] * 20
    assert sharing.client.exchanges <= 6
    await stopped(sharing, task)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing tells a test
            await asyncio.sleep(0.001)


async def _ask(sharing: Sharing) -> object:
    await lease(sharing)
    return reserve((sharing.state,), Amounts(1), sharing.clock(), sharing.spending, sharing.wall())


async def test_what_a_late_answer_did_not_hold_is_asked_for_again() -> None:
    engine = SlowEngine()
    sharing = Sharing(engine, time.monotonic, "a")
    sharing.limit(Rates(rpm=4))  # so few are leased one by one
    task = asyncio.create_task(sharing.client.run())
    engine.open.clear()
    asked_first = asyncio.create_task(_ask(sharing))
    await until(lambda: engine.entered > 0)
    asked_while_it_was_on_its_way = asyncio.create_task(_ask(sharing))
    await until(lambda: sharing.client.link.away_s is not None)
    engine.open.set()
    assert isinstance(await asked_first, Reservation)
    assert isinstance(await asked_while_it_was_on_its_way, Reservation)
    await stopped(sharing, task)


async def test_what_is_leased_is_given_back_at_the_end() -> None:
    engine = SlowEngine()
    sharing = Sharing(engine, time.monotonic, "a")
    sharing.limit(Rates(rpm=1000))
    task = asyncio.create_task(sharing.client.run())
    assert isinstance(await _ask(sharing), Reservation)
    await stopped(sharing, task)
    other = Sharing(engine, time.monotonic, "b")
    other.limit(Rates(rpm=1000))
    assert await other.admitted()
    assert other.state.requests is not None
    assert other.state.requests.remaining(time.monotonic()) == 998


async def test_a_budget_whose_store_cannot_be_read_stays_closed() -> None:
    sharing = Sharing(SlowEngine(), time.monotonic, "a")

    def broken(since: str) -> list[object]:
        raise StateError("no disk")

    sharing.client._spent = broken  # type: ignore[assignment]
    sharing.limit(budgets=Budgets(tokens_per_day=1000))
    task = asyncio.create_task(sharing.client.run())
    assert not isinstance(await _ask(sharing), Reservation)
    await stopped(sharing, task)


class Crowd:
    """Many tenants, each with limits of its own, of one process."""

    def __init__(self, engine: "SlowEngine", name: str, tenants: int, rates: Rates, budgets: Budgets) -> None:
        engine.patience_s = 60.0  # none is late here, however busy the machine
        self.clock = engine.clock
        self.client = LeaseClient(engine, name, StaticProcessCount(2, 1), self.clock, lambda since: [])
        self.spending = Spending(time.time())
        parts = SharedParts(self.client.link, self.clock, time.time, self.spending)
        self.states = [SharedLimitState(f"{n}", f"{n}", f"tenant:{n}", parts) for n in range(tenants)]
        for state in self.states:
            state.limit(rates, budgets)

    async def reserved(self, state: SharedLimitState, tokens: int = 10) -> Reservation | None:
        """A tenant's place for one request; None: it was refused."""
        if lacking := state.lacking_arrival(self.clock()):
            await self.client.obtain(lacking)
        if state.concurrency_refusal():
            return None
        if lacking := state.lacking(Amounts(tokens), self.clock()):
            await self.client.obtain(lacking)
        found = reserve((state,), Amounts(tokens), self.clock(), self.spending, time.time())
        return found if isinstance(found, Reservation) else None


@pytest.mark.parametrize("tenants", [MOST_STATEMENTS // 3, MOST_STATEMENTS, 3 * MOST_STATEMENTS])
async def test_all_get_their_first_lease_however_many_come_at_once(tenants: int) -> None:
    rates = Rates(rpm=600, tpm=100_000, concurrency=10)
    crowd = Crowd(SlowEngine(), "one", tenants, rates, Budgets())
    task = asyncio.create_task(crowd.client.run())
    found = await asyncio.gather(*map(crowd.reserved, crowd.states))
    assert sum(each is not None for each in found) == tenants
    crowd.client.stop()
    await task


async def test_all_that_was_spent_is_stated_when_a_process_stops() -> None:
    engine, budgets, tokens = SlowEngine(), Budgets(tokens_per_day=100_000), 60_000
    one = Crowd(engine, "one", MOST_STATEMENTS * 3 // 2, Rates(), budgets)
    task = asyncio.create_task(one.client.run())
    places = [await one.reserved(state, tokens) for state in one.states]
    for state, place in zip(one.states, places, strict=True):
        assert place is not None
        for sums in one.spending.sums(state._tenant):
            sums.tokens += tokens
        place.settle(tokens, one.clock())
    one.client.stop()
    await task
    engine.clock = engine._clock = lambda: time.monotonic() + 100.0  # what it held is free again
    other = Crowd(engine, "other", len(one.states), Rates(), budgets)
    task = asyncio.create_task(other.client.run())
    found = [await other.reserved(state, tokens) for state in other.states]
    assert not any(found), "the rest of nobody's budget is so large"
    other.client.stop()
    await task
