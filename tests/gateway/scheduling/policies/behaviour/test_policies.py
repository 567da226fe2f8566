"""What every policy by name owes its caller."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.domain.residency import read_where
from gateway.scheduling import POLICIES, policy_named
from gateway.scheduling.base import Assignment, DeploymentView, Outcome, PendingRequest, Policy
from gateway.scheduling.learning.knowledge import Knowledge
from tests.gateway.scheduling.views import fleets, request, view

NAMES = sorted(POLICIES)


def fits(
    item: PendingRequest, each: DeploymentView, given_to: dict[str, list[PendingRequest]], *, kv: bool
) -> bool:
    given_now = given_to.get(each.key, [])
    if not each.suits(item.fit) or each.key in item.avoid:
        return False
    if kv and each.kv_free_tokens is not None:
        needed = sum(one.input_tokens + one.output_tokens for one in (*given_now, item))
        if needed > each.kv_free_tokens:
            return False
    return each.free > len(given_now)


def known(views: list[DeploymentView]) -> Knowledge:
    """One that saw every deployment read the beginning of every prompt of :func:`fleets`."""
    knowledge = Knowledge("m", views={each.key: each for each in views})
    for each in views[::2]:
        knowledge.prefixes.note_read(each.key, (0, 1))
    return knowledge


def checked(
    assignments: list[Assignment], requests: list[PendingRequest], views: list[DeploymentView], *, kv: bool
) -> tuple[list[PendingRequest], dict[str, list[PendingRequest]]]:
    """Asserts that all of them are allowed. Returns the requests that were left, and what went where."""
    by_key = {each.key: each for each in views}
    left = {item.number: item for item in requests}
    given_to: dict[str, list[PendingRequest]] = {}
    for each in assignments:
        item = left.pop(each.number)
        assert fits(item, by_key[each.key], given_to, kv=kv)
        given_to.setdefault(each.key, []).append(item)
    return list(left.values()), given_to


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_known_by_its_name_and_works_without_its_hooks(name: str) -> None:
    policy = policy_named(name)
    assert policy.name == name
    assert policy.assign([request(1)], [view("a")], 0.0) == [Assignment(1, "a")]
    assert policy.look_again_s is None


@settings(max_examples=25)
@given(fleet=fleets(), name=st.sampled_from(NAMES))
def test_every_assignment_fits_and_whatever_fits_is_assigned(
    fleet: tuple[list[PendingRequest], list[DeploymentView]], name: str
) -> None:
    requests, views = fleet
    policy = policy_named(name)
    left, given_to = checked(policy.assign(requests, views, 0.0), requests, views, kv=True)
    for item in left:
        assert policy.look_again_s or not any(fits(item, each, given_to, kv=True) for each in views)


@settings(max_examples=50)
@given(fleet=fleets())
def test_cost_leaves_nothing_that_fits_but_a_few_and_who_waits_for_one_with_enough_to_read(
    fleet: tuple[list[PendingRequest], list[DeploymentView]],
) -> None:
    requests, views = fleet
    knowledge = known(views)
    policy = policy_named("cost", knowledge)
    left, given_to = checked(policy.assign(requests, views, 0.0), requests, views, kv=False)
    waiting = [item for item in left if any(fits(item, each, given_to, kv=True) for each in views)]
    assert len(waiting) <= 4 or given_to, "nobody has anything to read"
    assert not waiting or policy.look_again_s is not None


@settings(max_examples=25)
@given(fleet=fleets(), name=st.sampled_from(NAMES), finished=st.lists(st.booleans(), max_size=10))
def test_equal_input_after_an_equal_history_gives_equal_output(
    fleet: tuple[list[PendingRequest], list[DeploymentView]], name: str, finished: list[bool]
) -> None:
    requests, views = fleet

    def told(policy: Policy) -> list[list[Assignment]]:
        rounds = []
        for number, ok in enumerate([True, *finished]):
            rounds.append(policy.assign(requests, views, float(number)))
            for item, each in zip(requests, rounds[-1], strict=False):
                policy.placed(item, each.key, float(number))
                policy.finished(item, each.key, Outcome(ok, 1.0 + number), number + 0.5)
        return rounds

    assert told(policy_named(name, known(views))) == told(policy_named(name, known(views)))


@pytest.mark.parametrize("name", NAMES)
def test_one_on_trial_gets_the_next_request(name: str) -> None:
    trial = view("z", 1)
    trial.trial, trial.cap = True, 1
    views = [view("a", 64), view("b", 64), trial]
    assert policy_named(name, known(views)).assign([request(1)], views, 0.0) == [Assignment(1, "z")]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_gone_is_forgotten(name: str) -> None:
    views = [view("a"), view("b")]
    policy = policy_named(name, known(views))
    for each in views:
        policy.deployment_added(each, 0.0)
    for item in (request(1, session="s"), request(2, session="s")):
        policy.placed(item, "a", 0.0)
        policy.finished(item, "a", Outcome(True, 1.0), 1.0)
    policy.deployment_removed("a", 2.0)
    policy.deployment_removed("never there", 2.0)
    assert policy.assign([request(3, session="s")], [views[1]], 3.0) == [Assignment(3, "b")]


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="cost, least-connections"):
        policy_named("best")


def test_a_request_is_bound_by_anything_but_its_route_that_decides_where_it_may_go() -> None:
    free = structs.replace(request(1, session="s"), prefix=(1, 2), deadline_s=3.0, ttft_s=1.0, tenant="t")
    assert not free.is_bound()
    assert structs.replace(free, avoid=frozenset({"a"})).is_bound()
    assert structs.replace(free, version="2").is_bound()
    assert structs.replace(free, continuing=True).is_bound()
    assert structs.replace(free, where=read_where("region=eu")).is_bound()
    assert structs.replace(free, agent="a").is_bound()
