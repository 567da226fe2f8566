"""Second copies of late requests: the first answer wins, and both slots are given back exactly once."""

import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.errors import EngineError
from gateway.domain.request import RequestBody, Tier
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.dispatch.answers import HEAD, answer, read_to_end
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend

USUAL_S = 2.0


def late() -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """A request past its usual time, with a copy at the second agent."""
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, max_attempts=2))
    fleet.metrics.know_model("m")
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    for _ in range(20):
        fleet.dispatcher._answer_times.note("m", "chat", USUAL_S)
    for _ in range(100):
        fleet.dispatcher._hedges.deposit("tenant")
    request = fleet.request(streaming=False, tier=Tier.REALTIME, body=RequestBody(b"prompt"))
    client = fleet.submit(request)
    fleet.advance(USUAL_S - 0.1)
    assert not two.streams
    fleet.advance(0.2)
    assert two.streams[0].body == one.streams[0].body == b"prompt"
    assert slots(fleet) == [1, 1]
    return fleet, one, two, client


def slots(fleet: Fleet) -> list[int]:
    return [each.in_flight for session in fleet.registry.sessions for each in session.deployments.values()]


def hedges(fleet: Fleet, outcome: str) -> float | None:
    labels = {"model": "m", "outcome": outcome}
    return fleet.metrics.registry.get_sample_value("trunkline_hedges_total", labels)


def quiet(fleet: Fleet, *agents: FakeAgent) -> None:
    for agent in agents:
        for stream in agent.open_streams:
            assert stream.reset_code is not None
            stream.confirm()
    fleet.advance(2.0)
    assert slots(fleet) == [0] * len(slots(fleet))
    fleet.assert_quiet()


@pytest.mark.parametrize("winner", [0, 1])
async def test_the_first_answer_wins_and_the_other_is_let_go(winner: int) -> None:
    fleet, *agents, client = late()
    first, other = agents[winner], agents[1 - winner]
    answer(first.streams[0])
    fleet.settle()
    assert other.streams[0].reset_code is ErrorCode.CANCELLED
    assert await read_to_end(client) == b"hello"
    assert client.response.deployment == f"{first.name}/d-m"
    assert client.response.attempts == 2
    assert hedges(fleet, "started") == 1
    assert hedges(fleet, "won") == (1 if winner else None)
    quiet(fleet, *agents)


@pytest.mark.parametrize("loser", [0, 1])
async def test_when_one_fails_the_other_goes_on(loser: int) -> None:
    fleet, *agents, client = late()
    agents[loser].streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "it died")
    fleet.settle()
    assert not client.settled
    answer(agents[1 - loser].streams[0])
    fleet.settle()
    assert await read_to_end(client) == b"hello"
    quiet(fleet, *agents)


@pytest.mark.parametrize("loser", [0, 1])
def test_a_copy_whose_tunnel_is_away_is_given_to_another_agent_when_the_other_one_fails(loser: int) -> None:
    fleet, *agents, client = late()
    gone, other = agents[1 - loser], agents[loser]
    three = fleet.connect("c", deployment())
    suspend(fleet, gone)
    other.streams[0].stream.send_head(ResponseHead(503, ()))
    fleet.settle()
    fleet.advance(fleet.dispatcher.settings.failover_after_s + 0.1)
    assert len(three.streams) == 1
    answer(three.streams[0])
    fleet.settle()
    assert client.response.deployment == "c/d-m"


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_an_engines_error_does_not_win(status: int) -> None:
    fleet, one, two, client = late()
    two.streams[0].stream.send_head(ResponseHead(status, ()))
    fleet.settle()
    assert not client.settled
    assert one.streams[0].reset_code is None
    answer(one.streams[0])
    fleet.settle()
    assert await read_to_end(client) == b"hello"
    quiet(fleet, one, two)


async def test_when_both_fail_it_is_told() -> None:
    fleet, one, two, client = late()
    for agent in (one, two):
        agent.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "it died")
        fleet.settle()
    assert isinstance(client.error, EngineError)
    quiet(fleet, one, two)


async def test_a_winner_that_breaks_early_is_not_the_end() -> None:
    fleet, one, two, client = late()
    three = fleet.connect("c", deployment())
    two.streams[0].stream.send_head(HEAD)
    two.streams[0].stream.send_data(b"hel")
    fleet.settle()
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    fleet.cut(two)
    answer(three.streams[0])
    fleet.settle()
    assert await read_to_end(client) == b"hello"
    quiet(fleet, one, three)


async def test_a_copy_covers_for_a_tunnel_that_is_away() -> None:
    fleet, one, two, client = late()
    suspend(fleet, one)
    fleet.advance(4.0)
    assert two.streams[0].reset_code is None
    answer(two.streams[0])
    fleet.settle()
    assert await read_to_end(client) == b"hello"
    resume(fleet, one)
    quiet(fleet, one, two)


def test_a_client_that_leaves_has_both_let_go() -> None:
    fleet, one, two, client = late()
    client.cancel()
    fleet.settle()
    assert {one.streams[0].reset_code, two.streams[0].reset_code} == {ErrorCode.CANCELLED}
    assert slots(fleet) == [1, 1]
    quiet(fleet, one, two)
    assert not client.settled


def test_there_is_one_copy_at_the_most() -> None:
    fleet, _, _, client = late()
    three = fleet.connect("c", deployment())
    fleet.advance(20.0)
    assert not three.streams
    assert not client.settled


async def test_a_request_whose_answer_is_coming_needs_no_copy() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0))
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    for _ in range(20):
        fleet.dispatcher._answer_times.note("m", "chat", USUAL_S)
    for _ in range(100):
        fleet.dispatcher._hedges.deposit("tenant")
    client = fleet.submit(fleet.request(streaming=False, tier=Tier.REALTIME))
    one.streams[0].stream.send_head(HEAD)
    one.streams[0].stream.send_data(b"hel")
    fleet.advance(USUAL_S + 1.0)
    assert not two.streams
    one.streams[0].stream.send_data(b"lo")
    one.streams[0].stream.end(Trailers())
    fleet.settle()
    assert await read_to_end(client) == b"hello"
    quiet(fleet, one, two)
