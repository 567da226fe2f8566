"""The admin API tells of agents, models and the queue, and keeps work from agents."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from gateway.api.admin.fleet import FleetAdmin
from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall
from gateway.api.exchange.exchange import HttpExchange
from gateway.app.process_reads import STARTING, ProcessReads
from gateway.domain.request import Principal
from gateway.domain.scopes import AdminRole
from gateway.runtime.workers.siblings import Siblings
from gateway.storage.errors import UnknownRecord
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentState, AgentStatus, DeploymentStatus
from tests.gateway.api.admin.house import House, enrol, follow_holds
from tests.gateway.fleet.fleet import Fleet, deployment


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
    assert (one["deployments"][0]["id"], one["deployments"][0]["managed"]) == ("d-m", False)
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
    enrol(house.store, "gpu-1")
    house.fleet.connect("gpu-1", deployment("m"))
    for _ in range(2):
        _, found, _ = await house.ask("POST", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
        assert found == {"agent": "gpu-1", "draining": True, "streams": 0}
    assert not house.fleet.registry.models()[0].ready
    who = {f"key:{key.id}" for key in house.store.keys.list() if key.role is AdminRole.OPERATOR}
    _, shown, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    assert ({shown["agents"][0]["held_by"]}, shown["agents"][0]["draining"]) == (who, True)
    await house.ask("DELETE", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
    assert house.fleet.registry.models()[0].ready
    noted = [each for each in house.store.acts.pending(99) if each.kind.endswith("drain")]
    assert [(each.kind, {each.who}, each.what) for each in noted] == [
        ("agent.drain", who, {"agent": "gpu-1"}),
        ("agent.undrain", who, {"agent": "gpu-1"}),
    ]


async def test_an_agent_that_is_not_connected_can_be_held_and_is_shown_so(house: House) -> None:
    enrol(house.store, "gpu-1")
    await house.ask("POST", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    (agent,) = found["agents"]
    assert (agent["connected"], agent["draining"]) == (False, True)


async def test_models_and_the_queue_are_shown(house: House) -> None:
    house.fleet.connect("gpu-1", deployment("m", 2))
    _, found, _ = await house.ask("GET", "/admin/models", AdminRole.VIEWER)
    (model,) = found["models"]
    assert (model["id"], model["ready"], model["slots"], model["waiting"]) == ("m", True, 2, 3)
    assert model["deployments"][0]["agent"] == "gpu-1"
    assert model["deployments"][0]["deployment"] == "gpu-1/d-m"
    _, queue, _ = await house.ask("GET", "/admin/queue", AdminRole.VIEWER)
    assert queue == {"waiting": 4, "models": {"m": 3, "n": 1}}


class Workers:
    """Two of a gateway, with fleets of their own, and one store."""

    def __init__(self, house: House, state: Path) -> None:
        self.fleets = [house.fleet, Fleet()]
        self.siblings = [Siblings(state, name, ["h-0", "h-1"]) for name in ("h-0", "h-1")]
        self.admins = [
            FleetAdmin(
                fleet.registry,
                house.store.agents,
                lambda: {"m": 2},
                fleet.registry.clock,
                partial(dict, process=siblings.own, pid=1, state="serving", requests=3),
                ProcessReads(siblings.own, siblings, None),
                partial(follow_holds, fleet, house.store),
            )
            for fleet, siblings in zip(self.fleets, self.siblings, strict=True)
        ]

    async def ask(self, which: int, name: str, agent: str = "gpu-1") -> Json:
        principal = Principal("k", "k", "t", None, None, AdminRole.ADMIN)
        method = getattr(self.admins[which], name)
        return dict(await method(AdminCall(cast(HttpExchange, None), principal, {"agent": agent})))


@pytest.fixture
async def workers(house: House, tmp_path: Path) -> AsyncIterator[Workers]:
    made = Workers(house, tmp_path)
    for each in made.siblings:
        await each.start()
    yield made
    for each in made.siblings:
        each.close()


async def test_whichever_worker_is_asked_tells_of_all(workers: Workers) -> None:
    workers.fleets[1].connect("gpu-1", deployment("m", 2))
    for which in (0, 1):
        (agent,) = (await workers.ask(which, "list_agents"))["agents"]
        assert (agent["name"], agent["connected"]) == ("gpu-1", True)
        (model,) = (await workers.ask(which, "list_models"))["models"]
        assert (model["ready"], model["slots"], model["waiting"]) == (True, 2, 2)
        assert await workers.ask(which, "list_queue") == {"waiting": 4, "models": {"m": 4}}
        shown = (await workers.ask(which, "list_processes"))["processes"]
        assert [(each["process"], each["up"], each["agents"]) for each in shown] == [
            ("h-0", True, 0),
            ("h-1", True, 1),
        ]


async def test_one_that_does_not_answer_is_named(workers: Workers) -> None:
    workers.siblings[1].close()
    for name in ("list_agents", "list_models", "list_queue"):
        found = await workers.ask(0, name)
        assert (found["missing"], found["why_missing"]) == (["h-1"], {"h-1": STARTING})
    shown = (await workers.ask(0, "list_processes"))["processes"]
    assert shown[1] == {"process": "h-1", "up": False, "why": STARTING}


async def test_requests_of_an_agent_that_is_drained_are_counted_in_all_workers(
    house: House, workers: Workers
) -> None:
    enrol(house.store, "gpu-1")
    for fleet in workers.fleets:
        fleet.connect("gpu-1", deployment("m"))
        fleet.submit()
    assert await workers.ask(1, "drain_agent") == {"agent": "gpu-1", "draining": True, "streams": 2}


async def test_a_hold_is_kept_where_one_worker_does_not_answer_and_that_is_said(
    house: House, workers: Workers
) -> None:
    enrol(house.store, "gpu-1")
    workers.siblings[1].close()
    assert await workers.ask(0, "drain_agent") == {
        "agent": "gpu-1",
        "draining": True,
        "streams": 0,
        "missing": ["h-1"],
        "why_missing": {"h-1": STARTING},
    }
    (record,) = house.store.agents.list()
    assert record.held_s is not None


async def test_an_agent_that_never_joined_is_not_found(workers: Workers) -> None:
    with pytest.raises(UnknownRecord, match="gpu-9"):
        await workers.ask(0, "drain_agent", "gpu-9")


@pytest.mark.parametrize("answer", [{}, {"agents": 1}, {"agents": [{"name": 1}]}, {"models": [[]]}])
async def test_one_that_answers_with_something_else_is_named_and_not_believed(
    workers: Workers, answer: Json
) -> None:
    async def answer_so(asked: Json) -> Json:
        return answer

    for question in ("agents", "models", "queue", "process"):
        workers.siblings[1].answer(question, answer_so)
    for name in ("list_agents", "list_models", "list_queue"):
        assert (await workers.ask(0, name))["missing"] == ["h-1"]
    shown = (await workers.ask(0, "list_processes"))["processes"]
    assert [(each["process"], each["up"]) for each in shown] == [("h-0", True), ("h-1", False)]
    assert "something else" in shown[1]["why"]
