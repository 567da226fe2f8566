"""Operators have models loaded and unloaded."""

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.api.admin.models import ModelsAdmin
from gateway.domain.scopes import AdminRole
from tests.gateway.api.admin.house import House
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.scheduling.placement.loadable import (
    LOAD,
    LOADED,
    UNLOAD,
    LoadingAgent,
    finish,
    fleet_of,
    loadable,
)


def offer(house: House, fleet: Fleet) -> None:
    loads, clock = fleet.dispatcher.loads, fleet.registry.clock
    index, depths = fleet.registry.index, fleet.dispatcher.room.depths
    admin = ModelsAdmin(index, loads, house.store.acts, lambda model: depths().get(model, 0), clock)
    house.offer(admin.methods())


async def ask(house: House, path: str, **body: str | None) -> tuple[int, dict[str, Any]]:
    status, found, _ = await house.ask("POST", f"/admin/models/{path}", AdminRole.OPERATOR, body)
    return status, found


def acts(house: House) -> Sequence[tuple[str, object]]:
    return [(each.kind, each.what) for each in house.store.acts.pending(100) if each.kind.startswith("model")]


async def test_a_model_is_loaded_where_it_fits_and_the_act_is_noted(house: House) -> None:
    fleet = fleet_of()
    offer(house, fleet)
    agent = LoadingAgent(fleet, loadable("org/llama"))
    status, found = await ask(house, "org/llama/load")
    assert status == 200
    assert found == {
        **{"model": "org/llama", "agent": None, "version": None, "places": 1, "loaded": 0},
        **{"begun": True, "expected_s": 20.0},
    }
    fleet.settle()
    assert agent.commands == [(LOAD, "org/llama")]
    assert acts(house) == [("model.load", {"model": "org/llama", "agent": None, "version": None})]
    (actor,) = {each.who for each in house.store.acts.pending(100) if each.kind == "model.load"}
    assert actor.startswith("key:")
    _, found = await ask(house, "org/llama/load")
    assert (found["begun"], found["loaded"]) == (False, 1), "it is being loaded at its only place"


async def test_the_wish_outlasts_the_time_for_which_another_stays(house: House) -> None:
    fleet = fleet_of(min_residence_s=100.0)
    offer(house, fleet)
    agent = LoadingAgent(fleet, loadable("m"), loadable("n"))
    fleet.submit()
    agent.loaded("m", after_s=20.0)
    finish(agent)
    await ask(house, "n/load")
    fleet.advance(90.0)
    assert agent.commands == [(LOAD, "m")]
    fleet.advance(20.0)
    agent.unloaded("m")
    fleet.advance(1.0)
    assert agent.commands == [(LOAD, "m"), (UNLOAD, "m"), (LOAD, "n")]


async def test_a_model_is_loaded_at_a_host_that_is_named_and_once_more_where_none_is(house: House) -> None:
    fleet = fleet_of()
    offer(house, fleet)
    a, b, c = (LoadingAgent(fleet, loadable("m"), name=name) for name in "abc")
    await ask(house, "m/load", agent="b")
    fleet.settle()
    assert [each.commands for each in (a, b, c)] == [[], [(LOAD, "m")], []]
    b.loaded("m", after_s=5.0)
    _, found = await ask(house, "m/load")
    assert (found["places"], found["loaded"]) == (3, 1)
    fleet.advance(1.0)
    assert len([*a.commands, *c.commands]) == 1


async def test_a_model_is_unloaded_everywhere_or_at_one_host(house: House) -> None:
    fleet = fleet_of()
    offer(house, fleet)
    a, b, c = (LoadingAgent(fleet, loadable("m", status=LOADED), name=name) for name in "abc")
    fleet.submit()
    _, found = await ask(house, "m/evict", agent="c")
    fleet.advance(0.2)
    assert ([a.commands, b.commands, c.commands], found["deployments"][0]["agent"]) == (
        [[], [], [(UNLOAD, "m")]],
        "c",
    )
    c.unloaded("m")
    _, found = await ask(house, "m/evict")
    assert sorted((each["agent"], each["running"]) for each in found["deployments"]) == [("a", 1), ("b", 0)]
    assert (found["waiting"], found["kept"]) == (0, [])
    fleet.advance(0.2)
    assert (a.commands, b.commands) == ([], [(UNLOAD, "m")])
    assert [kind for kind, _ in acts(house)] == ["model.evict", "model.evict"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("unknown/load", {}, 404, "No agent that is connected has 'unknown'"),
        ("m/load", {"agent": "b"}, 404, "No engine of 'b' would load 'm'"),
        ("m/load", {"version": "7"}, 404, "in the version '7'"),
        ("m/evict", {}, 404, "No agent that is connected has 'm' loaded"),
        ("foreign/evict", {}, 409, "started by somebody else"),
        ("foreign/load", {}, 409, "started by somebody else"),
        ("m/load", {"agents": "a"}, 400, "no member 'agents'"),
        ("m/load", {"agent": ""}, 400, "'agent' is a text"),
        ("m/load", {"agent": 7}, 400, "'agent' is a text"),
        ("m/load", {"version": "x" * 257}, 400, "1 to 256 characters"),
        ("huge/load", {}, 503, "more memory"),
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason(
    house: House, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    fleet = fleet_of()
    offer(house, fleet)
    LoadingAgent(fleet, loadable("m"), loadable("huge", 1000), name="a")
    fleet.connect("c", deployment("foreign"))
    if status == 503:  # as one that was asked for has shown
        fleet.submit(fleet.request("huge"))
        fleet.settle()
    found_status, found = await ask(house, path, **body)
    assert found_status == status
    assert words in found["error"]["message"]
    assert acts(house) == [], "what is refused leaves no note"


async def test_a_model_behind_another_gateway_is_its_to_unload(house: House) -> None:
    fleet = fleet_of()
    offer(house, fleet)
    agent = LoadingAgent(fleet, loadable("m", status=LOADED), name="child")
    for each in fleet.registry.index.models["m"].managed.values():
        each.via = ("gateway-of-oslo",)
    status, found = await ask(house, "m/evict")
    assert (status, found["error"]["code"]) == (409, "not_on_demand")
    assert "child is a gateway" in found["error"]["message"]
    assert agent.commands == []


async def test_a_gateway_that_loads_nothing_on_demand_says_so(house: House) -> None:
    fleet = Fleet()
    offer(house, fleet)
    status, found = await ask(house, "m/load")
    assert (status, found["error"]["code"]) == (409, "not_on_demand")
    assert "placement.enabled" in found["error"]["message"]


@pytest.mark.parametrize("act", ["load", "evict"])
async def test_it_takes_an_operator(house: House, act: str) -> None:
    fleet = fleet_of()
    offer(house, fleet)
    agent = LoadingAgent(fleet, loadable("m"), loadable("n", status=LOADED), memory=20)
    model = "m" if act == "load" else "n"
    for role in (None, AdminRole.VIEWER):
        status, found, _ = await house.ask("POST", f"/admin/models/{model}/{act}", role)
        assert (status, found["error"]["code"]) == (403, "role_required")
    fleet.advance(1.0)
    assert (agent.commands, acts(house)) == ([], [])
    status, _, _ = await house.ask("POST", f"/admin/models/{model}/{act}", AdminRole.OPERATOR)
    assert status == 200


async def test_what_answers_no_requests_that_are_known_here_is_not_loaded(house: House) -> None:
    """An agent of a later version may name routes that this gateway does not know."""
    fleet = fleet_of()
    offer(house, fleet)
    agent = LoadingAgent(fleet, loadable("m", routes=("of-tomorrow",)))
    status, found = await ask(house, "m/load")
    assert (status, found["error"]["message"]) == (404, "No agent that is connected would load 'm'.")
    assert not agent.commands
    assert not acts(house)
