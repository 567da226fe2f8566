"""Tunnels that go and come back, for agents of a :class:`~tests.gateway.fleet.fleet.Fleet`."""

from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.errors import TunnelClosed
from tests.gateway.fleet.fleet import MESSAGE_BUDGET_BYTES, FakeAgent, Fleet


def suspend(fleet: Fleet, agent: FakeAgent) -> None:
    """The agent's tunnel goes, with all that is on its way; both sides keep the session."""
    for end in _ends(fleet, agent):
        end.session.data_to_send(MESSAGE_BUDGET_BYTES, fleet.loop.now_s)
        end.suspend(TunnelClosed("cut"))
    fleet.settle()


def resume(fleet: Fleet, agent: FakeAgent) -> None:
    """Another tunnel is up: the session goes on, what was lost is sent again."""
    ours, theirs = _ends(fleet, agent)
    ours_received, theirs_received = ours.session.log.received, theirs.session.log.received
    ours.resume(theirs_received)
    theirs.resume(ours_received)
    fleet.settle()


def suspended(agent: FakeAgent) -> bool:
    return agent.endpoint.session.suspended and not agent.endpoint.closed


def _ends(fleet: Fleet, agent: FakeAgent) -> tuple[SessionEndpoint, SessionEndpoint]:
    (ends,) = [link for link in fleet._links if link[1] is agent.endpoint]
    return ends
