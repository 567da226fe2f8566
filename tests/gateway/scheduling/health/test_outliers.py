"""Who is far slower than its peers, budgets for extra work, and how long answers take."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.health.budget import MOST_TENANTS, HedgeBudget, RetryBudget
from gateway.scheduling.health.outliers import outliers
from gateway.scheduling.health.pace import AnswerPace, Measure
from gateway.scheduling.health.quantile import LATEST, MOST_KEYS, AnswerTimes
from gateway.scheduling.health.window import WINDOW_S, CountWindow


def pace(
    first_byte_s: float = 0.2, total_s: float = 2.0, samples: int = 10, streaming: bool = True
) -> AnswerPace:
    pace = AnswerPace()
    for _ in range(samples):
        pace.note(streaming, first_byte_s, total_s, 1000)
    return pace


def test_three_times_the_median_of_its_peers_is_an_outlier() -> None:
    peers = {name: pace() for name in "abc"}
    assert outliers(peers | {"d": pace(first_byte_s=0.59, total_s=2.39)}) == []
    assert outliers(peers | {"d": pace(first_byte_s=0.61, total_s=2.41)}) == ["d"]
    assert outliers(peers | {"d": pace(total_s=6.0)}) == ["d"], "slow between bytes"


def test_peers_that_may_be_of_several_kinds_are_held_against_what_is_usual_for_them_too() -> None:
    peers = {name: pace() for name in "abc"}
    assert outliers(peers | {"slow": pace(first_byte_s=9.0, samples=100)}, alike=False) == []
    slowed = pace(samples=100)
    for _ in range(30):
        slowed.note(True, 9.0, 10.8, 1000)
    assert outliers(peers | {"slowed": slowed}, alike=False) == ["slowed"]
    slowed.clear()
    for _ in range(10):
        slowed.note(True, 9.0, 10.8, 1000)
    assert outliers(peers | {"slowed": slowed}, alike=False) == ["slowed"], "still, after it was set aside"


def test_too_few_peers_or_samples_judge_nobody() -> None:
    slow = pace(first_byte_s=9.0)
    assert outliers({"a": pace(), "b": pace(), "slow": slow}) == []
    assert outliers({"a": pace(), "b": pace(), "c": pace(samples=9), "slow": slow}) == []
    assert outliers({"a": pace(), "b": pace(), "c": pace(), "slow": pace(9.0, samples=9)}) == []


def test_streams_and_answers_in_one_piece_are_kept_apart() -> None:
    peers = {name: pace() for name in "abc"}
    assert outliers(peers | {"d": pace(total_s=20.0, streaming=False)}) == []
    peers = {name: pace(streaming=False) for name in "abc"}
    assert outliers(peers | {"d": pace(total_s=20.0, streaming=False)}) == ["d"]


def test_nobody_is_slow_who_is_fast_enough() -> None:
    peers = {name: pace(first_byte_s=0.002) for name in "abc"}
    assert outliers(peers | {"d": pace(first_byte_s=0.05)}) == []


def test_the_worst_are_first() -> None:
    peers = {str(number): pace() for number in range(6)}
    assert outliers(peers | {"bad": pace(1.0), "worse": pace(5.0)}) == ["worse", "bad"]


def test_heavy_tails_alone_make_no_outlier() -> None:
    chance = random.Random(7)
    paces = {number: AnswerPace() for number in range(50)}
    for _ in range(40):
        for each in paces.values():
            first_byte_s = 10.0 if chance.random() < 0.02 else chance.uniform(0.1, 0.3)
            each.note(True, first_byte_s, first_byte_s + chance.uniform(1, 10), chance.randint(500, 5000))
    assert outliers(paces) == []


@given(st.lists(st.floats(0.001, 100), min_size=2, max_size=12))
def test_outliers_are_what_the_definition_says(times: list[float]) -> None:
    paces = {number: pace(time_s, time_s) for number, time_s in enumerate(times)}
    means = {number: each.mean(Measure.STREAM_FIRST_BYTE_S) or 0.0 for number, each in paces.items()}
    expected = set()
    for number, mean in means.items():
        peers = sorted(other for key, other in means.items() if key != number)
        if len(peers) >= 3:
            median = (peers[(len(peers) - 1) // 2] + peers[len(peers) // 2]) / 2
            if mean > 3 * median and mean > 0.1:
                expected.add(number)
    assert set(outliers(paces)) == expected


def test_an_average_follows_what_changes() -> None:
    changing = pace(first_byte_s=0.1, samples=50)
    for _ in range(40):
        changing.note(True, 1.0, 2.0, 1000)
    assert changing.mean(Measure.STREAM_FIRST_BYTE_S) == pytest.approx(1.0, rel=0.05)
    changing.clear()
    assert changing.mean(Measure.STREAM_FIRST_BYTE_S) is None


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


@given(st.lists(st.tuples(st.floats(0, 4), st.integers(0, 3)), max_size=60))
def test_a_window_agrees_with_a_list(steps: list[tuple[float, int]]) -> None:
    window, now = CountWindow(), 1000.0
    all_of_them: list[tuple[int, int]] = []
    for passed_s, count in steps:
        now += passed_s
        window.add(count, 1, now)
        all_of_them.append((int(now), count))
        latest = [each for each in all_of_them if each[0] > int(now) - WINDOW_S]
        assert window.sums(now) == (sum(count for _, count in latest), len(latest))


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
