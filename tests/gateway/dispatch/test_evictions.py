"""What an operator wants unloaded gets nothing new, ends what it runs, and goes."""

from dataclasses import replace

import structlog

from gateway.cluster.placement_demands import EvictionWish, PlacementDemands
from gateway.dispatch.evictions import EVICTION_S
from gateway.domain.request import Tier
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.placement.data import PlacementDemand
from tests.gateway.dispatch.behaviour.test_shared_placement import Process
from tests.gateway.fleet.fleet import Fleet
from tests.gateway.scheduling.placement.loadable import (
    LOAD,
    LOADED,
    UNLOAD,
    LoadingAgent,
    finish,
    fleet_of,
    loadable,
)
from tests.support.clock import ManualClock


def evict(fleet: Fleet, model: str = "m", *keys: str) -> None:
    assert fleet.dispatcher.loads is not None
    fleet.dispatcher.loads.evict(EvictionWish("1", model, frozenset(keys)))
    fleet.settle()
    fleet.advance(0.2)


def test_what_runs_nothing_is_unloaded_at_once_and_loaded_again_when_it_is_asked_for() -> None:
    fleet = fleet_of(min_residence_s=1000.0, pinned=("m",))
    agent = LoadingAgent(fleet, loadable("m", status=LOADED))
    evict(fleet)
    assert agent.commands == [(UNLOAD, "m")], "neither its residence nor a pin keeps it"
    agent.unloaded("m")
    fleet.advance(60.0)
    assert agent.commands == [(UNLOAD, "m")]
    fleet.submit()
    assert agent.commands == [(UNLOAD, "m"), (LOAD, "m")]


def test_what_runs_something_ends_it_first_and_gets_nothing_new() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", slots=2, status=LOADED))
    first = fleet.submit()
    evict(fleet)
    late = fleet.submit()
    assert (agent.streams, agent.commands) == (1, [])
    finish(agent)
    fleet.advance(0.2)
    assert first.response.status == 200
    assert agent.commands == [(UNLOAD, "m")]
    agent.unloaded("m")
    fleet.advance(0.2)
    assert agent.commands == [(UNLOAD, "m"), (LOAD, "m")], "somebody waits for it"
    assert not late.settled


def test_only_the_deployments_that_are_named_go() -> None:
    fleet = fleet_of()
    a = LoadingAgent(fleet, loadable("m", status=LOADED))
    b = LoadingAgent(fleet, loadable("m", status=LOADED), loadable("n", status=LOADED), name="b", memory=20)
    evict(fleet, "m", "b/d-m")
    assert (a.commands, b.commands) == ([], [(UNLOAD, "m")])
    evict(fleet, "n")
    assert (a.commands, b.commands) == ([], [(UNLOAD, "m"), (UNLOAD, "n")])


def test_a_wish_to_load_it_is_over_with_a_wish_to_unload_it() -> None:
    fleet = fleet_of()
    agent, loads = LoadingAgent(fleet, loadable("m")), fleet.dispatcher.loads
    assert loads is not None
    assert loads.wish("m", DeploymentConstraints("chat"), fleet.loop.now_s, for_s=300.0) is None
    fleet.settle()
    agent.loaded("m", after_s=20.0)
    evict(fleet)
    agent.unloaded("m")
    fleet.advance(100.0)
    assert agent.commands == [(LOAD, "m"), (UNLOAD, "m")]


def test_it_stays_where_requests_do_not_end_in_time() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", slots=2, status=LOADED))
    fleet.submit()
    evict(fleet)
    with structlog.testing.capture_logs() as logs:
        for _ in range(int(EVICTION_S)):
            fleet.advance(1.0)
    told = [each["event"] for each in logs if each["event"].startswith("model")]
    assert told == ["model_eviction_given_up"]
    fleet.submit()
    assert (agent.streams, agent.commands) == (2, [])


def test_an_agent_that_refuses_keeps_it_and_it_is_used_again() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", status=LOADED))
    agent.refuses = "another gateway uses it"
    evict(fleet)
    fleet.advance(30.0)
    assert agent.commands == [(UNLOAD, "m")], "it is asked once"
    fleet.submit()
    assert agent.streams == 1


def test_what_is_not_loaded_and_what_nobody_manages_is_left_alone() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"), replace(loadable("n", status=LOADED), managed=False))
    for model in ("m", "n", "unknown"):
        evict(fleet, model)
    assert agent.commands == []


def test_a_session_that_ends_meanwhile_ends_the_wish() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", status=LOADED))
    fleet.submit()
    evict(fleet)
    fleet.cut(agent.agent)
    fleet.advance(EVICTION_S + 10.0)
    again = LoadingAgent(fleet, loadable("m", status=LOADED))
    fleet.submit()
    assert (again.streams, again.commands) == (1, [])


def heard(process: Process, row: str | None) -> None:
    process.demands.take_up([row])
    process.fleet.settle()
    process.fleet.advance(0.2)


def test_every_process_stops_sending_and_the_owner_unloads_once() -> None:
    asked, owner = Process(owns=False), Process(owns=True)
    there = LoadingAgent(asked.fleet, loadable("m", slots=2, status=LOADED))
    same = LoadingAgent(owner.fleet, loadable("m", slots=2, status=LOADED))
    evict(asked.fleet)
    asked.fleet.submit()
    assert (there.streams, there.commands) == (0, [])
    row = asked.demands.encode()
    heard(owner, row)
    assert same.commands == [(UNLOAD, "m")]
    same.unloaded("m")
    same.become("m", LOADED)
    heard(owner, row)
    assert same.commands == [(UNLOAD, "m")], "the row is still read, and is none that is new"
    asked.fleet.advance(11.0)
    assert "evict" not in (asked.demands.encode() or "").replace('"evict":""', "")


def test_a_process_of_an_earlier_version_reads_a_model_that_waits_for_nothing() -> None:
    demands = PlacementDemands(ManualClock())
    demands.tell(EvictionWish("1", "m", frozenset({"a/d-m"})))
    demands.own = lambda now: [PlacementDemand("n", frozenset({"a/d-n"}), now, tier=Tier.REALTIME)]
    other = PlacementDemands(ManualClock())
    other.take_up([(demands.encode() or "").replace('"evict":"1"', '"new":"1"')])
    found = {each.model: each for each in other.with_others([], lambda model: {f"a/d-{model}"})}
    assert (found["m"].served, found["m"].requests, found["m"].wait_s) == (True, 0, 0.0)
    assert not found["n"].served
