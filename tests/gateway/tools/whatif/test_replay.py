"""One model's requests in the simulator: the same twice, and no worse with more."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.tools.simulate.inputs import Job
from gateway.tools.whatif.changes import PlannedDeployment, planned
from gateway.tools.whatif.fleet import QueueNow
from gateway.tools.whatif.outcomes import Outcomes, ServiceLevel, percentiles
from gateway.tools.whatif.replay import ModelReplay, jobs_of
from tests.gateway.tools.whatif.kit import BEGIN_S, deployment, fact, fleet

LEVEL = ServiceLevel(2.0, 0.1)


def deployments(count: int, slots: int = 1) -> tuple[PlannedDeployment, ...]:
    change = planned(fleet(*(deployment(number, slots=slots) for number in range(count))), WhatIfBody())
    return tuple(change.before.deployments["m"])


def replay(
    there: tuple[PlannedDeployment, ...], policy: str = "round-robin", scale: float = 1.0
) -> ModelReplay:
    queue = QueueNow(max_wait_s=1e6, max_requests=100_000)
    return ModelReplay("m", there, policy, queue, scale, 0, LEVEL)


requests = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 3000), st.integers(1, 400)), min_size=1, max_size=40
)


def coming(drawn: list[tuple[float, int, int]]) -> list[Job]:
    at_s, jobs = 0.0, []
    for gap_s, tokens_in, tokens_out in drawn:
        at_s += gap_s
        jobs.append(Job(at_s, tokens_in, tokens_out))
    return jobs


@settings(max_examples=40, deadline=None)
@given(requests, st.integers(1, 4))
def test_more_slots_never_lengthen_a_queue_that_is_first_come_first_served(
    drawn: list[tuple[float, int, int]], count: int
) -> None:
    """Each deployment is one slot, so a request takes as long wherever it goes (Kiefer and Wolfowitz)."""
    jobs = coming(drawn)
    fewer, more = (replay(deployments(each)).run(jobs) for each in (count, count + 1))
    waits = [sorted(each.queued_s) for each in (fewer, more)]
    assert all(b <= a + 1e-9 for a, b in zip(*waits, strict=True))


@settings(max_examples=10, deadline=None)
@given(requests, st.sampled_from(["cost", "least-outstanding", "random"]))
def test_equal_replays_come_out_equal(drawn: list[tuple[float, int, int]], policy: str) -> None:
    jobs, plan = coming(drawn), replay(deployments(2, slots=4), policy)
    assert plan.run(jobs) == plan.run(jobs)


def run(facts_at: list[float], scale: float = 1.0) -> Outcomes:
    replayed = jobs_of([fact(each, tokens_out=200) for each in facts_at], BEGIN_S)
    assert replayed is not None
    return replay(deployments(1), scale=scale).run(replayed.jobs)


def test_requests_that_come_faster_wait_longer_and_keep_their_place_in_time() -> None:
    usual, faster = run([0.0, 10.0, 20.0]), run([0.0, 10.0, 20.0], scale=20.0)
    assert percentiles(usual.queued_s)["p99"] == 0.0
    assert (percentiles(faster.queued_s)["p99"] or 0.0) > 1.0
    assert sorted(faster.at_s) == sorted(usual.at_s) == [0.0, 10.0, 20.0]


def test_a_request_takes_what_the_speed_says() -> None:
    (there,) = deployments(1)
    outcomes = run([0.0])
    speeds = there.speeds
    expected_s = 0.002 + speeds.fixed_s + 100 / speeds.prompt_tokens_per_s + 200 / speeds.tokens_per_s
    assert abs(outcomes.ended_s / expected_s - 1) < 0.02
    assert abs(outcomes.busy_s / (expected_s - 0.002 - speeds.fixed_s) - 1) < 0.01


def test_what_waits_too_long_or_finds_no_room_is_refused() -> None:
    jobs = [Job(0.0, 100, 400) for _ in range(10)]
    plan = replay(deployments(1))
    short = replace(plan, queue=replace(plan.queue, max_wait_s=1.0))
    full = replace(plan, queue=replace(plan.queue, max_requests=2))
    assert (short.run(jobs).refused, len(short.run(jobs).at_s)) == (9, 1)
    assert (full.run(jobs).refused, len(full.run(jobs).at_s)) == (7, 3)


def test_tokens_that_nobody_counted_are_the_median_and_counted_as_estimated() -> None:
    facts = [fact(0.0, tokens_in=10, tokens_out=4), fact(1.0, tokens_in=30, tokens_out=8)]
    unknown = fact(2.0, tokens_in=None, tokens_out=None, outcome="refused", first_s=None)
    found = jobs_of([*facts, unknown], BEGIN_S)
    assert found is not None
    assert (found.estimated, found.jobs[2].input_tokens, found.jobs[2].output_tokens) == (1, 20, 6)
    assert jobs_of([unknown], BEGIN_S) is None


def test_what_was_cached_is_not_read_again() -> None:
    cold, warm = (jobs_of([fact(0.0, tokens_in=4000, tokens_cached=each)], BEGIN_S) for each in (0, 3900))
    assert cold is not None
    assert warm is not None
    plan = replay(deployments(1))
    assert plan.run(warm.jobs).first_s[0] < 0.7 * plan.run(cold.jobs).first_s[0]
