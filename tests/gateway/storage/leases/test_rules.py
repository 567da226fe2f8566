"""Nothing is used beyond a limit, whatever several processes do and whichever of them die."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.storage.leases.rules import LeaseGrant, LeaseStatement, SharedLimit

LIMIT = 20.0
TTL_S = 5.0
PROCESSES = 3


@dataclass
class Sharer:
    """One process that leases and uses, as simply as it can be done."""

    name: str
    held: float = 0.0
    ends_s: float = 0.0
    sequence: int = 0
    uses: list[tuple[float, float]] = field(default_factory=list)

    def statement(self, window_s: float, need: float, now: float) -> LeaseStatement:
        self.sequence += 1
        keep = self.held if now < self.ends_s else 0.0
        uses = tuple((now - at_s, amount) for at_s, amount in self.uses)
        return LeaseStatement(
            "limit", LIMIT, window_s, TTL_S, self.sequence, keep, need, min(need, 1.0), 3.0, uses
        )


class RateMachine(RuleBasedStateMachine):
    """Of a rate. The model: all that was used in the last 60 s, by the living and the dead."""

    window_s = 60.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.engine = SharedLimit()
        self.sharers = [Sharer(f"p{number}.0") for number in range(PROCESSES)]
        self.used: list[tuple[float, float]] = []
        self.deaths = 0

    @rule(seconds=st.sampled_from([0.125, 1.0, 4.0, 5.0, 30.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def exchange(self, sharer: Sharer, need: float) -> LeaseGrant:
        statement = sharer.statement(self.window_s, need, self.now)
        grant = self.engine.state(sharer.name, statement, self.now)
        return grant

    @rule(number=st.integers(0, PROCESSES - 1), need=st.integers(0, 9).map(float))
    def one_leases(self, number: int, need: float) -> None:
        sharer = self.sharers[number]
        keep = sharer.held if self.now < sharer.ends_s else 0.0
        grant = self.exchange(sharer, need)
        sharer.held, sharer.ends_s = keep + grant.granted, self.now + TTL_S

    @rule(number=st.integers(0, PROCESSES - 1), need=st.integers(0, 9).map(float))
    def an_answer_is_lost(self, number: int, need: float) -> None:
        self.exchange(self.sharers[number], need)

    @rule(number=st.integers(0, PROCESSES - 1), amount=st.integers(1, 9).map(float))
    def one_uses(self, number: int, amount: float) -> None:
        sharer = self.sharers[number]
        if self.now < sharer.ends_s and amount <= sharer.held:
            sharer.held -= amount
            sharer.uses.append((self.now, amount))
            self.used.append((self.now, amount))

    @rule(number=st.integers(0, PROCESSES - 1))
    def one_gives_back(self, number: int) -> None:
        self.sharers[number].held = 0.0
        self.exchange(self.sharers[number], 0.0)

    @rule(number=st.integers(0, PROCESSES - 1))
    def one_dies(self, number: int) -> None:
        self.deaths += 1
        self.sharers[number] = Sharer(f"p{number}.{self.deaths}")

    @invariant()
    def no_minute_has_more_than_the_limit(self) -> None:
        live = sum(amount for at_s, amount in self.used if at_s + self.window_s > self.now)
        held = sum(each.held for each in self.sharers if self.now < each.ends_s)
        assert live + held <= LIMIT

    @rule()
    def all_is_free_again_after_a_minute_and_a_lease(self) -> None:
        self.now += self.window_s + TTL_S
        grant = self.exchange(Sharer("another"), LIMIT)
        assert (grant.granted, grant.used) == (LIMIT, LIMIT)
        self.engine.state("another", LeaseStatement("limit", LIMIT, self.window_s, TTL_S, 9), self.now)


TestRates = RateMachine.TestCase
TestRates.settings = settings(max_examples=100, stateful_step_count=40)


def said(**values: Any) -> LeaseStatement:
    return LeaseStatement(
        **{"key": "k", "limit": 16.0, "window_s": 60.0, "ttl_s": 5.0, "sequence": 1, **values}
    )


def test_a_chunk_is_granted_while_half_is_left_and_exactly_the_need_after() -> None:
    limit = SharedLimit()
    assert limit.state("p", said(need=1.0, chunk=2.0), 0.0).granted == 2.0
    assert limit.state("q", said(need=1.0, chunk=2.0, uses=((0.0, 5.0),)), 0.0).granted == 2.0
    assert limit.state("r", said(need=1.0, chunk=2.0), 0.0).granted == 1.0


def test_less_than_the_least_is_not_granted_and_the_wait_is_told() -> None:
    limit = SharedLimit()
    limit.state("p", said(uses=((10.0, 8.0), (20.0, 6.0))), 100.0)
    grant = limit.state("q", said(need=4.0, least=4.0), 100.0)
    assert (grant.granted, grant.wait_s, grant.reset_s, grant.used) == (0.0, 40.0, 50.0, 14.0)
    assert limit.state("q", said(sequence=2, need=4.0, least=2.0), 100.0).granted == 2.0
    assert limit.state("q", said(sequence=3, need=17.0, least=17.0), 100.0).wait_s is None


def test_debts_are_paid_as_room_comes_and_keep_everybody_else_away_until_then() -> None:
    limit = SharedLimit()
    limit.state("p", said(uses=((0.0, 16.0),), debt=20.0), 0.0)
    assert limit.state("q", said(need=1.0, least=1.0), 59.0).granted == 0.0
    first = limit.state("p", said(sequence=2, debt=20.0), 61.0)
    assert first.paid == 16.0
    second = limit.state("p", said(sequence=3, debt=4.0, uses=((60.5, 16.0),)), 121.5)
    assert second.paid == 4.0
    assert limit.state("q", said(sequence=2, need=12.0, least=12.0), 121.5).granted == 12.0


def test_two_debtors_do_not_keep_each_other_from_paying() -> None:
    limit = SharedLimit()
    limit.state("p", said(debt=16.0, uses=((0.0, 16.0),)), 0.0)
    limit.state("q", said(debt=16.0), 0.0)
    assert limit.state("q", said(sequence=2, debt=16.0), 60.0).paid == 16.0


def test_a_budget_wants_a_seed_once_and_never_adds_it() -> None:
    limit = SharedLimit()
    day: dict[str, Any] = {"window_s": 0.0, "lasts_s": 1000.0}
    assert not limit.state("p", said(need=1.0, least=1.0, **day), 0.0).seeded
    assert limit.records == {}
    assert limit.state("p", said(need=1.0, least=1.0, seed=10.0, **day), 0.0).used == 11.0
    assert limit.state("q", said(need=1.0, least=1.0, seed=10.0, **day), 0.0).used == 12.0
    assert limit.state("r", said(need=5.0, least=5.0, seed=14.0, **day), 0.0).granted == 0.0


def test_what_a_process_spent_counts_once_however_often_it_says_so() -> None:
    limit = SharedLimit()
    day: dict[str, Any] = {"window_s": 0.0, "lasts_s": 1000.0}
    for sequence in (1, 2, 3):
        grant = limit.state("p", said(sequence=sequence, spent=5.0, seed=0.0, **day), 0.0)
    assert (grant.used, grant.spent) == (5.0, 5.0)
    later = limit.state("p", said(sequence=4, spent=6.0, acknowledged=5.0, **day), 100.0)
    assert later.used == 6.0
    others = limit.state("q", said(need=4.0, least=4.0, seed=6.0, **day), 100.0)
    assert (others.granted, others.used, others.spent) == (4.0, 10.0, 6.0), "a lease is not spent"
    assert limit.state("q", said(**day), 100.0).spent == 6.0, "nor is it where a statement was overtaken"


def test_a_lease_of_a_budget_that_is_not_renewed_ends() -> None:
    limit = SharedLimit()
    day: dict[str, Any] = {"window_s": 0.0, "lasts_s": 1000.0, "seed": 0.0}
    assert limit.state("p", said(need=16.0, least=16.0, **day), 0.0).granted == 16.0
    assert limit.state("q", said(need=16.0, least=16.0, **day), 4.9).granted == 0.0
    assert limit.state("q", said(sequence=2, need=16.0, least=16.0, **day), 5.0).granted == 16.0


def test_a_lower_limit_counts_from_the_next_lease_on() -> None:
    limit = SharedLimit()
    limit.state("p", said(uses=((0.0, 10.0),)), 0.0)
    assert limit.state("q", said(need=1.0, least=1.0, limit=10.0), 0.0).granted == 0.0
    assert limit.state("q", said(sequence=2, need=1.0, least=1.0, limit=11.0), 0.0).granted == pytest.approx(
        1.0
    )
