"""The first policy: least outstanding work per unit of speed."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling import POLICIES, policy_named
from gateway.scheduling.base import NO_CAP, Assignment, DeploymentView, PendingRequest
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.least_outstanding import SAMPLE, LeastOutstanding

ROUTES = ("chat", "embeddings", "rerank")


def view(
    key: str,
    slots: int = 1,
    in_flight: int = 0,
    *,
    routes: Iterable[str] = ("chat",),
    outstanding: float = 0.0,
    speed: float = 1.0,
    usable: bool = True,
    cap: int = NO_CAP,
    version: str = "",
    continues: Iterable[str] = (),
) -> DeploymentView:
    return DeploymentView(
        key,
        "agent",
        "m",
        frozenset(routes),
        slots,
        in_flight,
        outstanding,
        speed=speed,
        usable=usable,
        cap=cap,
        version=version,
        continues=dict.fromkeys(continues, "prompt"),
    )


def waiting(
    number: int,
    work: float = 100.0,
    route: str = "chat",
    avoid: tuple[str, ...] = (),
    version: str | None = None,
    continuing: bool = False,
) -> PendingRequest:
    return PendingRequest(
        number, route, work, 0.0, avoid=frozenset(avoid), version=version, continuing=continuing
    )


def assign(requests: list[PendingRequest], deployments: list[DeploymentView]) -> list[tuple[int, str]]:
    return [(each.number, each.key) for each in LeastOutstanding().assign(requests, deployments, 0.0)]


def test_the_deployment_with_least_outstanding_work_is_chosen() -> None:
    views = [view("a", 4, 1, outstanding=500.0), view("b", 4, 1, outstanding=100.0)]
    assert assign([waiting(1)], views) == [(1, "b")]


def test_outstanding_work_counts_less_where_work_is_done_faster() -> None:
    slow, fast = view("a", 4, 1, outstanding=300.0), view("b", 4, 1, outstanding=400.0, speed=4.0)
    assert assign([waiting(1)], [slow, fast]) == [(1, "b")]


def test_of_two_idle_deployments_the_larger_is_taken() -> None:
    assert assign([waiting(1)], [view("a", 1), view("b", 8)]) == [(1, "b")]


def test_ties_go_to_fewer_in_flight_then_to_the_key() -> None:
    assert assign([waiting(1)], [view("a", 4, 2), view("b", 4, 1)]) == [(1, "b")]
    assert assign([waiting(1)], [view("b", 4), view("a", 4)]) == [(1, "a")]


def test_several_requests_spread_over_equal_deployments() -> None:
    keys = [key for _, key in assign([waiting(n) for n in range(4)], [view("a", 4), view("b", 4)])]
    assert sorted(keys) == ["a", "a", "b", "b"]


def test_no_deployment_gets_more_than_it_has_slots_for() -> None:
    assert assign([waiting(n) for n in range(5)], [view("a", 3, 1)]) == [(0, "a"), (1, "a")]


def test_unusable_deployments_and_other_routes_and_avoided_ones_get_nothing() -> None:
    views = [
        view("unusable", 4, usable=False),
        view("route", 4, routes=frozenset({"rerank"})),
        view("avoided", 4),
        view("full", 2, 2),
    ]
    assert assign([waiting(1, avoid=("avoided",))], views) == []


def test_no_deployment_gets_more_than_its_health_lets_it_have() -> None:
    views = [view("ramping", 8, 1, cap=3), view("shut", 8, cap=0)]
    assert assign([waiting(n) for n in range(5)], views) == [(0, "ramping"), (1, "ramping")]


def test_one_on_trial_gets_the_next_request_however_small_or_busy_it_is() -> None:
    trial = view("small", 1, outstanding=9e9)
    trial.trial, trial.cap = True, 1
    assert assign([waiting(1), waiting(2)], [view("large", 64), trial]) == [(1, "small"), (2, "large")]


def test_an_answer_goes_on_only_where_the_version_and_the_ability_are() -> None:
    views = [
        view("old", 4, version="v1", continues=["chat"]),
        view("unable", 4, version="v2"),
        view("able", 4, 3, version="v2", continues=["chat"], outstanding=9e9),
    ]
    requests = [waiting(n, version="v2", continuing=True) for n in range(2)]
    assert assign(requests, views) == [(0, "able")]
    assert {key for _, key in assign([waiting(n, version="v2") for n in range(5)], views)} == {
        "unable",
        "able",
    }


def test_a_deployment_of_any_route_takes_every_route() -> None:
    assert assign([waiting(1, route="images")], [view("a", routes=frozenset({"any"}))]) == [(1, "a")]


def test_who_fits_nowhere_does_not_hold_back_those_behind() -> None:
    requests = [waiting(1, route="rerank"), waiting(2, avoid=("a",)), waiting(3)]
    assert assign(requests, [view("a", 4)]) == [(3, "a")]


def test_in_a_large_fleet_the_one_free_fit_is_found_though_not_in_the_sample() -> None:
    views = [view(f"{n:04}", 1) for n in range(20 * SAMPLE)]
    views[777].routes = frozenset({"rerank"})
    assert assign([waiting(1, route="rerank")], views) == [(1, "0777")]


def test_policies_are_found_by_name() -> None:
    assert isinstance(policy_named("least-outstanding"), LeastOutstanding)
    assert all(POLICIES[name](Knowledge()).name == name for name in POLICIES)
    with pytest.raises(ValueError, match="least-outstanding"):
        policy_named("best")


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[PendingRequest], list[DeploymentView]]:
    keys = [f"d{n}" for n in range(draw(st.sampled_from([2, 5, 1, 3, 5, 0])))]
    views = [
        view(
            key,
            draw(st.sampled_from([2, 1, 4, 0])),
            draw(st.sampled_from([0, 0, 1, 3])),
            outstanding=draw(st.floats(0, 1e4)),
            usable=draw(st.integers(0, 9)) < 9,
            routes=draw(st.sampled_from([ROUTES, ("any",), ROUTES[:1], ROUTES[1:], ()])),
            cap=draw(st.sampled_from([NO_CAP, NO_CAP, NO_CAP, 0, 1, 2])),
            version=draw(st.sampled_from(["v1", "v1", "v2"])),
            continues=draw(st.sets(st.sampled_from(ROUTES), max_size=2)),
        )
        for key in keys
    ]
    requests = [
        waiting(
            number,
            draw(st.floats(1, 1e4)),
            draw(st.sampled_from(ROUTES)),
            tuple(draw(st.sets(st.sampled_from(keys), max_size=2))) if keys else (),
            draw(st.sampled_from([None, None, None, "v1", "v2"])),
            draw(st.integers(0, 4)) == 4,
        )
        for number in range(draw(st.integers(0, 12)))
    ]
    return requests, views


def fits(request: PendingRequest, deployment: DeploymentView, given: int) -> bool:
    if request.version not in (None, deployment.version):
        return False
    if request.continuing and request.route not in deployment.continues:
        return False
    return (
        deployment.free > given and deployment.supports(request.route) and deployment.key not in request.avoid
    )


@settings(max_examples=40)
@given(fleets())
def test_every_assignment_fits_and_whatever_fits_is_assigned(
    fleet: tuple[list[PendingRequest], list[DeploymentView]],
) -> None:
    requests, views = fleet
    assignments = LeastOutstanding().assign(requests, views, 0.0)
    by_key = {each.key: each for each in views}
    by_number = {each.number: each for each in requests}
    given_to: dict[str, int] = {}
    for each in assignments:
        assert fits(by_number.pop(each.number), by_key[each.key], given_to.get(each.key, 0))
        given_to[each.key] = given_to.get(each.key, 0) + 1
    for left in by_number.values():
        assert not any(fits(left, each, given_to.get(each.key, 0)) for each in views)


@settings(max_examples=40)
@given(fleets())
def test_equal_input_gives_equal_output(fleet: tuple[list[PendingRequest], list[DeploymentView]]) -> None:
    requests, views = fleet
    first: list[Assignment] = LeastOutstanding().assign(requests, views, 0.0)
    assert LeastOutstanding().assign(requests, views, 5.0) == first
