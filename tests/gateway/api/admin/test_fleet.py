"""The admin API tells of agents, models and the queue, and keeps work from agents."""

from dataclasses import replace

from gateway.domain.scopes import AdminRole
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentState, AgentStatus, DeploymentStatus
from tests.gateway.api.admin.house import House, enrol
from tests.gateway.fleet.fleet import deployment


async def test_agents_are_shown_connected_or_not(house: House) -> None:
    enrol(house.store, "gpu-1")
    enrol(house.store, "gpu-2")
    enrol(house.store, "gone")
    house.store.agents.revoke("gone", "", 3.0)
    house.fleet.connect("gpu-1", deployment("m", 2))
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    one, two = found["agents"]
    assert (one["name"], one["connected"], one["status"], one["draining"]) == ("gpu-1", True, "READY", False)
    assert (one["may_serve"], one["deployments"][0]["model"]) == (["llama-*"], "m")
    assert (two["name"], two["connected"], two["labels"]) == ("gpu-2", False, {"region": "eu"})


async def test_every_engine_of_an_agent_is_shown_and_why_it_does_not_serve(house: House) -> None:
    agent = house.fleet.connect("gpu-1")
    engines = (
        EngineState("e", DeploymentStatus.LOADED, kind="vllm"),
        EngineState("torch", DeploymentStatus.LOADING, "reading the weights", "", 0.25, 6.0, 24.0),
    )
    agent.endpoint.send_state(
        AgentState(AgentStatus.READY, (deployment("m", id="e/m"),), engines=engines, reason="r")
    )
    house.fleet.settle()
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    (one,) = found["agents"]
    assert one["reason"] == "r"
    assert [(e["name"], e["status"], e["kind"]) for e in one["engines"]] == [
        ("e", "loaded", "vllm"),
        ("torch", "loading", ""),
    ]
    assert [e["models"] for e in one["engines"]] == [["m"], []]
    torch = one["engines"][1]
    assert (torch["reason"], torch["loading"]) == ("reading the weights", "25 %, 6 s of about 24 s")
    assert (torch["load_progress"], torch["loading_s"], torch["load_s"]) == (0.25, 6.0, 24.0)


async def test_an_engines_kind_is_that_of_its_deployments_where_an_agent_does_not_tell_it(
    house: House,
) -> None:
    """Agents of earlier versions told none of engines of no known kind."""
    agent = house.fleet.connect("gpu-1")
    engines = (EngineState("e", DeploymentStatus.LOADED), EngineState("f", DeploymentStatus.FAILED))
    offered = replace(deployment("m", id="e/m"), kind="generic")
    agent.endpoint.send_state(AgentState(AgentStatus.READY, (offered,), engines=engines))
    house.fleet.settle()
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    assert [each["kind"] for each in found["agents"][0]["engines"]] == ["generic", ""]


async def test_an_operator_keeps_work_from_an_agent_and_gives_it_back(house: House) -> None:
    house.fleet.connect("gpu-1", deployment("m"))
    _, found, _ = await house.ask("POST", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
    assert found == {"agent": "gpu-1", "draining": True, "streams": 0}
    assert not house.fleet.registry.models()[0].ready
    await house.ask("DELETE", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
    assert house.fleet.registry.models()[0].ready
    who = {f"key:{key.id}" for key in house.store.keys.list() if key.role is AdminRole.OPERATOR}
    assert [(kind, {by}, agent) for kind, by, agent in house.noted] == [
        ("agent.drain", who, "gpu-1"),
        ("agent.undrain", who, "gpu-1"),
    ]


async def test_models_and_the_queue_are_shown(house: House) -> None:
    house.fleet.connect("gpu-1", deployment("m", 2))
    _, found, _ = await house.ask("GET", "/admin/models", AdminRole.VIEWER)
    (model,) = found["models"]
    assert (model["id"], model["ready"], model["slots"], model["waiting"]) == ("m", True, 2, 3)
    assert model["deployments"][0]["agent"] == "gpu-1"
    _, queue, _ = await house.ask("GET", "/admin/queue", AdminRole.VIEWER)
    assert queue == {"waiting": 4, "models": {"m": 3, "n": 1}}
