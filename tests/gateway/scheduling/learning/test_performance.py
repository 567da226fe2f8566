"""What is known of a model's speed on a class of device."""

import itertools
import math
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.scheduling.base import Outcome
from gateway.scheduling.learning.devices import CLASSES, Prior
from gateway.scheduling.learning.performance import Performance, PredictedWork, Speeds
from gateway.scheduling.learning.regression import LATEST, LEAST, MOST, Errors
from gateway.scheduling.load import Concurrency

ALONE = Concurrency(ahead_s=0.0, running=1.0, kv_tokens=1000.0, read_s=0.0)


def asked(input_tokens: int = 1000, output_tokens: int = 100, cached_tokens: int = 0) -> PredictedWork:
    return PredictedWork(cached_tokens, input_tokens - cached_tokens, input_tokens, output_tokens, 1.0, 2.0)


def teach(
    performance: Performance,
    speeds: Speeds,
    *,
    token_s: float,
    step_s: float,
    times: int = 200,
    streamed: bool = True,
    reported: bool = True,
    outlier_every: int = 0,
) -> None:
    chance = random.Random(5)
    for number in range(1, times + 1):
        tokens, output = chance.randint(10, 8000), chance.randint(2, 400)
        company = Concurrency(0.0, chance.uniform(1, 8), chance.uniform(1000, 9000), 0.0)
        first_s = 0.02 + tokens * token_s
        total_s = first_s + output * step_s
        if outlier_every and number % outlier_every == 0:
            first_s, total_s = 100 * first_s, 100 * total_s
        outcome = Outcome(
            True,
            total_s,
            first_s if streamed else None,
            tokens if reported else None,
            output if reported else None,
        )
        performance.learn(speeds, asked(tokens, output), outcome, company)


def predicted(speeds: Speeds, tokens: int, output: int) -> tuple[float, float]:
    return speeds.fixed_s + speeds.read_s(tokens), speeds.output_s(output, 4.0, 5000.0, 0.0)


def test_priors_order_devices_as_everybody_knows_them() -> None:
    reading = [Prior.of(name).token_s for name in ("h100", "l40s", "a100", "l4", "t4")]
    writing = [Prior.of(name).step_s for name in ("h100", "a100", "rtx4090", "l40s", "a10g", "l4")]
    assert reading == sorted(reading)
    assert writing == sorted(writing)
    assert Prior.of("never heard of").token_s == Prior.of("l40s").token_s


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("reported", [True, False])
def test_speeds_are_learnt_from_whatever_the_engine_tells(streamed: bool, reported: bool) -> None:
    performance = Performance()
    speeds = performance.speeds("m", "NVIDIA A100-SXM4-80GB")
    teach(performance, speeds, token_s=400e-6, step_s=0.05, streamed=streamed, reported=reported, times=400)
    first_s, rest_s = predicted(speeds, 4000, 200)
    assert first_s + rest_s == pytest.approx(1.62 + 10.0, rel=0.15)
    if streamed:
        assert first_s == pytest.approx(1.62, rel=0.1)
        assert rest_s == pytest.approx(10.0, rel=0.1)


def test_outliers_are_seen_through() -> None:
    performance = Performance()
    speeds = performance.speeds("m", "l4")
    teach(performance, speeds, token_s=300e-6, step_s=0.06, outlier_every=10, times=600)
    first_s, rest_s = predicted(speeds, 4000, 200)
    assert first_s == pytest.approx(1.22, rel=0.4)
    assert rest_s == pytest.approx(12.0, rel=0.4)


def test_company_slows_writing_down_as_much_as_it_was_seen_to() -> None:
    performance = Performance()
    speeds = performance.speeds("m", "h100")
    chance = random.Random(6)
    for _ in range(400):
        running, output = chance.uniform(1, 100), chance.randint(20, 400)
        outcome = Outcome(True, 0.05 + output * (0.010 + 0.0005 * running), 0.05, 1000, output + 1)
        performance.learn(speeds, asked(), outcome, Concurrency(0.0, running, 0.0, 0.0))
    assert speeds.step_s == pytest.approx(0.010, rel=0.1)
    assert speeds.each_s == pytest.approx(0.0005, rel=0.1)


def test_a_model_that_is_ten_times_as_large_is_so_on_every_device() -> None:
    performance = Performance()
    teach(performance, performance.speeds("large", "h100"), token_s=323e-6, step_s=0.068, times=30)
    fresh = performance.speeds("large", "l4")
    assert fresh.token_s == pytest.approx(10 * Prior.of("l4").token_s, rel=0.4)
    assert fresh.step_s == pytest.approx(10 * Prior.of("l4").step_s, rel=0.4)


def test_a_new_model_begins_with_what_its_device_did_for_others() -> None:
    performance = Performance()
    teach(performance, performance.speeds("one", "a device of our own"), token_s=1e-3, step_s=0.2)
    fresh = performance.speeds("another", "A device of our own")
    other = performance.speeds("another", "t4")
    assert fresh.step_s > 5 * Prior.of("a device of our own").step_s
    assert other.step_s == Prior.of("t4").step_s, "of this one nothing is known"


def test_cached_tokens_cost_what_they_are_seen_to_cost() -> None:
    """An engine that caches nothing, and does not say so, shows in its times."""
    performance = Performance()
    honest, silent = performance.speeds("m", "h100"), performance.speeds("m", "l4")
    chance = random.Random(8)
    for _ in range(400):
        tokens = chance.randint(1000, 8000)
        cached_tokens = chance.randint(0, tokens - 1)
        for speeds, reads in ((honest, tokens - cached_tokens), (silent, tokens)):
            first_s = 0.02 + reads * speeds.prior.token_s
            outcome = Outcome(True, first_s + 1.0, first_s, tokens, 20, 0)
            performance.learn(speeds, asked(tokens, 20, cached_tokens), outcome, ALONE)
    assert honest.cached_s < 0.1 * honest.token_s
    assert silent.cached_s > 0.6 * silent.token_s


def test_beliefs_of_what_is_cached_are_worth_what_the_engine_says_they_were() -> None:
    performance = Performance()
    speeds = performance.speeds("m", "h100")
    for number in range(200):
        outcome = Outcome(True, 1.5, 0.5, 1000, 20, 800 if number % 4 == 0 else 0)
        performance.learn(speeds, asked(1000, 20, 800), outcome, ALONE)
    assert speeds.hit_share == pytest.approx(0.25, abs=0.15)


def test_failures_teach_nothing() -> None:
    performance = Performance()
    speeds = performance.speeds("m", "h100")
    before = speeds.token_s, speeds.step_s
    assert performance.learn(speeds, asked(), Outcome(False, 60.0, 50.0, 10, 10), ALONE) == (1.0, 1.0)
    assert (speeds.token_s, speeds.step_s) == before
    assert speeds.accuracy.total.count == 0


def test_load_times_are_learnt() -> None:
    speeds = Performance().speeds("m", "h100")
    for load_s in (90.0, 110.0, float("nan"), -1.0, 100.0):
        speeds.loaded(load_s)
    assert 90.0 < speeds.load_s < 110.0


def test_only_so_many_pairs_are_remembered() -> None:
    performance = Performance(most_pairs=3)
    for model, device in itertools.product("abc", ("h100", "l4")):
        performance.speeds(model, device)
    assert [(each.model, each.device) for each in performance] == [("b", "l4"), ("c", "h100"), ("c", "l4")]


_seconds = st.one_of(st.floats(0, 1e6), st.sampled_from([math.inf, math.nan, 0.0, -1.0]))
_tokens = st.one_of(st.none(), st.integers(0, 10**9))
_outcomes = st.builds(
    Outcome, st.booleans(), _seconds, st.one_of(st.none(), _seconds), _tokens, _tokens, _tokens
)
_companies = st.builds(Concurrency, *(st.floats(0, 1e7) for _ in range(4)))


@settings(max_examples=60)
@given(st.lists(st.tuples(_outcomes, _companies, st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12))
def test_coefficients_stay_positive_and_finite_whatever_engines_report(
    history: list[tuple[Outcome, Concurrency, int, int]],
) -> None:
    performance = Performance()
    speeds = performance.speeds("m", "l4")
    for outcome, company, tokens, cached_tokens in history:
        cached_tokens = min(tokens, cached_tokens)
        paces = performance.learn(speeds, asked(tokens, 10, cached_tokens), outcome, company)
        assert all(LEAST <= pace <= MOST for pace in paces)
        for name in ("fixed_s", "token_s", "pair_s", "cached_s", "step_s", "each_s", "kv_s", "load_s"):
            assert 0.0 < getattr(speeds, name) < math.inf
        assert 0.0 <= speeds.hit_share <= 1.0


def test_errors_are_told_as_factors_and_only_the_latest_are_kept() -> None:
    errors = Errors()
    assert (errors.bias, errors.error_factor(0.9)) == (0.0, 1.0)
    for _ in range(2 * LATEST):
        errors.note(1.0, 8.0)
    for _ in range(LATEST // 2):
        errors.note(1.0, 2.0)
        errors.note(1.0, 0.5)
    errors.note(0.0, 1.0)
    assert errors.count == 3 * LATEST
    assert len(errors.latest) == LATEST
    assert errors.bias == pytest.approx(0.0)
    assert errors.error_factor(0.5) == pytest.approx(2.0)


def test_every_class_has_figures_and_a_source() -> None:
    for name in ("h100", "a100", "l40s", "a10g", "l4", "t4", "rtx4090"):
        assert CLASSES[name].source
        assert 0.0 < Prior.of(name).load_s < 600.0


def test_waits_said_at_an_older_speed_do_not_make_what_is_learnt_run_away() -> None:
    """Requests that queue come back long after their wait was said, and then teach what it was."""
    performance, chance = Performance(), random.Random(5)
    speeds = performance.speeds("m", "l40s")
    true_s = 2.5 * speeds.prior.token_s
    said = deque([speeds.token_s] * 60)
    for number in range(400):
        token_s, ahead, tokens = said.popleft(), chance.randint(0, 40_000), chance.randint(10, 8000)
        first_s = 0.02 + (ahead + tokens) * true_s
        company = Concurrency(ahead * token_s, 8.0, 5000.0, 0.0)
        outcome = Outcome(True, first_s + 1.0, first_s, tokens, 100)
        performance.learn(speeds, structs.replace(asked(tokens), token_s=token_s), outcome, company)
        said.append(speeds.token_s)
        if number > 60:
            assert speeds.token_s == pytest.approx(true_s, rel=0.25)


def test_a_model_is_measured_once_any_of_its_classes_was_observed() -> None:
    performance = Performance(most_pairs=4)
    assert not performance.is_measured("m")
    performance.speeds("m", "h100")
    performance.speeds("other", "l4").reading.observe([0.02, 0.5, 0.01, 0.0], 0.53)
    assert not performance.is_measured("m")
    performance.speeds("m", "l4").reading.observe([0.02, 0.5, 0.01, 0.0], 0.53)
    assert performance.is_measured("m")
    for number in range(20):
        performance.speeds("m", "l4")
        performance.speeds(f"another-{number}", "l4")
    assert performance.is_measured("m"), "it was used all the time"
    for number in range(20):
        performance.speeds(f"further-{number}", "l4")
    assert not performance.is_measured("m"), "it is forgotten as its pairs are"
    assert len(performance._devices) <= 8
