"""Two processes of a gateway, of which one has models loaded, for the requests of both."""

from dataclasses import replace

from gateway.cluster.placement_demands import PlacementDemands
from gateway.dispatch.placement import PlacementSettings
from gateway.scheduling.placement.data import PlacementDemand
from shared.protocol.messages import DeploymentStatus
from tests.gateway.dispatch.behaviour.test_command_epochs import PlayedOwnership
from tests.gateway.fleet.fleet import Fleet
from tests.gateway.scheduling.placement.loadable import LOAD, UNLOAD, LoadingAgent, loadable
from tests.support.clock import ManualClock


class Process:
    def __init__(self, *, owns: bool) -> None:
        self.ownership = PlayedOwnership(owns)
        self.demands = PlacementDemands(lambda: self.fleet.loop.now_s)
        settings = PlacementSettings(min_residence_s=0.0)
        self.fleet = Fleet(placement=settings, ownership=self.ownership, demands=self.demands)

    def hears(self, *demands: PlacementDemand) -> None:
        """What another process wants, the ages of its waits as of now."""
        other = PlacementDemands(ManualClock(self.fleet.loop.now_s))
        other.own = lambda now: demands
        self.demands.take_up([other.encode()])
        self.fleet.settle()


def test_only_the_owner_has_models_loaded() -> None:
    process = Process(owns=False)
    agent = LoadingAgent(process.fleet, loadable("m"))
    client = process.fleet.submit()
    process.fleet.advance(5.0)
    assert agent.commands == []
    assert '"m"' in (process.demands.encode() or ""), "the others are told that it is waited for"
    process.ownership.owns = True
    process.demands.changed()
    process.fleet.advance(1.0)
    assert agent.commands == [(LOAD, "m")]
    agent.loaded("m")
    assert agent.streams == 1
    assert not client.settled


def test_the_owner_loads_what_is_waited_for_elsewhere() -> None:
    process = Process(owns=True)
    agent = LoadingAgent(process.fleet, loadable("m"))
    now = process.fleet.loop.now_s
    process.hears(PlacementDemand("m", frozenset({"a/d-m", "unknown/d-m"}), now - 1.0))
    process.fleet.advance(1.0)
    assert agent.commands == [(LOAD, "m")]
    process.hears(PlacementDemand("n", frozenset({"a/d-n"}), now))
    process.fleet.advance(1.0)
    assert agent.commands == [(LOAD, "m")], "no agent of this process has it"


def test_what_other_processes_run_is_not_unloaded_under_them() -> None:
    process = Process(owns=True)
    agent = LoadingAgent(process.fleet, loadable("m", status=DeploymentStatus.LOADED), loadable("n"))
    agent.states["d-m"] = replace(agent.states["d-m"], running=2)
    agent.tell()
    process.fleet.settle()
    wanted = PlacementDemand("n", frozenset({"a/d-n"}), process.fleet.loop.now_s)
    for _ in range(3):
        process.hears(wanted)
        process.fleet.advance(2.0)
    assert agent.commands == []
    agent.states["d-m"] = replace(agent.states["d-m"], running=0)
    agent.tell()
    process.hears(wanted)
    process.fleet.advance(2.0)
    assert agent.commands == [(UNLOAD, "m")]
    agent.unloaded("m")
    process.fleet.advance(2.0)
    assert agent.commands == [(UNLOAD, "m"), (LOAD, "n")]


def test_who_owns_no_more_closes_nothing() -> None:
    process = Process(owns=True)
    agent = LoadingAgent(process.fleet, loadable("m", slots=2, status=DeploymentStatus.LOADED), loadable("n"))
    process.fleet.submit(process.fleet.request("m"))
    process.hears(PlacementDemand("n", frozenset({"a/d-n"}), process.fleet.loop.now_s - 600.0))
    process.fleet.advance(1.0)
    closing = process.fleet.session(agent.agent).deployments["d-m"]
    assert closing.closing
    process.ownership.owns = False
    process.demands.changed()
    process.fleet.advance(1.0)
    assert not closing.closing
    process.fleet.submit(process.fleet.request("m"))
    process.fleet.settle()
    assert agent.streams == 2
