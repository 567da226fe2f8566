"""What others do, each by its own formula."""

import pytest

from gateway.scheduling.base import DeploymentView, Outcome, PendingRequest
from gateway.scheduling.scheduler import Scheduler
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS
from gateway.tools.simulate.engine import EngineRun
from gateway.tools.simulate.fleet import DeploymentBuild, SimulatedDeployment, deployments_of, fleet_of
from gateway.tools.simulate.inputs import BadSpec, Job
from gateway.tools.simulate.policies import (
    PUSHED,
    choices,
    policy_names,
)

BLOCK = 256


def sites(fleet: str) -> list[SimulatedDeployment]:
    return deployments_of(fleet_of(fleet), MODELS[DEFAULT_MODEL], BLOCK, DeploymentBuild(), late=False)


def item(number: int, tokens: int = 1024, prefix: tuple[int, ...] = (), output: int = 10) -> PendingRequest:
    return PendingRequest(
        number, "chat", 1.0, 0.0, input_tokens=tokens, output_tokens=output, prefix=prefix, block_tokens=BLOCK
    )


def scheduler(name: str, there: list[SimulatedDeployment]) -> Scheduler:
    (choice,) = choices(name)
    made = choice.scheduler(there, 0)
    for site in there:
        made.deployment_added(site.view, 0.0)
    return made


def chosen(policy: Scheduler, there: list[SimulatedDeployment], waiting: PendingRequest) -> str:
    """Where it goes; it is placed there."""
    (assignment,) = policy.assign(DEFAULT_MODEL, [waiting], [site.view for site in there], 0.0)
    view = view_of(there, assignment.key)
    policy.placed(waiting, view, 0.0)
    view.in_flight += 1
    return assignment.key


def view_of(there: list[SimulatedDeployment], key: str) -> DeploymentView:
    return next(site.view for site in there if site.view.key == key)


def test_least_load_counts_tokens_by_what_the_device_makes_of_them() -> None:
    there = sites("1*h100,1*t4")
    policy = scheduler("least-load", there)
    keys = [chosen(policy, there, item(number)) for number in range(1, 17)]
    assert keys.count(there[0].view.key) == 15
    for number in range(1, 17):
        policy.finished(number, view_of(there, keys[number - 1]), Outcome(True, 1.0), 1.0)
    there[0].engine.submit(EngineRun(99, Job(0.0, 400_000, 10), 0.0), 0.0)
    assert chosen(policy, there, item(20)) == there[1].view.key


def test_cache_aware_goes_where_more_than_half_was_read_unless_out_of_balance() -> None:
    there = sites("3*l4")
    policy = scheduler("cache-aware", there)
    home = chosen(policy, there, item(1, prefix=(1, 2, 3)))
    assert chosen(policy, there, item(2, prefix=(1, 2, 3))) == home
    assert chosen(policy, there, item(3, prefix=(1, 8, 9))) != home
    next(site for site in there if site.view.key == home).view.in_flight = 40
    assert chosen(policy, there, item(4, prefix=(1, 2, 3))) != home


def test_load_aware_prefix_weighs_the_match_against_the_load() -> None:
    there = sites("4*l4")
    policy = scheduler("load-aware-prefix", there)
    home = chosen(policy, there, item(1, prefix=(1, 2, 3, 4)))
    for site in there:
        site.view.in_flight = 1
    keys = [chosen(policy, there, item(number, prefix=(1, 2, 3, 4))) for number in range(2, 5)]
    assert [key == home for key in keys] == [True, True, False]


def test_chwbl_keeps_beginnings_together_until_the_load_is_over_its_bound() -> None:
    there = sites("4*l4")
    policy = scheduler("chwbl", there)
    keys = [chosen(policy, there, item(number, prefix=(7, number))) for number in range(1, 41)]
    counts = sorted(keys.count(site.view.key) for site in there)
    assert max(counts) <= 1.25 * 40 / 4 + 1
    assert keys.count(keys[0]) == max(counts) > 10
    spread = {chosen(policy, there, item(100 + number, prefix=(number,))) for number in range(20)}
    assert len(spread) == 4
    policy.deployment_removed(view_of(there, keys[0]), 0.0)
    left = [site for site in there if site.view.key != keys[0]]
    assert chosen(policy, left, item(200, prefix=(7, 1))) != keys[0]


def test_the_clairvoyant_knows_lengths_caches_and_queues() -> None:
    there = sites("2*l4,1*h100")
    policy = scheduler("clairvoyant", there)
    assert chosen(policy, there, item(1, output=2000)) == there[2].view.key
    there[1].engine.submit(EngineRun(5, Job(0.0, 30_000, 1, tuple(range(117))), 0.0), 0.0)
    while there[1].engine.wake_s < float("inf"):
        there[1].engine.wake(there[1].engine.wake_s)
    only_l4 = there[:2]
    assert chosen(policy, only_l4, item(6, 30_000, tuple(range(117)))) == there[1].view.key


def test_policies_are_found_by_name_and_pushed_as_they_work_elsewhere() -> None:
    found = {choice.name: choice.late for choice in choices("cost,round-robin,round-robin@queue,chwbl")}
    assert found == {"cost": True, "round-robin": False, "round-robin@queue": True, "chwbl": False}
    assert [choice.name for choice in choices("all")] == policy_names()
    assert set(policy_names()) >= PUSHED
    assert [choice.policy for choice in choices("clairvoyant") if choice.knows_output_lengths] == [
        "clairvoyant"
    ]
    with pytest.raises(BadSpec, match=r"no policy is called 'best'; there are: .*round-robin"):
        choices("cost,best")
