"""Agents that say what they run for other processes of the gateway (PROTOCOL §4.11)."""

from dataclasses import replace

from gateway.domain.request import Request
from shared.protocol.errors import ErrorCode
from shared.protocol.others import Expected, OtherRequest, Others
from shared.protocol.peers import CAPABILITIES, DEMAND
from tests.gateway.dispatch.answers import finish
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment

CHAIN = tuple(range(1, 17))


def telling(fleet: Fleet, name: str, *capabilities: str, kv_tokens: int | None = None) -> FakeAgent:
    agent = fleet.connect(name, replace(deployment(slots=4), kv_tokens=kv_tokens))
    fleet.dispatcher.agreed(fleet.sessions[id(agent)], capabilities or CAPABILITIES)
    return agent


def say(fleet: Fleet, agent: FakeAgent, others: Others) -> None:
    agent.endpoint.send_others(others)
    fleet.settle()


def asking(fleet: Fleet, input_tokens: int, output_tokens: int) -> Request:
    request = fleet.request()
    request.input_tokens, request.output_tokens, request.prefix = input_tokens, output_tokens, CHAIN
    return request


def load_of(fleet: Fleet, agent: FakeAgent) -> int:
    (deployment,) = fleet.sessions[id(agent)].deployments.values()
    return deployment.load.count


def other(number: int, fleet: Fleet, agent: FakeAgent, chain: tuple[int, ...] = ()) -> Others:
    (id_,) = fleet.sessions[id(agent)].deployments
    return Others((OtherRequest(number, id_, expected=Expected.of(8000, 400, chain)),))


async def test_a_request_goes_to_the_agent_that_runs_nothing_for_other_processes() -> None:
    fleet = Fleet(policy="cost")
    a, b = telling(fleet, "a"), telling(fleet, "b")
    say(fleet, a, other(1, fleet, a))
    assert (load_of(fleet, a), load_of(fleet, b)) == (1, 0)
    client = fleet.submit()
    assert (len(a.streams), len(b.streams)) == (0, 1)
    await finish(fleet, b, client)
    say(fleet, b, other(1, fleet, b))
    say(fleet, a, Others(ended=(1,)))
    client = fleet.submit()
    assert (len(a.streams), len(b.streams)) == (1, 1)
    await finish(fleet, a, client)
    fleet.assert_quiet()


async def test_its_open_says_what_is_expected_where_that_is_agreed_on() -> None:
    for capabilities, said in ((CAPABILITIES, True), ((DEMAND,), False)):
        fleet = Fleet(policy="cost")
        agent = telling(fleet, "a", *capabilities)
        client = fleet.submit(asking(fleet, 812, 160))
        (stream,) = agent.streams
        expected = stream.stream.head.expected
        assert (expected == Expected.of(812, 160, CHAIN)) is said
        assert (expected is None) is not said
        await finish(fleet, agent, client)
        fleet.assert_quiet()


async def test_what_was_not_agreed_on_is_ignored() -> None:
    fleet = Fleet(policy="cost")
    agent = telling(fleet, "a", DEMAND)
    say(fleet, agent, other(1, fleet, agent))
    say(fleet, agent, other(1, fleet, agent))
    assert load_of(fleet, agent) == 0
    assert not agent.lost


async def test_a_session_that_ends_takes_what_it_said_along() -> None:
    fleet = Fleet(policy="cost")
    agent = telling(fleet, "a")
    say(fleet, agent, other(1, fleet, agent))
    agent.endpoint.close(ErrorCode.NO_ERROR, "bye")
    fleet.settle()
    agent = telling(fleet, "a")
    assert load_of(fleet, agent) == 0
    say(fleet, agent, other(1, fleet, agent))
    assert load_of(fleet, agent) == 1


async def test_context_of_others_takes_memory_of_the_engine() -> None:
    fleet = Fleet(policy="cost")
    agent = telling(fleet, "a", kv_tokens=20_000)
    (there,) = fleet.sessions[id(agent)].deployments.values()
    say(fleet, agent, other(1, fleet, agent))
    say(fleet, agent, other(2, fleet, agent))
    assert there.kv_free_tokens == 20_000 - 2 * 8400
    say(fleet, agent, Others(ended=(1,)))
    assert there.kv_free_tokens == 20_000 - 8400
    say(fleet, agent, Others(ended=(2,)))
    assert there.kv_free_tokens == 20_000


async def test_an_agent_that_says_that_one_began_twice_is_cut_off_and_told_why() -> None:
    fleet = Fleet(policy="cost")
    agent = telling(fleet, "a")
    say(fleet, agent, other(1, fleet, agent))
    say(fleet, agent, other(1, fleet, agent))
    assert agent.lost
    assert "began twice" in str(agent.lost_error)


async def test_who_waits_is_looked_at_when_another_process_is_done() -> None:
    """A request that was held for the engine goes there as soon as it has read what others gave it."""
    fleet = Fleet(policy="cost")
    agent = telling(fleet, "a")
    (id_,) = fleet.sessions[id(agent)].deployments
    busy = OtherRequest(2, id_, expected=Expected.of(200_000, 400, ()))
    say(fleet, agent, Others((busy,)))
    client = fleet.submit(asking(fleet, 800, 100))
    assert not agent.streams
    say(fleet, agent, Others(first=(2,)))
    assert len(agent.streams) == 1
    await finish(fleet, agent, client)
    fleet.assert_quiet()
