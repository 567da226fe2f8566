"""What waits at the parent is passed on to the agents that lend this gateway's processes their slots."""

from collections.abc import Mapping

from shared.protocol.demand import Demand
from shared.protocol.peers import CAPABILITIES
from tests.gateway.fleet.fleet import FakeAgent, deployment
from tests.gateway.uplink.child import Child


def _child(*slots: int) -> Child:
    """One of several processes: its agents lend it these slots, and are told what waits."""
    child = Child(*slots)
    child.fleet.dispatcher.demand.passed_on = child.capacity.slots.waiting
    for agent in child.agents:
        child.fleet.dispatcher.agreed(child.fleet.sessions[id(agent)], CAPABILITIES)
    return child


def _parent_says(child: Child, waiting: int) -> None:
    demands = {"m": Demand(waiting, waiting, 1.0, 3.0)} if waiting else {}
    child.capacity.slots.set_demands(child, demands, None)
    child.fleet.settle()


def _heard(agent: FakeAgent) -> Mapping[str, Demand]:
    return agent.demand or {}


def test_agents_hear_of_it_and_that_it_is_over() -> None:
    child = _child(0, 0)
    _parent_says(child, 3)
    assert [_heard(each) for each in child.agents] == [{"m": Demand(2, 0, 1.0, 0.0)}] * 2, "each its part"
    _parent_says(child, 0)
    child.fleet.advance(1.0)
    assert [_heard(each) for each in child.agents] == [{}, {}]


async def test_a_slot_that_an_agent_lends_for_it_is_offered_to_the_parent_and_used() -> None:
    child = _child(0)
    (agent,) = child.agents
    group = child.capacity.state().deployments[0].id
    _parent_says(child, 1)
    assert child.capacity.levels(child) == {group: 0}
    agent.serve(deployment("m", 1))
    child.fleet.settle()
    assert child.capacity.levels(child) == {group: 1}
    stream = child.ask()
    assert child.capacity.slots.waiting("m") is None, "it has come"
    child.fleet.advance(1.0)
    await child.answer(agent, b"done")
    assert stream.data == b"done"
    child.fleet.advance(1.0)
    assert _heard(agent) in ({}, {"m": Demand(1, 0, 1.0, 0.0)}), "both sides took the request for one less"


def test_clients_of_this_gateway_come_first() -> None:
    child = _child(0)
    _parent_says(child, 4)
    own = child.fleet.submit()
    child.fleet.advance(1.0)
    (heard,) = _heard(child.agents[0]).values()
    assert (heard.waiting, heard.weight > 0) == (1, True)
    own.cancel()
    child.fleet.advance(2.0)
    assert _heard(child.agents[0]) == {"m": Demand(4, 0, 1.0, 0.0)}


def test_the_same_number_of_others_requests_is_told_as_well() -> None:
    child = _child(0)
    own = child.fleet.submit()
    child.fleet.settle()
    assert _heard(child.agents[0])["m"].weight > 0
    _parent_says(child, 1)
    own.cancel()
    child.fleet.advance(2.0)
    assert _heard(child.agents[0]) == {"m": Demand(1, 0, 1.0, 0.0)}
