"""Budgets for extra attempts, and how long answers take."""

import pytest

from gateway.scheduling.health.budget import (
    LATEST,
    MOST_KEYS,
    MOST_TENANTS,
    AnswerTimes,
    AttemptBudgets,
    HedgeBudget,
    RetryBudget,
)


def test_retries_are_a_fifth_of_requests_and_ten_a_second_in_any_case() -> None:
    budget = RetryBudget()
    assert sum(budget.take("t", 0.0) for _ in range(1000)) == 100
    for _ in range(500):
        budget.deposit("t", 5.0)
    assert sum(budget.take("t", 5.0) for _ in range(1000)) == 100
    assert sum(budget.take("t", 9.9) for _ in range(1000)) == 0
    assert sum(budget.take("t", 25.0) for _ in range(1000)) == 100, "what was long ago is forgotten"


def test_a_tenant_that_uses_up_its_retries_leaves_the_others_theirs() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.deposit("bad", 0.0)
    while budget.take("bad", 1.0):
        pass
    for _ in range(50):
        budget.deposit("good", 1.0)
    assert sum(budget.take("good", 1.0) for _ in range(1000)) == 10 + 50
    assert not budget.take("bad", 1.0)


def test_tenants_share_the_least_there_is_and_it_is_never_none() -> None:
    budget = RetryBudget()
    for number in range(1000):
        budget.deposit(f"t{number}", 0.0)
    assert sum(budget.take("t7", 0.0) for _ in range(100)) == 1
    assert sum(budget.take("t7", 20.0) for _ in range(1000)) == 100, "the others are gone by then"


def test_tenants_remembered_for_retries_are_bounded() -> None:
    budget, hedges = RetryBudget(), HedgeBudget()
    for number in range(MOST_TENANTS + 100):
        budget.deposit(f"t{number}", 0.0)
        hedges.deposit(f"t{number}")
    assert len(budget._tenants) == len(hedges._saved) == MOST_TENANTS


def test_hedges_are_saved_up_for_and_bounded() -> None:
    budget = HedgeBudget(0.02)
    assert budget.take("t"), "one to begin with"
    assert not budget.take("t")
    for _ in range(50):
        budget.deposit("t")
    assert budget.take("t")
    assert not budget.take("t")
    for _ in range(10**4):
        budget.deposit("t")
    assert sum(budget.take("t") for _ in range(100)) == 10
    assert budget.take("other"), "each tenant has its own"
    assert not HedgeBudget(0.0).take("t")


def test_requests_are_deposited_before_anything_is_spent() -> None:
    retries, second_copies = RetryBudget(0.2, 0.0), HedgeBudget(0.02)
    budgets = AttemptBudgets(retries, second_copies)
    for number in range(100):
        budgets.came("t", number * 0.05)
    budgets.came("other", 5.0)
    assert sum(budgets.take_retry("t", 5.0) for _ in range(100)) == 20 + 1
    assert sum(budgets.take_second_copy("t") for _ in range(100)) == 3, "one to begin with, and two"
    assert not budgets.take_retry("t", 5.0)
    for _ in range(10):
        budgets.came("t", 5.0)
    assert sum(budgets.take_retry("t", 5.0) for _ in range(100)) == 2


def test_requests_that_are_counted_are_bounded_by_time() -> None:
    budgets = AttemptBudgets(RetryBudget(), HedgeBudget())
    for number in range(1000):
        budgets.came(f"t{number}", number * 0.25)
    assert len(budgets._came) <= 5


def test_the_quantile_is_of_the_latest_answers_and_not_of_too_few() -> None:
    times = AnswerTimes()
    for number in range(19):
        times.note("m", "chat", float(number))
    assert times.quantile_s("m", "chat") is None
    times.note("m", "chat", 19.0)
    assert times.quantile_s("m", "chat") == 19.0
    assert times.quantile_s("m", "embeddings") is None
    for number in range(1000):
        times.note("m", "chat", float(number % 100))
    assert times.quantile_s("m", "chat") == pytest.approx(95, abs=1.5)
    for _ in range(LATEST):
        times.note("m", "chat", 1.0)
    assert times.quantile_s("m", "chat") == 1.0


def test_answer_times_are_kept_for_so_many_models_only() -> None:
    times = AnswerTimes()
    for number in range(MOST_KEYS + 10):
        for _ in range(20):
            times.note(f"m{number}", "chat", 1.0)
    assert times.quantile_s("m0", "chat") is None
    assert times.quantile_s(f"m{MOST_KEYS}", "chat") == 1.0
