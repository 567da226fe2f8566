"""Agents whose slots are divided among several processes of the gateway (PROTOCOL §4.7)."""

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.request import RequestBody, Tier
from shared.protocol.demand import Demand
from shared.protocol.errors import ErrorCode
from shared.protocol.peers import CAPABILITIES
from tests.gateway.dispatch.answers import finish
from tests.gateway.dispatch.streamed_answers import BODY, able
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment


def shared(fleet: Fleet, name: str, slots: int = 1) -> FakeAgent:
    """An agent with which everything is agreed on that this version knows."""
    agent = fleet.connect(name, able(slots=slots))
    fleet.dispatcher.agreed(fleet.sessions[id(agent)], CAPABILITIES)
    return agent


def refuse(fleet: Fleet, agent: FakeAgent) -> None:
    """The request crossed a lowered level; with the next turn there is a slot again."""
    agent.open_streams[0].stream.reset(ErrorCode.REFUSED, "its level was lowered")
    fleet.settle()


async def test_a_request_that_crossed_a_lowered_level_goes_there_again_without_a_rest() -> None:
    fleet = Fleet(settings=DispatchSettings(rest_s=60.0))
    agent = shared(fleet, "a")
    client = fleet.submit()
    refuse(fleet, agent)
    assert len(agent.streams) == 2
    await finish(fleet, agent, client)
    fleet.assert_quiet()


async def test_nor_does_it_wait_for_another_deployment_that_has_no_slot() -> None:
    fleet = Fleet(settings=DispatchSettings(rest_s=60.0))
    agent = shared(fleet, "a")
    shared(fleet, "b", slots=0)
    client = fleet.submit()
    refuse(fleet, agent)
    assert len(agent.streams) == 2
    await finish(fleet, agent, client)
    fleet.assert_quiet()


async def test_an_agent_with_one_session_rests_as_ever() -> None:
    fleet = Fleet(settings=DispatchSettings(rest_s=60.0))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    refuse(fleet, agent)
    assert len(agent.streams) == 1
    client.cancel()
    fleet.settle()


async def test_agents_are_told_what_waits_and_old_ones_are_not() -> None:
    fleet = Fleet()
    agent, old = shared(fleet, "a"), fleet.connect("b", able(slots=0))
    first, second = fleet.submit(), fleet.submit()
    fleet.settle()
    assert agent.demand is not None
    told = agent.demand["m"]
    assert (told.waiting, told.weight) == (1, 1.0)
    assert isinstance(told, Demand)
    assert old.demand is None
    await finish(fleet, agent, first)
    await finish(fleet, agent, second)
    fleet.advance(2.0)
    fleet.assert_quiet()


async def test_a_level_below_what_runs_has_batch_requests_give_way() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, reserved_share=0.0))
    agent = shared(fleet, "a", slots=2)
    clients = [
        fleet.submit(fleet.request(tier=tier, body=RequestBody(BODY), output_tokens=5000))
        for tier in (Tier.BATCH, Tier.STANDARD)
    ]
    fleet.settle()
    agent.endpoint.send_slots({"d": 1})
    fleet.settle()
    fleet.advance(0.1)
    assert [each.reset_code for each in agent.streams] == [ErrorCode.CANCELLED, None]
    for client in clients:
        client.cancel()
    fleet.settle()
