"""Reservations: all limits or none, settled once, conserved, and nothing held when all is quiet."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.limit_state import Limit, LimitRefusal, LimitState, Reservation, reserve, tokens_that_fit
from gateway.quota.spending import Amounts, Spending
from tests.gateway.quota.spent import spend

NOON_S = 1_795_262_400.0
"""2026-11-21, 12:00 UTC."""


def holder(
    rpm: int | None = None, tpm: int | None = None, concurrency: int | None = None, **budgets: Any
) -> LimitState:
    made = LimitState("tenant 'acme'", "acme")
    made.limit(Rates(rpm, tpm, concurrency), Budgets(**budgets))
    return made


def ask(*holders: LimitState, tokens: int = 1, now: float = 0.0, spending: Spending | None = None) -> object:
    need = Amounts(tokens, tokens / 100, tokens / 1000)
    return reserve(holders, need, now, spending or Spending(NOON_S), NOON_S)


def held(outcome: object) -> Reservation:
    assert isinstance(outcome, Reservation), outcome
    return outcome


def refused(outcome: object) -> LimitRefusal:
    assert isinstance(outcome, LimitRefusal)
    return outcome


def test_what_one_of_two_refuses_costs_the_other_nothing() -> None:
    key, tenant = holder(rpm=10), holder(tpm=5)
    assert refused(ask(key, tenant, tokens=6)).limit is Limit.TOKENS
    assert (key.running, tenant.running) == (0, 0)
    assert key.requests is not None
    assert key.requests.remaining(0.0) == 10


def test_of_several_limits_that_which_keeps_it_away_for_longest_is_told() -> None:
    key, tenant = holder(rpm=1), holder(concurrency=1)
    held(ask(key, tenant))
    refusal = refused(ask(key, tenant, now=1.0))
    assert (refusal.limit, refusal.wait_s, refusal.used, refusal.most) == (Limit.REQUESTS, 59.0, 1, 1)
    both = holder(rpm=1, tpm=100)
    held(ask(both, tokens=100)).settle(100, 0.0, counts=False)
    held(ask(both, tokens=0, now=30.0))
    refusal = refused(ask(both, tokens=50, now=31.0))
    assert (refusal.limit, refusal.wait_s) == (Limit.REQUESTS, 59.0), "tokens are there in 29 s"
    huge = holder(tpm=10, rpm=1)
    held(ask(huge))
    assert refused(ask(huge, tokens=11)).wait_s is None


def test_as_many_at_once_as_are_allowed_until_one_is_over() -> None:
    key = holder(concurrency=2)
    first, _ = held(ask(key)), held(ask(key))
    assert refused(ask(key)).limit is Limit.CONCURRENCY
    first.settle(1, 4.0)
    first.settle(1, 4.0)
    assert key.running == 1, "settled once"
    held(ask(key))


def test_a_request_that_never_began_is_none_and_one_that_failed_gives_its_tokens_back() -> None:
    key = holder(rpm=2, tpm=100)
    assert key.requests is not None
    assert key.tokens is not None
    held(ask(key, tokens=60)).settle(0, 1.0, counts=False)
    assert (key.requests.remaining(1.0), key.tokens.remaining(1.0)) == (2, 100)
    held(ask(key, tokens=60, now=1.0)).settle(5, 2.0)
    assert (key.requests.remaining(2.0), key.tokens.remaining(2.0)) == (1, 95)


@pytest.mark.parametrize(
    ("budget", "limit", "needs"),
    [
        ({"tokens_per_day": 100}, Limit.DAY_TOKENS, 100),
        ({"tokens_per_month": 150}, Limit.MONTH_TOKENS, 100),
        ({"gpu_seconds_per_day": 1.0}, Limit.DAY_GPU, 100),
        ({"gpu_seconds_per_month": 1.5}, Limit.MONTH_GPU, 100),
        ({"money_per_day": 0.1}, Limit.DAY_MONEY, 100),
        ({"money_per_month": 0.15}, Limit.MONTH_MONEY, 100),
    ],
)
def test_reservations_count_against_budgets_beside_what_is_spent(
    budget: dict[str, Any], limit: Limit, needs: int
) -> None:
    tenant, spending = holder(**budget), Spending(NOON_S)
    if "month" in limit.value:
        spending._month.sums["acme"] = Amounts(50, 0.5, 0.05)  # before today
    running = held(ask(tenant, tokens=60, spending=spending))
    refusal = refused(ask(tenant, tokens=needs - 59, spending=spending))
    assert refusal.limit is limit
    days = 9.5 if "month" in limit.value else 0.5
    assert refusal.wait_s == days * 86_400
    also = held(ask(tenant, tokens=needs - 61, spending=spending))
    for each in (running, also):
        each.settle(0, 1.0)
    assert tenant.reserved == Amounts()
    spend(spending, "acme", needs, needs / 100, needs / 1000, NOON_S)
    assert refused(ask(tenant, tokens=0, spending=spending)).limit is limit, "used up"
    spend(spending, "acme", 0, 0.0, 0.0, NOON_S + days * 86_400)
    held(reserve((tenant,), Amounts(1), 2.0, spending, NOON_S + days * 86_400))


def test_what_requests_that_run_have_reserved_of_a_budget_may_come_free() -> None:
    tenant, spending = holder(tokens_per_day=100), Spending(NOON_S)
    running = held(ask(tenant, tokens=60, spending=spending))
    assert refused(ask(tenant, tokens=50, spending=spending)).passing
    assert not refused(ask(tenant, tokens=101, spending=spending)).passing, "it never fits"
    spend(spending, "acme", 60, 0.0, 0.0, NOON_S)
    assert not refused(ask(tenant, tokens=50, spending=spending)).passing, "it lacks what is spent"
    assert refused(ask(tenant, tokens=40, spending=spending)).passing
    running.settle(0, 1.0)
    held(ask(tenant, tokens=40, spending=spending))


def test_a_budget_given_while_requests_run_is_not_given_back_what_was_never_reserved() -> None:
    tenant = holder()
    before = held(ask(tenant, tokens=60))
    tenant.limit(Rates(), Budgets(tokens_per_day=100))
    after = held(ask(tenant, tokens=70))
    before.settle(60, 1.0)
    assert tenant.reserved.tokens == 70
    after.settle(70, 2.0)


def test_a_guess_makes_no_request_impossible() -> None:
    small = holder(tpm=100)
    assert tokens_that_fit((small, holder(rpm=1)), 256, 20) == 100
    assert tokens_that_fit((small,), 80, 20) == 80
    assert tokens_that_fit((small,), 256, 120) == 120, "a prompt that is too long stays so"


class Concurrency(RuleBasedStateMachine):
    """Requests of a key and a tenant, whose estimates are exact or too high."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.key, self.tenant = holder(rpm=8, tpm=100, concurrency=3), holder(tpm=150, tokens_per_day=400)
        self.spending = Spending(NOON_S)
        self.running: list[tuple[Reservation, list[float]]] = []
        self.begun: list[list[float]] = []
        self.spent = 0

    @rule(tokens=st.integers(0, 110), through_key=st.booleans())
    def begin(self, tokens: int, through_key: bool) -> None:
        holders = (self.key, self.tenant) if through_key else (self.tenant,)
        outcome = reserve(holders, Amounts(tokens), self.now, self.spending, NOON_S)
        if isinstance(outcome, Reservation):
            request = [self.now, tokens, float(through_key)]
            self.begun.append(request)
            self.running.append((outcome, request))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), share=st.floats(0, 1), after_s=st.integers(0, 100))
    def end(self, which: int, share: float, after_s: int) -> None:
        self.now += after_s
        reservation, request = self.running.pop(which % len(self.running))
        request[1] = int(request[1] * share)
        spend(self.spending, "acme", int(request[1]), 0.0, 0.0, NOON_S)
        self.spent += int(request[1])
        reservation.settle(int(request[1]), self.now)
        reservation.settle(10**6, self.now)

    @invariant()
    def no_limit_is_overrun(self) -> None:
        lately = [each for each in self.begun if each[0] > self.now - 60]
        mine = [each for each in lately if each[2]]
        assert len(mine) <= 8
        assert sum(each[1] for each in mine) <= 100
        assert sum(each[1] for each in lately) <= 150
        assert self.key.running <= 3

    @invariant()
    def reservations_are_conserved(self) -> None:
        open_tokens = sum(int(request[1]) for _, request in self.running)
        assert self.tenant.reserved.tokens == open_tokens
        assert self.tenant.running == len(self.running)
        assert self.key.running == sum(bool(request[2]) for _, request in self.running)
        assert self.spent + open_tokens <= 400

    def teardown(self) -> None:
        while self.running:
            self.end(0, 1.0, 0)
        for each in (self.key, self.tenant):
            each.advance(self.now + 61)
            assert each.idle
            assert each.reserved == Amounts()


Concurrency.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestConcurrency = Concurrency.TestCase
