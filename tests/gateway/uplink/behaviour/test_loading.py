"""The parent's commands to load reach an agent behind the child, by the child's own placement."""

import pytest

from gateway.dispatch.placement import PlacementSettings
from gateway.uplink.load_wishes import COPY_HOLD_S, HOLD_S, NO_ROOM
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Command, CommandResult, CommandVerb, DeploymentState
from tests.gateway.scheduling.placement.loadable import (
    FAILED,
    LOADABLE,
    LOADED,
    LOADING,
    LoadingAgent,
    loadable,
)
from tests.gateway.uplink.child import Child


def _child() -> Child:
    return Child(placement=PlacementSettings())


def _offered(child: Child) -> dict[str, DeploymentState]:
    """By model."""
    return {each.model: each for each in child.capacity.state().deployments}


def _told(child: Child, group: str, verb: CommandVerb = CommandVerb.LOAD) -> CommandResult:
    result = child.capacity.carry_out(Command(7, verb, group))
    child.fleet.settle()
    child.fleet.advance(1.0)
    assert result.id == 7
    return result


def _seconds(child: Child, count: int) -> None:
    for _ in range(count):
        child.capacity.observe()
        child.fleet.advance(1.0)


def test_what_agents_would_load_is_offered_and_loaded_when_the_parent_says_so() -> None:
    child = _child()
    agent = LoadingAgent(child.fleet, loadable("m", slots=3))
    group = _offered(child)["m"]
    assert (group.status, group.managed, group.slots, group.load_s) == (LOADABLE, True, 3, 20.0)
    assert child.capacity.levels(None) == {group.id: 0}
    assert _told(child, group.id).ok
    assert agent.commands == [("load", "m")]
    assert _offered(child)["m"].status is LOADING
    agent.become("m", LOADING, load_progress=0.5)
    assert _offered(child)["m"].load_progress == 0.5
    agent.loaded("m")
    found = _offered(child)["m"]
    assert (found.id, found.status, child.capacity.levels(None)) == (group.id, LOADED, {group.id: 3})
    assert _told(child, group.id).ok, "it is loaded already"
    assert agent.commands == [("load", "m")]


def test_the_child_decides_what_goes_for_it() -> None:
    child = _child()
    agent = LoadingAgent(child.fleet, loadable("m"), loadable("n", status=LOADED))
    assert _told(child, _offered(child)["m"].id).ok
    assert _offered(child)["m"].status is LOADING, "as the parent was told"
    assert agent.commands == [("unload", "n")]
    agent.unloaded("n")
    child.fleet.advance(1.0)
    assert agent.commands == [("unload", "n"), ("load", "m")]


def test_it_is_loaded_where_the_parent_wants_it() -> None:
    child = _child()
    agents = {
        name: LoadingAgent(child.fleet, loadable("m"), name=name, labels={"region": name})
        for name in ("eu", "us")
    }
    anywhere = LoadingAgent(child.fleet, loadable("m"), name="anywhere")
    groups = {(each.labels or {}).get("region"): each.id for each in child.capacity.state().deployments}
    assert _told(child, groups["us"]).ok
    assert (agents["us"].commands, agents["eu"].commands) == ([("load", "m")], [])
    assert _told(child, groups[None]).ok
    assert (anywhere.commands, agents["eu"].commands) == ([("load", "m")], [])


def test_a_load_that_fails_is_told_with_its_reason() -> None:
    child = _child()
    agent = LoadingAgent(child.fleet, loadable("m"))
    group = _offered(child)["m"]
    _told(child, group.id)
    agent.become("m", FAILED, reason="no CUDA")
    assert _offered(child)["m"].status is LOADING, "the child tries again"
    for _ in range(30):
        if agent.states["d-m"].status is LOADING:
            agent.become("m", FAILED, reason="no CUDA")
        _seconds(child, 1)
    found = _offered(child)["m"]
    assert (found.status, found.reason) == (FAILED, "no CUDA")


def test_without_room_the_parent_is_told_in_the_end() -> None:
    child = _child()
    LoadingAgent(child.fleet, loadable("m", memory=20))
    group = _offered(child)["m"]
    assert _told(child, group.id).ok
    _seconds(child, 3)
    found = _offered(child)["m"]
    assert found.status is FAILED
    assert "memory" in found.reason or found.reason == NO_ROOM.format(HOLD_S)


@pytest.mark.parametrize("verb", CommandVerb)
def test_what_is_not_there_or_leaves_is_refused(verb: CommandVerb) -> None:
    child = _child()
    LoadingAgent(child.fleet, loadable("m"))
    group = _offered(child)["m"]
    assert "no such deployment" in _told(child, "other", verb).error
    child.capacity.drain()
    assert "draining" in _told(child, group.id, verb).error


def test_the_parent_has_nothing_unloaded_but_may_want_it_no_more() -> None:
    child = _child()
    LoadingAgent(child.fleet, loadable("n", status=LOADED), loadable("m"))
    groups = {model: each.id for model, each in _offered(child).items()}
    assert "decides itself" in _told(child, groups["n"], CommandVerb.UNLOAD).error
    assert "decides itself" in _told(child, groups["m"], CommandVerb.UNLOAD).error


async def test_a_request_that_comes_before_the_model_waits_for_it_at_the_parent() -> None:
    child = _child()
    LoadingAgent(child.fleet, loadable("m"))
    stream = child.ask()
    assert stream.reset_with == (ErrorCode.REFUSED, "the model is not loaded now")


def _copy(child: Child) -> DeploymentState:
    """What is offered of one more copy."""
    (copy,) = (each for each in child.capacity.state().deployments if each.status is not LOADED)
    return copy


def test_one_more_copy_is_offered_loaded_once_and_then_part_of_what_is_loaded() -> None:
    child = _child()
    agents = [
        LoadingAgent(child.fleet, loadable("m", status=status, slots=2), name=f"a{n}")
        for n, status in enumerate((LOADED, LOADABLE, LOADABLE))
    ]
    group, copy = child.capacity.state().deployments
    assert (group.status, copy.status, copy.model, copy.managed, copy.slots) == (
        LOADED,
        LOADABLE,
        "m",
        True,
        2,
    )
    assert child.capacity.levels(None) == {group.id: 2}
    assert _told(child, copy.id).ok
    assert [each.commands for each in agents] == [[], [("load", "m")], []]
    assert (_copy(child).id, _copy(child).status) == (copy.id, LOADING)
    _seconds(child, 5)
    agents[1].become("m", LOADING, load_progress=0.5)
    assert (_copy(child).status, _copy(child).load_progress) == (LOADING, 0.5)
    agents[1].loaded("m")
    _seconds(child, 40)
    assert [each.commands for each in agents] == [[], [("load", "m")], []], "one more, and no third"
    group, further = child.capacity.state().deployments
    assert (group.slots, child.capacity.levels(None)) == (4, {group.id: 4})
    assert (further.id != copy.id, further.status) == (True, LOADABLE)
    assert "no such deployment" in _told(child, copy.id).error
    assert _told(child, further.id).ok
    assert agents[2].commands == [("load", "m")]


def test_a_copy_for_which_there_is_no_room_fails_soon_and_nothing_that_is_used_goes_for_it() -> None:
    child = _child()
    LoadingAgent(child.fleet, loadable("m", status=LOADED), name="a")
    busy = LoadingAgent(child.fleet, loadable("m"), loadable("n", status=LOADED), name="b")
    running = child.fleet.submit(child.fleet.request("n"))
    child.fleet.settle()
    assert len(busy.agent.open_streams) == 1
    copy = _offered_copy(child, "m")
    assert _told(child, copy.id).ok
    _seconds(child, int(COPY_HOLD_S) + 1)
    found = _offered_copy(child, "m")
    assert (found.status, found.reason) == (FAILED, NO_ROOM.format(COPY_HOLD_S))
    assert busy.commands == []
    running.cancel()


def _offered_copy(child: Child, model: str) -> DeploymentState:
    offered = [each for each in child.capacity.state().deployments if each.model == model]
    return offered[-1]


def test_the_parent_may_want_a_copy_no_more() -> None:
    child = _child()
    LoadingAgent(child.fleet, loadable("m", status=LOADED), name="a")
    LoadingAgent(child.fleet, loadable("n", status=LOADED), loadable("m"), name="b")
    copy = _offered_copy(child, "m")
    assert "decides itself" in _told(child, copy.id, CommandVerb.UNLOAD).error
    assert _told(child, copy.id).ok
    assert _told(child, copy.id, CommandVerb.UNLOAD).ok
    assert _offered_copy(child, "m").status is LOADABLE
