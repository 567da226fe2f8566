"""The engine's phases: exact where there is a closed form, else the same as step by step."""

import heapq
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tools.simulate.devices import DevicePace
from gateway.tools.simulate.engine import NEVER, EngineRun, SimulatedEngine
from gateway.tools.simulate.inputs import Job
from tests.gateway.tools.simulate.stepwise import Stepwise

PACE = DevicePace(
    step_s=0.001,
    weights_s=0.008,
    token_s=0.0001,
    context_s=1e-6,
    pair_s=1e-8,
    kv_tokens=4000,
    chunk_tokens=256,
    max_running=8,
    load_s=10.0,
)


def drive(engine: SimulatedEngine, arrivals: list[tuple[float, EngineRun]]) -> dict[int, tuple[float, float]]:
    """First and last token's time of each; checks memory after every event."""
    coming = list(arrivals)
    times: dict[int, tuple[float, float]] = {}
    firsts: dict[int, float] = {}
    heapq.heapify(keyed := [(at, index) for index, (at, _) in enumerate(coming)])
    while keyed or engine.wake_s < NEVER:
        if keyed and keyed[0][0] <= engine.wake_s:
            at_s, index = heapq.heappop(keyed)
            engine.submit(coming[index][1], at_s)
            continue
        now = engine.wake_s
        woken = engine.wake(now)
        firsts.update((run.number, now) for run in woken.first)
        times.update((run.number, (firsts[run.number], now)) for run in woken.finished)
        assert 0 <= engine.memory.used <= PACE.kv_tokens
        assert len(engine.running) <= PACE.max_running
        assert engine.decoding == sum(run.end_step >= 0 for run in engine.running)
    assert engine.memory.used == engine.context == engine.decoding == 0
    return times


def test_one_request_alone_takes_what_the_formula_says() -> None:
    engine = SimulatedEngine(PACE, 16)
    times = drive(engine, [(2.0, EngineRun(1, Job(0.0, 100, 5), 2.0))])
    prefill_s = 0.001 + 100 * 0.0001 + 1e-8 * 100 * 50
    decode_s = sum(0.009 + 1e-6 * (101 + step) for step in range(4))
    assert times[1] == pytest.approx((2.0 + prefill_s, 2.0 + prefill_s + decode_s))
    assert engine.busy_until(99.0) == pytest.approx(prefill_s + decode_s)


def test_a_long_prompt_goes_in_chunks() -> None:
    run = EngineRun(1, Job(0.0, 1000, 1), 0.0)
    times = drive(SimulatedEngine(PACE, 16), [(0.0, run)])
    chunks = [(256, 0), (256, 256), (256, 512), (232, 768)]
    expected = sum(0.001 + 1e-4 * size + 1e-8 * size * (at + size / 2) for size, at in chunks)
    assert times[1] == pytest.approx((expected, expected))


def test_a_known_prefix_is_not_computed_again() -> None:
    first, second = (EngineRun(number, Job(0.0, 100, 1, prefix=tuple(range(6))), 0.0) for number in (1, 2))
    times = drive(SimulatedEngine(PACE, 16), [(0.0, first), (1.0, second)])
    assert (first.cached_tokens, second.cached_tokens) == (0, 96)
    assert times[2][0] == pytest.approx(1.0 + 0.001 + 0.008 + 1e-8 * 4 * 98)


def test_what_is_cached_anywhere_is_not_computed_either() -> None:
    run = EngineRun(1, Job(0.0, 100, 1, cached_tokens=90), 0.0)
    times = drive(SimulatedEngine(PACE, 16), [(0.0, run)])
    assert run.cached_tokens == 90
    assert times[1][0] == pytest.approx(0.001 + 0.008 + 1e-8 * 10 * 95)


def test_who_does_not_fit_waits_and_nobody_overtakes() -> None:
    big, bigger, small = (
        EngineRun(n, Job(0.0, size, 50), 0.0) for n, size in ((1, 2500), (2, 2600), (3, 10))
    )
    times = drive(SimulatedEngine(PACE, 16), [(0.0, big), (0.0, bigger), (0.0, small)])
    assert times[2][0] > times[1][1]
    assert times[3][0] >= times[2][0]


def test_full_memory_preempts_the_last_admitted_which_goes_on_later() -> None:
    runs = [EngineRun(n, Job(0.0, 1000, 1500), 0.0) for n in (1, 2)]
    times = drive(SimulatedEngine(PACE, 16), [(0.0, run) for run in runs])
    assert [run.preemptions for run in runs] == [0, 1]
    assert times[1][1] < times[2][1]
    assert runs[1].generated == 1500


def test_a_crash_loses_everything_but_what_was_given() -> None:
    engine = SimulatedEngine(PACE, 16)
    decoding, reading = EngineRun(1, Job(0.0, 100, 1000), 0.0), EngineRun(2, Job(0.0, 3000, 10), 0.0)
    engine.submit(decoding, 0.0)
    engine.wake(engine.wake_s)
    engine.submit(reading, 0.5)
    engine.wake(engine.wake_s)
    now = (engine.wake_s + 0.5) / 2
    given_by_then = engine.generated_by(decoding, now)
    assert engine.crash(now) == [decoding, reading]
    assert decoding.generated == given_by_then > 40
    assert reading.generated == 0
    assert engine.memory.used == 0
    assert engine.wake_s == NEVER
    assert engine.busy_until(now + 5) == pytest.approx(now)


requests = st.lists(
    st.tuples(
        st.floats(1e-4, 0.3),
        st.integers(1, 1500),
        st.integers(1, 300),
        st.integers(0, 3),
        st.integers(0, 40),
        st.sampled_from([0, 0, 300]),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=50, deadline=None)
@given(requests, st.integers(1, 8), st.sampled_from([4000, 2500]))
def test_phases_give_the_same_times_as_single_steps(
    drawn: list[tuple[float, int, int, int, int, int]], max_running: int, kv_tokens: int
) -> None:
    pace = replace(PACE, max_running=max_running, kv_tokens=kv_tokens, each_s=2e-4)
    jobs, at_s = [], 0.0
    for gap_s, tokens, output, family, blocks, cached in drawn:
        at_s += gap_s
        shared = tuple(family * 1000 + block for block in range(min(blocks, tokens // 16)))
        jobs.append((at_s, Job(at_s, tokens, output, shared, cached_tokens=min(cached, tokens))))
    ours = [(at, EngineRun(number, job, at)) for number, (at, job) in enumerate(jobs)]
    theirs = [(at, EngineRun(number, job, at)) for number, (at, job) in enumerate(jobs)]
    reference = Stepwise(pace, 16)
    expected = reference.run(theirs)
    times = drive(SimulatedEngine(pace, 16), ours)
    assert times == {number: pytest.approx(each, abs=1e-6) for number, each in expected.items()}
    assert {run.number: run.cached_tokens for _, run in ours} == reference.cached


def test_a_steady_stream_of_equal_requests_waits_as_queueing_theory_says() -> None:
    """M/D/1: one at a time, equal service, Poisson arrivals; mean wait = ρ s / 2 (1 - ρ)."""
    pace = replace(PACE, max_running=1, weights_s=0.0, context_s=0.0, pair_s=0.0)
    chance, at_s, arrivals = random.Random(7), 0.0, []
    service_s = 0.001 + 100 * 0.0001
    for number in range(10_000):
        at_s += chance.expovariate(0.7 / service_s)
        arrivals.append((at_s, EngineRun(number, Job(at_s, 100, 1), at_s)))
    times = drive(SimulatedEngine(pace, 16), arrivals)
    waits = [times[run.number][1] - at - service_s for at, run in arrivals]
    assert sum(waits) / len(waits) == pytest.approx(0.7 * service_s / (2 * 0.3), rel=0.1)
