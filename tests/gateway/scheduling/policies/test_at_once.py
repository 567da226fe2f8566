"""One request that waits alone is decided on at once where there is nothing to wait for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.policies import cost
from gateway.scheduling.scheduler import Scheduler
from tests.gateway.scheduling.views import L4, fleets, request, view


def placed(views: list[DeploymentView], item: PendingRequest, *, at_once: bool) -> object:
    """What ``cost`` says, and when it wants to be asked again."""
    scheduler = Scheduler("cost")
    for each in views:
        scheduler.deployment_added(each, 0.0)
        if each.usable:
            scheduler.placed(structs.replace(item, number=1000), each, 0.0)
    with pytest.MonkeyPatch.context() as patched:
        if not at_once:
            patched.setattr(cost, "choose_at_once", lambda *_: None)
        return scheduler.assign("m", [item], views, 100.0), scheduler.look_again_s("m")


@settings(max_examples=300)
@given(fleet=fleets(), plain=st.booleans())
def test_it_goes_where_a_round_would_send_it(
    fleet: tuple[list[PendingRequest], list[DeploymentView]], plain: bool
) -> None:
    items, views = fleet
    for item in items[:3]:
        if plain:
            item = structs.replace(item, avoid=frozenset(), version=None, continuing=False, where=None)
        assert placed(views, item, at_once=True) == placed(views, item, at_once=False)


@pytest.mark.parametrize("slow", [0, 1])
def test_no_round_is_made_where_nothing_can_be_waited_for(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_Round", None)
    scheduler, views = Scheduler("cost"), [view("a"), view("b")]
    views[slow].device = L4
    for each in views:
        scheduler.deployment_added(each, 0.0)
    ((assigned,)) = scheduler.assign("m", [request(1)], views, 0.0)
    assert assigned.key == views[1 - slow].key
