"""The GPU-seconds of requests at agents that measure them, because other gateways' requests run beside them
(PROTOCOL §4.4)."""

import pytest

from gateway.quota.usage import GpuShare
from shared.protocol.messages import Trailers
from shared.protocol.peers import CAPABILITIES, DEMAND
from tests.gateway.dispatch.answers import HEAD, let_go, read_to_end
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment


def measuring(fleet: Fleet, *capabilities: str) -> FakeAgent:
    agent = fleet.connect("a", deployment(slots=2))
    fleet.dispatcher.agreed(fleet.sessions[id(agent)], capabilities)
    return agent


async def end(fleet: Fleet, agent: FakeAgent, client: Client, gpu_s: float | None) -> float:
    """Its engine answers and its agent says so; what the request used, as the gateway counts it."""
    stream = agent.open_streams[0].stream
    stream.send_head(HEAD)
    stream.send_data(b"hello")
    stream.end(Trailers(gpu_s=gpu_s))
    fleet.settle()
    await read_to_end(client)
    fleet.settle()
    return client.request.gpu_s


@pytest.mark.parametrize(
    ("capabilities", "told_s", "counted_s"),
    [
        (CAPABILITIES, 0.5, 0.5),
        (CAPABILITIES, 9.0, 4.0),  # more than the gateway saw it run is nobody's
        (CAPABILITIES, None, 4.0),  # an END without it
        ((DEMAND,), 0.5, 4.0),  # not agreed on
        ((), None, 4.0),  # an agent of an earlier version
    ],
)
async def test_what_the_agent_measured_counts_where_that_is_agreed_on(
    capabilities: tuple[str, ...], told_s: float | None, counted_s: float
) -> None:
    fleet = Fleet()
    agent = measuring(fleet, *capabilities)
    client = fleet.submit()
    fleet.advance(4.0)
    assert await end(fleet, agent, client, told_s) == pytest.approx(counted_s)
    fleet.assert_quiet()


async def test_a_cancelled_request_counts_by_what_others_used_there_of_late() -> None:
    fleet = Fleet()
    agent = measuring(fleet, *CAPABILITIES)
    for _ in range(60):  # of each second that one ran here, three others of another gateway ran beside it
        client = fleet.submit()
        fleet.advance(1.0)
        await end(fleet, agent, client, 0.25)
    client = fleet.submit()
    fleet.advance(4.0)
    client.cancel()
    fleet.settle()
    let_go(fleet)
    fleet.settle()
    assert client.request.gpu_s == pytest.approx(1.0, rel=0.01)
    fleet.assert_quiet()


async def test_every_attempt_counts_what_its_own_agent_measured() -> None:
    fleet = Fleet()
    told: list[float] = []
    fleet.dispatcher._ran = lambda request, key, gpu_s: told.append(gpu_s)
    agent = measuring(fleet, *CAPABILITIES)
    clients = [fleet.submit(), fleet.submit()]
    fleet.advance(2.0)
    for client, gpu_s in zip(clients, (0.25, 0.75), strict=True):
        await end(fleet, agent, client, gpu_s)
    assert told == pytest.approx([0.25, 0.75])


def test_a_share_is_never_more_than_was_seen_and_never_learnt_from_nothing() -> None:
    share = GpuShare()
    assert share.used_s(0.0, 5.0) == 0.0
    assert share.used_s(2.0, 7.0) == 2.0
    assert share.share == 1.0
