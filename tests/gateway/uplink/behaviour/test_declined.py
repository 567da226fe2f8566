"""What a child will not take later either is told at once; for a slot it is waited."""

from dataclasses import replace

import pytest

from gateway.domain.errors import NoDeployment, RequestDeclined
from shared.protocol.errors import ErrorCode
from shared.protocol.peers import DECLINES
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.uplink.child import OWN, PARENT, Child, UpStream

REASON = "No agent of the gateway that was asked serves 'm' any more."


def _refused(stream: UpStream) -> tuple[ErrorCode, str]:
    assert stream.reset_with is not None
    return stream.reset_with


@pytest.mark.parametrize(("agreed", "code"), [((DECLINES,), ErrorCode.DECLINED), ((), ErrorCode.REFUSED)])
async def test_a_child_says_which_refusals_last_to_a_parent_that_knows_them(
    agreed: tuple[str, ...], code: ErrorCode
) -> None:
    child = Child(1, agreed=agreed)
    (group,) = child.capacity.state().deployments
    assert _refused(child.ask(via=(PARENT, OWN)))[0] is code
    assert _refused(child.ask(where={"region": ("eu",)}))[0] is code
    child.fleet.cut(child.agents[0])
    child.fleet.connect("b", deployment("n"))
    assert _refused(child.ask(deployment=group.id))[0] is code


async def test_want_of_a_slot_and_draining_do_not_last() -> None:
    child = Child(1, agreed=(DECLINES,))
    (group,) = child.capacity.state().deployments
    own = child.fleet.submit()
    assert _refused(child.ask(deployment=group.id))[0] is ErrorCode.REFUSED
    assert own.exchange is not None
    own.exchange.cancel()
    child.capacity.drain()
    assert _refused(child.ask(deployment=group.id))[0] is ErrorCode.REFUSED


async def test_an_agent_that_refuses_is_no_lasting_refusal() -> None:
    child = Child(1, agreed=(DECLINES,))
    stream = child.ask()
    child.agents[0].open_streams[0].stream.reset(ErrorCode.REFUSED)
    await child.settle()
    assert _refused(stream)[0] is not ErrorCode.DECLINED


def _parent(*children: str) -> Fleet:
    """A parent of these children."""
    fleet = Fleet()
    fleet.registry.gateway_id = lambda: PARENT
    for name in children:
        agent = fleet.connect(name)
        fleet.session(agent).is_gateway = True
        agent.serve(replace(deployment("m", 4), via=(OWN,)))
    fleet.settle()
    return fleet


def test_the_only_child_that_declines_is_asked_once_and_its_reason_told() -> None:
    fleet = _parent("region")
    client = fleet.submit()
    (stream,) = fleet.agents[0].streams
    stream.stream.reset(ErrorCode.DECLINED, REASON)
    fleet.settle()
    assert isinstance(client.error, RequestDeclined)
    assert str(client.error) == REASON
    assert len(fleet.agents[0].streams) == 1
    fleet.assert_quiet()
    fleet.submit()
    assert len(fleet.agents[0].streams) == 2, "it says nothing of other requests"


def test_another_child_is_asked_and_not_the_first_again() -> None:
    fleet = _parent("region", "other")
    client = fleet.submit()
    for _ in range(2):
        (agent,) = (each for each in fleet.agents if each.open_streams)
        agent.open_streams[0].stream.reset(ErrorCode.DECLINED, REASON)
        fleet.settle()
    assert [len(each.streams) for each in fleet.agents] == [1, 1]
    assert isinstance(client.error, RequestDeclined)
    fleet.assert_quiet()


def test_a_child_that_refuses_for_now_is_asked_again() -> None:
    fleet = _parent("region")
    client = fleet.submit()
    for _ in range(3):
        fleet.agents[0].open_streams[0].stream.reset(ErrorCode.REFUSED, "all slots are taken")
        fleet.settle()
    assert len(fleet.agents[0].streams) == 4
    assert not client.settled


def test_a_child_of_an_earlier_version_that_refuses_for_good_is_given_up_as_ever() -> None:
    fleet = _parent("region")
    client = fleet.submit()
    while not client.settled:
        fleet.agents[0].open_streams[0].stream.reset(ErrorCode.REFUSED, REASON)
        fleet.settle()
    assert isinstance(client.error, NoDeployment)
    assert REASON in str(client.error)
