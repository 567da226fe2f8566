"""Several simulated gateways over the same agents."""

from dataclasses import replace

import pytest

from gateway.domain.request import Tier
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS
from gateway.tools.simulate.fleet import DeploymentBuild, fleet_of
from gateway.tools.simulate.inputs import BadSpec, Job
from gateway.tools.simulate.mix import Mix
from gateway.tools.simulate.policies import choices
from gateway.tools.simulate.simulation import SimulationPlan, gateway_counts, simulate
from gateway.tools.simulate.tally import Fairness, Figures
from gateway.tools.simulate.world import Rules
from tests.gateway.tools.simulate.test_world import These

REQUESTS = 300


def figures_of(
    gateways: int,
    fleet: str = "4*h100",
    policy: str = "cost",
    slots: int = 4,
    requests: int = REQUESTS,
    **more: object,
) -> Figures:
    mix = Mix(f"rate=30,requests={requests},cv=2;a:input=200,output=40~0.8,tenants=3", 5)
    build = DeploymentBuild(slots)
    plan = SimulationPlan(mix, fleet_of(fleet), MODELS[DEFAULT_MODEL], gateways=gateways, build=build)
    return simulate(replace(plan, **more), choices(policy)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["cost", "least-outstanding", "round-robin", "clairvoyant"])
@pytest.mark.parametrize("gateways", [2, 16])
def test_every_request_ends_once_also_where_agents_are_lost(policy: str, gateways: int) -> None:
    rules = Rules(mtbf_s=5.0, repair_s=1.0)
    told = figures_of(gateways, policy=policy, rules=rules).as_json()
    assert (told["requests"], told["completed"], told["gateways"]) == (REQUESTS, REQUESTS, gateways)
    assert told["restarts"] > 0


def test_equal_input_gives_equal_output() -> None:
    assert figures_of(4).as_json() == figures_of(4).as_json()


def test_slots_move_to_the_gateway_that_has_requests() -> None:
    """All requests belong to one session, so they come to one gateway: it gets every slot."""
    jobs = [Job(0.0, 50, 200, session_key="s") for _ in range(64)]
    alone, shared = (
        simulate(
            SimulationPlan(
                These(jobs),
                fleet_of("4*h100"),
                MODELS[DEFAULT_MODEL],
                gateways=gateways,
                build=DeploymentBuild(slots=4),
            ),
            choices("least-outstanding")[0],
        )
        for gateways in (1, 16)
    )
    assert shared.ended_s < 1.2 * alone.ended_s
    assert shared.tally.opens_refused == 0


def test_sixteen_gateways_make_nobody_wait_for_a_slot_that_is_idle() -> None:
    """The queue's wait is what agents heard too late: with DEMAND once a second it was over a second."""
    one, many = (figures_of(gateways, "8*h100", requests=900) for gateways in (1, 16))
    assert many.tally.queued.percentile_s(0.99) < one.tally.queued.percentile_s(0.99) + 0.25
    assert many.tally.demands > 0
    assert many.tally.opens_refused < 0.001 * many.tally.opens


def test_a_gateway_that_is_alone_tells_nobody_what_waits() -> None:
    told = figures_of(1).as_json()
    assert (told["demands"], told["opens_refused"], told["gateways"]) == (0, 0.0, 1)


def test_nobody_waits_longer_than_allowed_at_any_gateway() -> None:
    told = figures_of(4, "1*h100", slots=1, rules=Rules(max_wait_s=5.0)).as_json()
    assert told["rejected"] > 0
    assert told["completed"] + told["rejected"] == REQUESTS


def test_jobs_that_fit_nowhere_are_refused_by_every_gateway() -> None:
    jobs = [Job(0.0, 10_000_000, 10, tier=Tier.STANDARD) for _ in range(8)]
    plan = SimulationPlan(These(jobs), fleet_of("1*h100"), MODELS[DEFAULT_MODEL], gateways=4)
    assert simulate(plan, choices("cost")[0]).tally.rejected == 8


def test_counts_of_gateways_are_read() -> None:
    assert gateway_counts("1, 4,16,4") == [1, 4, 16]
    for wrong in ("0", "65", "four", "", "1,,2", "-1"):
        with pytest.raises(BadSpec):
            gateway_counts(wrong)


def test_fairness_is_of_those_that_wait_all_the_time() -> None:
    fairness = Fairness()
    fairness.end({"a", "b"})
    fairness.served("a", 30.0)
    fairness.served("b", 10.0)
    fairness.served("c", 1000.0)
    fairness.end({"a", "b", "c"})
    assert fairness.index == pytest.approx(40.0**2 / (2 * (30.0**2 + 10.0**2)))
    fairness.served("a", 5.0)
    fairness.end({"a"})
    assert fairness.index == pytest.approx(0.8), "one alone says nothing"
    assert Fairness().index is None


def test_gateways_that_tell_what_they_gave_serve_tenants_more_evenly() -> None:
    """Each wants more than half; one has connections to all gateways, the other to one. Untold, the index is
    0.64."""
    everywhere = [Job(number * 0.01, 200, 60, tenant="everywhere") for number in range(2400)]
    here = [Job(number * 0.02, 200, 60, tenant="here", session_key="one") for number in range(1200)]
    plan = SimulationPlan(
        These(sorted(everywhere + here, key=lambda job: job.at_s)),
        fleet_of("8*h100"),
        MODELS[DEFAULT_MODEL],
        gateways=4,
        build=DeploymentBuild(slots=4),
        rules=Rules(max_wait_s=5.0),
    )
    fairness = simulate(plan, choices("cost")[0]).tally.fairness.index
    assert fairness is not None
    assert fairness > 0.75
