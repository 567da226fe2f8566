"""An agent declares its engine lost and stays connected: what it had goes elsewhere, with default budgets."""

from dataclasses import replace

import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.stall_detection import LOST_PATIENCE_S
from gateway.domain.errors import EngineError, StreamBroken
from gateway.domain.request import RequestBody, Tier
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import DeploymentState, DeploymentStatus
from tests.gateway.dispatch.answers import finish, fleet_of, quiet, read_to_end
from tests.gateway.dispatch.behaviour.test_stalls import EVENTS, keep_up
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.dispatch.streamed_answers import HEAD, UNDISTURBED, able, answer, ask
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment

REASON = "the engine did not answer in time"


def lose(fleet: Fleet, agent: FakeAgent, served: DeploymentState | None = None) -> None:
    agent.serve(replace(served or deployment(), status=DeploymentStatus.FAILED, reason=REASON))
    fleet.settle()


def restore(fleet: Fleet, agent: FakeAgent, served: DeploymentState | None = None) -> None:
    agent.serve(served or deployment())
    fleet.settle()


# --- No answer has begun ---


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_has_no_head_moves_at_once(streaming: bool) -> None:
    fleet = Fleet(settings=DispatchSettings())
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit(fleet.request(streaming=streaming, body=RequestBody(b"prompt")))
    lose(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    assert two.streams[0].body == b"prompt"
    await finish(fleet, two, client)
    assert client.response.attempts == 2
    quiet(fleet)


async def test_what_has_no_head_moves_when_there_is_somebody_to_move_to() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    lose(fleet, one)
    fleet.advance(7.0)
    assert not client.settled
    two = fleet.connect("b", deployment())
    fleet.advance(fleet.dispatcher.settings.failover_after_s)
    await finish(fleet, two, client)
    quiet(fleet)


async def test_without_anybody_else_the_engine_may_answer_yet() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    lose(fleet, one)
    fleet.advance(LOST_PATIENCE_S - 1)
    restore(fleet, one)
    fleet.advance(LOST_PATIENCE_S + 60)
    assert not client.settled, "it has the time that every request has"
    await finish(fleet, one, client)
    quiet(fleet)


@pytest.mark.parametrize("route", ["chat", "any"])
def test_without_anybody_else_the_client_is_told_before_its_patience_is_over(route: str) -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit(fleet.request(route=route))
    lose(fleet, one)
    fleet.advance(LOST_PATIENCE_S - 0.1)
    assert not client.settled
    fleet.advance(0.1)
    assert isinstance(client.error, EngineError)
    assert REASON in client.error.message
    quiet(fleet)


def test_what_may_have_had_an_effect_is_told_and_not_repeated() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(route="any"))
    lose(fleet, one)
    fleet.advance(LOST_PATIENCE_S)
    assert isinstance(client.error, EngineError)
    assert not two.streams
    quiet(fleet)


def test_of_two_copies_the_one_at_the_lost_engine_is_given_up() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(streaming=False, tier=Tier.REALTIME))
    fleet.advance(fleet.dispatcher.settings.stall_s)
    assert len(two.streams) == 1
    lose(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    assert two.streams[0].reset_code is None
    assert not client.settled
    client.cancel()
    quiet(fleet)


def test_many_requests_at_one_lost_engine_cost_no_retries_and_count_once() -> None:
    fleet, (one, two) = fleet_of("a", "b", slots=64)
    for _ in range(64):
        fleet.submit()
    there = len(one.streams)
    assert there >= 30
    lose(fleet, one, deployment(slots=64, routes=("chat", "any")))
    for stream in one.open_streams:
        stream.confirm()
    fleet.settle()
    assert len(two.open_streams) == 64
    tenant = fleet.request().principal.tenant
    assert sum(fleet.dispatcher._retries.take(tenant, fleet.loop.now_s) for _ in range(1000)) >= 100
    for session in fleet.registry.sessions:
        for each in session.deployments.values():
            assert each.health is None or each.healthy


# --- An answer has begun ---


async def begun() -> tuple[Fleet, FakeAgent, FakeAgent, Client, bytes]:
    """Two agents, the first of which has answered so far; what was read of that."""
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0))
    one, two = fleet.connect("a", able()), fleet.connect("b", able())
    client = ask(fleet)
    answer(one.streams[0], 700)
    fleet.settle()
    return fleet, one, two, client, await keep_up(client)


async def assert_whole(client: Client, got: bytes) -> None:
    assert seen_in_chat(got + await read_to_end(client)) == seen_in_chat(UNDISTURBED)


async def test_a_silent_answer_goes_on_elsewhere() -> None:
    fleet, one, two, client, got = await begun()
    lose(fleet, one, able())
    fleet.advance(fleet.dispatcher.settings.continue_after_s - 0.1)
    assert not two.streams
    fleet.advance(0.1)
    assert one.streams[0].reset_code is not None
    answer(two.streams[0])
    fleet.settle()
    await assert_whole(client, got)
    quiet(fleet)


async def test_an_answer_whose_tokens_come_is_left_where_it_is() -> None:
    fleet, one, two, client, got = await begun()
    lose(fleet, one, able())
    for _ in range(20):
        one.streams[0].stream.send_data(b": a comment\n\n")
        fleet.settle()
        got += await keep_up(client)
        fleet.advance(2.0)
    assert not two.streams
    assert one.streams[0].reset_code is None
    client.response.abort()
    quiet(fleet)


async def test_an_answer_that_cannot_go_on_elsewhere_ends_with_the_reason() -> None:
    fleet = Fleet(settings=DispatchSettings())
    one = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(streaming=True))
    one.streams[0].stream.send_head(HEAD)
    one.streams[0].stream.send_data(b"".join(EVENTS[:3]))
    fleet.settle()
    await keep_up(client)
    lose(fleet, one)
    fleet.advance(LOST_PATIENCE_S - 0.5)
    assert one.streams[0].reset_code is None
    fleet.advance(0.5)
    with pytest.raises(StreamBroken, match="declared it lost"):
        await read_to_end(client)
    quiet(fleet)


async def test_an_answer_that_was_to_go_on_at_an_engine_that_is_lost_goes_on_at_the_next() -> None:
    fleet, one, two, client, got = await begun()
    one.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "died")
    fleet.settle()
    assert len(two.streams) == 1
    three = fleet.connect("c", able())
    lose(fleet, two, able())
    fleet.advance(0.1)
    answer(three.streams[0])
    fleet.settle()
    await assert_whole(client, got)
    quiet(fleet)
