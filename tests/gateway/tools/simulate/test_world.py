"""The whole simulation: nothing is lost or doubled, equal input gives equal output, known cases come out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.learning.devices import CLASSES
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS, pace_of
from gateway.tools.simulate.fleet import DeploymentBuild, deployments_of, fleet_of
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.mix import Mix
from gateway.tools.simulate.policies import choices, policy_names
from gateway.tools.simulate.simulation import SimulationPlan, simulate
from gateway.tools.simulate.tally import Figures, Slo
from gateway.tools.simulate.world import Rules

EVERY = policy_names()
MIX = (
    "rate=8,requests=150,cv=2,block=64;"
    "a:share=4,input=30~1,output=20~1,prefix=256x3;b:input=9000~1,output=exp150"
)


@dataclass(frozen=True)
class These:
    """Traffic of known jobs."""

    given: Sequence[Job]
    block_tokens: int = 64

    def jobs(self) -> Iterator[Job]:
        return iter(self.given)


def plan_of(traffic: These | Mix, fleet: str, **more: object) -> SimulationPlan:
    return replace(SimulationPlan(traffic, fleet_of(fleet), MODELS[DEFAULT_MODEL]), **more)  # type: ignore[arg-type]


def run(plan: SimulationPlan, policy: str = "least-outstanding") -> Figures:
    (choice,) = choices(policy)
    return simulate(plan, choice)


def test_one_request_takes_its_way_there_and_back_and_its_time_in_the_engine() -> None:
    figures = run(plan_of(These([Job(0.0, 1000, 11)]), "1*h100@40ms"))
    pace = pace_of(CLASSES["h100"], MODELS[DEFAULT_MODEL])
    read_s = pace.step_s + 1000 * pace.token_s + pace.pair_s * 1000 * 500
    write_s = sum(pace.step_s + pace.weights_s + pace.context_s * (1001 + step) for step in range(10))
    told = figures.as_json()
    assert told["ttft_s"]["p50"] == pytest.approx(0.04 + read_s, rel=0.01)
    assert told["latency_s"]["p99"] == pytest.approx(0.04 + read_s + write_s, rel=0.01)
    assert figures.ended_s == pytest.approx(0.04 + read_s + write_s)


@pytest.mark.parametrize("policy", [*EVERY, "round-robin@queue"])
def test_every_request_ends_once_whatever_happens(policy: str) -> None:
    rules = Rules(mtbf_s=15.0, repair_s=1.0, max_wait_s=40.0)
    figures = run(
        plan_of(Mix(MIX, 4), "1*h100,2*l4,1*t4@50ms", rules=rules, build=DeploymentBuild(slots=6)), policy
    )
    tally = figures.tally
    assert tally.requests == 150
    assert tally.completed + tally.rejected == 150
    assert tally.completed > 75
    assert tally.ttft.count == tally.latency.count == tally.completed
    assert tally.restarts > 0
    assert all(0 <= share <= 1 + 1e-9 for share in figures.busy_shares)


@pytest.mark.parametrize("policy", EVERY)
def test_equal_seeds_give_equal_figures(policy: str) -> None:
    plan = plan_of(Mix(MIX, 4), "1*a100,3*l4", seed=3, rules=Rules(mtbf_s=30.0, repair_s=1.0))
    assert run(plan, policy).as_json() == run(plan, policy).as_json()


def test_other_seeds_lose_other_devices() -> None:
    plan = plan_of(Mix(MIX, 4), "4*l4", rules=Rules(mtbf_s=20.0, repair_s=1.0))
    assert run(plan).as_json() != run(replace(plan, seed=1)).as_json()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.integers(1, 60_000), st.integers(1, 400), st.integers(0, 20)),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from(["cost", "round-robin", "chwbl", "cache-aware", "clairvoyant"]),
)
def test_what_fits_nowhere_is_refused_and_all_else_is_done(
    drawn: list[tuple[float, int, int, int]], policy: str
) -> None:
    jobs, at_s = [], 0.0
    for gap_s, tokens, output, blocks in drawn:
        at_s += gap_s
        jobs.append(Job(at_s, tokens, output, tuple(range(min(blocks, tokens // 64)))))
    figures = run(plan_of(These(jobs), "2*l4,1*t4"), policy)
    kv_tokens = max(pace_of(CLASSES[name], MODELS[DEFAULT_MODEL]).kv_tokens for name in ("l4", "t4"))
    assert figures.tally.rejected == sum(job.input_tokens + job.output_tokens > kv_tokens for job in jobs)
    assert figures.tally.completed == len(jobs) - figures.tally.rejected


def test_a_slot_is_waited_for_in_the_gateway_and_given_in_order() -> None:
    jobs = [Job(0.0, 500, 50), Job(0.0, 500, 50), Job(0.0, 500, 50)]
    figures = run(plan_of(These(jobs), "1*h100", build=DeploymentBuild(slots=1)))
    alone = run(plan_of(These(jobs[:1]), "1*h100", build=DeploymentBuild(slots=1))).ended_s
    assert figures.ended_s == pytest.approx(3 * alone)
    assert figures.tally.queued.percentile_s(1.0) == pytest.approx(2 * alone, rel=0.01)


def test_who_waits_for_longer_than_allowed_is_refused() -> None:
    jobs = [Job(0.0, 500, 500), Job(0.1, 500, 5, deadline_s=1.0), Job(0.2, 500, 5)]
    patient = run(plan_of(These(jobs), "1*h100", build=DeploymentBuild(slots=1)))
    strict = run(plan_of(These(jobs), "1*h100", build=DeploymentBuild(slots=1), rules=Rules(max_wait_s=2.0)))
    assert (patient.tally.completed, patient.tally.rejected) == (2, 1)
    assert (strict.tally.completed, strict.tally.rejected) == (1, 2)


def test_too_many_at_once_are_refused() -> None:
    jobs = [Job(0.0, 100, 10)] * 10
    assert run(plan_of(These(jobs), "1*h100", rules=Rules(max_requests=4))).tally.rejected == 6


def test_a_lost_device_costs_its_answers_their_place_but_not_their_beginning() -> None:
    jobs = [Job(0.0, 500, 3000)]
    whole = run(plan_of(These(jobs), "1*h100")).ended_s
    rules = Rules(mtbf_s=whole, repair_s=5.0)
    figures = next(
        each
        for each in (run(plan_of(These(jobs), "1*h100", rules=rules, seed=seed)) for seed in range(50))
        if each.tally.restarts == 1
    )
    load_s = pace_of(CLASSES["h100"], MODELS[DEFAULT_MODEL]).load_s
    assert whole + 5.0 + load_s < figures.ended_s < whole + 5.0 + load_s + 0.5
    assert figures.tally.ttft.percentile_s(1.0) < 0.2


def test_a_cold_device_loads_its_model_for_the_first_that_comes() -> None:
    jobs = [Job(0.0, 500, 5), Job(1.0, 500, 5), Job(100.0, 500, 5)]
    figures = run(plan_of(These(jobs), "1*h100", build=DeploymentBuild(cold=True)), "cost")
    warm = run(plan_of(These(jobs[:1]), "1*h100"), "cost")
    load_s = pace_of(CLASSES["h100"], MODELS[DEFAULT_MODEL]).load_s
    ttft_s = warm.tally.ttft.percentile_s(1.0)
    assert figures.tally.ttft.percentile_s(1.0) == pytest.approx(load_s + ttft_s, rel=0.01)
    assert figures.tally.ttft.percentile_s(0.34) == pytest.approx(load_s - 1.0 + ttft_s, rel=0.01)
    assert figures.tally.ttft.percentile_s(0.01) == pytest.approx(ttft_s, rel=0.02)


def test_a_device_lost_while_it_loads_gives_back_what_waits_there() -> None:
    jobs = [Job(0.0, 500, 5)] * 8
    rules = Rules(mtbf_s=12.0, repair_s=1.0)
    figures = run(
        plan_of(These(jobs), "2*l4", build=DeploymentBuild(cold=True), rules=rules, seed=1), "round-robin"
    )
    assert figures.tally.completed == 8
    assert figures.tally.restarts > 0


def test_devices_may_differ_from_their_figures_the_same_for_every_policy() -> None:
    fleet, model = fleet_of("3*l4"), MODELS[DEFAULT_MODEL]
    known = pace_of(CLASSES["l4"], model)
    build = DeploymentBuild(spread=0.2)
    first, again, other = (
        [site.engine.pace for site in deployments_of(fleet, model, 64, build, late=late, seed=seed)]
        for late, seed in ((True, 1), (False, 1), (True, 2))
    )
    assert first == again != other
    assert len({pace.token_s for pace in first} | {known.token_s}) == 4
    assert all(0.3 < pace.weights_s / known.weights_s < 3 for pace in first)


def test_good_requests_are_those_within_the_objective() -> None:
    jobs = [Job(float(at), 500 if at % 2 else 30_000, 5) for at in range(20)]
    figures = run(plan_of(These(jobs), "1*h100", slo=Slo(ttft_s=0.5, tpot_s=0.1)))
    assert figures.tally.good == 10
    assert figures.as_json()["goodput_rps"] == pytest.approx(10 / 19)


def test_a_prefix_is_found_where_it_was_read() -> None:
    blocks = tuple(range(10))
    jobs = [Job(at * 5.0, 704, 2, blocks) for at in range(5)]
    told = run(plan_of(These(jobs), "4*h100"), "cost").as_json()
    assert told["prefix_hit_rate"] == pytest.approx(4 * 640 / (5 * 704))


def test_utilisation_is_spread_as_the_policy_spreads_it() -> None:
    jobs = [Job(at * 0.5, 500, 20) for at in range(40)]
    even = run(plan_of(These(jobs), "4*h100"), "round-robin")
    one = run(plan_of(These(jobs), "4*h100", build=DeploymentBuild(slots=8)), "chwbl")
    assert even.utilisation_cv < 0.06
    assert one.utilisation_cv > even.utilisation_cv
    assert math.isclose(even.utilisation, sum(even.busy_shares) / 4)


def test_devices_in_turn_are_even_in_the_long_run_and_uneven_at_any_moment() -> None:
    jobs = [Job(at * 20.0, 500, 2000) for at in range(9)]
    figures = run(plan_of(These(jobs), "4*h100"), "round-robin")
    assert figures.utilisation_cv < 0.05
    assert figures.window_cv == pytest.approx(math.sqrt(3), rel=0.01)


def test_rate_number_and_duration_choose_a_part_of_the_traffic() -> None:
    plan = plan_of(These([Job(float(at), 10, 1) for at in range(100)]), "1*l4", rate=2.0)
    assert [job.at_s for job in replace(plan, requests=3).jobs()] == [0.0, 0.5, 1.0]
    assert len(list(replace(plan, duration_s=10.0).jobs())) == 21
