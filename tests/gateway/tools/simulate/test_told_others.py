"""Simulated agents tell each gateway what they run for the others."""

import pytest

from gateway.tools.simulate.fleet import DeploymentBuild
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.mix import Mix
from gateway.tools.simulate.world import Rules
from tests.gateway.tools.simulate.test_world import MIX, These, plan_of, run

LONG = "rate=2,requests=400,block=512;a:input=16000~0.5,output=80~0.8,prefix=8192x8"


def p99_s(gateways: int, every_s: float | None) -> float:
    rules = Rules(others_every_s=every_s)
    figures = run(plan_of(Mix(LONG, 5), "4*h100", rules=rules, gateways=gateways, seed=1), "cost")
    assert figures.tally.completed == 400
    return float(figures.as_json()["ttft_s"]["p99"])


def test_gateways_that_are_told_choose_nearly_as_well_as_one() -> None:
    alone = p99_s(1, None)
    assert p99_s(8, 0.02) < 1.15 * alone
    assert p99_s(8, None) > 1.5 * alone, "each knows of an eighth of the prompts"


def test_one_gateway_is_told_nothing() -> None:
    assert p99_s(1, 0.02) == p99_s(1, None)


@pytest.mark.parametrize("gateways", [2, 5])
def test_devices_that_are_lost_leave_nothing_behind(gateways: int) -> None:
    rules = Rules(mtbf_s=15.0, repair_s=1.0, max_wait_s=40.0)
    build = DeploymentBuild(slots=6)
    plan = plan_of(Mix(MIX, 4), "2*l4,1*t4@50ms", rules=rules, build=build, gateways=gateways)
    tally = run(plan, "cost").tally
    assert tally.completed + tally.rejected == 150
    assert tally.restarts > 0


def test_the_second_of_two_at_once_goes_elsewhere_if_the_first_was_told_of() -> None:
    """Two gateways, a long prompt each, a second apart: the second one waits for nothing."""
    jobs = [Job(0.0, 30_000, 20, session_key="a"), Job(1.0, 30_000, 20, session_key="d")]
    told, untold = (
        run(plan_of(These(jobs), "2*h100", rules=Rules(others_every_s=every_s), gateways=2), "cost")
        for every_s in (0.02, None)
    )
    assert told.as_json()["ttft_s"]["p99"] < 0.8 * untold.as_json()["ttft_s"]["p99"]
