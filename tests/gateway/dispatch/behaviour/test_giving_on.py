"""Requests whose answer has not begun: given to another deployment when that is sound, and how often."""

import pytest

from gateway.dispatch.assignment import SHUN_S
from gateway.dispatch.stall_detection import ANSWER_S
from gateway.domain.errors import DeadlineExceeded, EngineError, NoDeployment, StreamBroken
from gateway.domain.request import REMEMBERED_S, RequestBody
from gateway.scheduling.health.failover import MOST_MOVES
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.dispatch.answers import HEAD, finish, fleet_of, quiet, read_to_end
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend


def rejects(fleet: Fleet, stream: EngineStream, status: int = 500) -> None:
    """The engine says that it failed; the body of its answer does not come."""
    stream.stream.send_head(ResponseHead(status, ()))
    fleet.settle()


# --- Engines that say they failed ---


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_an_engines_error_is_tried_elsewhere(status: int) -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(body=RequestBody(b"prompt")))
    rejects(fleet, one.streams[0], status)
    assert not client.settled
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    assert two.streams[0].body == b"prompt"
    await finish(fleet, two, client)
    assert client.response.attempts == 2
    quiet(fleet)


@pytest.mark.parametrize("status", [400, 404, 422, 501])
def test_an_engines_no_is_an_answer(status: int) -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit()
    rejects(fleet, one.streams[0], status)
    assert client.response.status == status
    assert not two.streams


async def test_the_last_engines_error_is_told_as_it_is() -> None:
    fleet, agents = fleet_of("a", "b", "c", "d")
    client = fleet.submit()
    for agent in agents[:3]:
        agent.streams[0].stream.send_head(ResponseHead(500, (("x-why", agent.name),)))
        agent.streams[0].stream.send_data(b"broken " + agent.name.encode())
        agent.streams[0].stream.end(Trailers())
        fleet.settle()
    assert client.response.status == 500
    assert client.response.headers == (("x-why", "c"),)
    assert await read_to_end(client) == b"broken c"
    assert not agents[3].streams
    quiet(fleet)


async def test_an_engines_error_is_told_where_there_is_nobody_else() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    one.streams[0].stream.send_head(ResponseHead(500, ()))
    one.streams[0].stream.end(Trailers())
    fleet.settle()
    assert client.response.status == 500
    assert await read_to_end(client) == b""
    quiet(fleet)


def both_failed(after_s: float) -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """The first engine failed, and so long after that the second was too slow; each may be asked so long."""
    fleet, (one, two) = fleet_of("a", "b", first_byte_s=after_s)
    client = fleet.submit()
    rejects(fleet, one.streams[0])
    one.streams[0].confirm()
    fleet.advance(after_s)
    assert len(two.streams) == 1
    assert not client.settled
    fleet.advance(ANSWER_S)
    return fleet, one, two, client


async def test_an_engine_that_failed_long_ago_is_asked_again() -> None:
    fleet, one, _, client = both_failed(REMEMBERED_S)
    assert len(one.streams) == 2, "the second was too slow, and the first may be well again"
    await finish(fleet, one, client)
    assert client.response.attempts == 3
    quiet(fleet)


async def test_an_engine_that_failed_just_now_is_not_asked_again() -> None:
    fleet, one, two, client = both_failed(REMEMBERED_S / 2)
    assert len(one.streams) == len(two.streams) == 1
    assert isinstance(client.error, DeadlineExceeded)
    quiet(fleet)


def away_and_failed() -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """The first engine's tunnel went with a request, and the second, which got it then, failed."""
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit()
    suspend(fleet, one)
    fleet.advance(3.1)
    rejects(fleet, two.streams[0])
    two.streams[0].confirm()
    return fleet, one, two, client


async def test_an_engines_error_is_worth_waiting_for_a_tunnel_that_may_come_back() -> None:
    fleet, one, two, client = away_and_failed()
    fleet.advance(2.0)
    assert not client.settled
    assert len(two.streams) == 1
    resume(fleet, one)
    fleet.settle()
    one.streams[0].confirm()
    fleet.settle()
    await finish(fleet, one, client)
    quiet(fleet)


async def test_who_waits_long_for_another_goes_once_more_to_the_one_that_failed() -> None:
    fleet, one, two, client = away_and_failed()
    fleet.advance(SHUN_S - 0.1)
    assert len(two.streams) == 1
    fleet.advance(0.2)
    await finish(fleet, two, client)
    fleet.cut(one)
    quiet(fleet)


@pytest.mark.parametrize("status", [429, 503])
async def test_engines_that_have_enough_to_do_are_asked_in_turn(status: int) -> None:
    fleet, agents = fleet_of("a", "b")
    client = fleet.submit()
    for tries in range(6):
        assert [len(agent.streams) for agent in agents] == [tries // 2 + 1, (tries + 1) // 2]
        last = agents[tries % 2].streams[-1]
        rejects(fleet, last, status)
        last.confirm()
        fleet.advance(4.0)
        assert not client.settled
    await finish(fleet, agents[0], client)
    quiet(fleet)


def test_an_error_on_other_routes_is_told() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(route="any"))
    rejects(fleet, one.streams[0])
    assert client.response.status == 500
    assert not two.streams


def test_a_body_that_was_begun_to_be_read_is_not_sent_again() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(body=RequestBody(b"half", rest_begun=True)))
    one.streams[0].stream.reset(ErrorCode.REFUSED)
    fleet.settle()
    assert isinstance(client.error, NoDeployment)
    assert not two.streams


def without_retries() -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """The tenant's retry budget is spent, and a request is at the first of two engines."""
    fleet, (one, two) = fleet_of("a", "b", retry_share=0.0)
    while fleet.dispatcher._retries.take("tenant", fleet.loop.now_s):
        pass
    return fleet, one, two, fleet.submit()


def test_the_retry_budget_is_kept() -> None:
    fleet, one, two, client = without_retries()
    rejects(fleet, one.streams[0])
    assert client.response.status == 500
    assert not two.streams


async def test_what_no_engine_failed_at_costs_no_budget() -> None:
    fleet, one, two, client = without_retries()
    fleet.cut(one)
    await finish(fleet, two, client)
    quiet(fleet)


def test_moves_are_bounded_too() -> None:
    fleet, (one,) = fleet_of("a", rest_s=0.01, rest_max_s=0.01)
    client = fleet.submit()
    for _ in range(MOST_MOVES):
        assert not client.settled
        one.open_streams[0].stream.reset(ErrorCode.REFUSED, "full")
        fleet.advance(0.1)
    assert isinstance(client.error, NoDeployment)
    assert len(one.streams) == MOST_MOVES
    quiet(fleet)


def test_an_engine_that_died_is_told_where_there_is_nobody_else() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    one.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "it died")
    fleet.settle()
    assert isinstance(client.error, EngineError)
    assert "it died" in client.error.message
    quiet(fleet)


# --- Answers in one piece ---


async def test_an_answer_in_one_piece_that_breaks_early_is_asked_for_again() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(streaming=False))
    one.streams[0].stream.send_head(HEAD)
    one.streams[0].stream.send_data(b"hel")
    fleet.settle()
    assert not client.settled, "the head waits for the body"
    fleet.cut(one)
    await finish(fleet, two, client)
    assert client.response.attempts == 2
    quiet(fleet)


async def test_of_an_answer_in_one_piece_that_breaks_late_nothing_is_said_of_other_engines() -> None:
    fleet, _ = fleet_of("a", "b")
    client = fleet.submit(fleet.request(streaming=False))
    stream = next(each.streams[0] for each in fleet.agents if each.streams).stream
    stream.send_head(HEAD)
    stream.send_data(b"x" * 9000)
    fleet.settle()
    stream.reset(ErrorCode.ENGINE_FAILED, "it died")
    fleet.settle()
    with pytest.raises(StreamBroken, match=r"failed in the middle of the answer: it died\.$"):
        await read_to_end(client)


async def test_a_long_answer_in_one_piece_is_passed_on_as_it_comes() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(streaming=False))
    one.streams[0].stream.send_head(HEAD)
    one.streams[0].stream.send_data(b"x" * 10_000)
    fleet.settle()
    assert client.response.status == 200
    fleet.cut(one)
    assert not two.streams
    with pytest.raises(Exception, match="lost in the middle"):
        await read_to_end(client)
    quiet(fleet)


# --- Time ---


async def test_an_engine_that_does_not_begin_in_time_is_left_for_another() -> None:
    fleet, (one, two) = fleet_of("a", "b", first_byte_s=10)
    client = fleet.submit()
    fleet.advance(10.0 + ANSWER_S)
    assert one.streams[0].reset_code is not None
    await finish(fleet, two, client)
    quiet(fleet)


def test_a_clients_own_deadline_is_nobodys_fault() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(streaming=False, deadline_s=fleet.loop.now_s + 4))
    fleet.advance(4.0)
    assert isinstance(client.error, DeadlineExceeded)
    assert not two.streams
    assert all(each.free or each.in_flight for each in fleet.session(one).deployments.values())
    quiet(fleet)


# --- Tunnels that are away ---


async def test_a_request_moves_on_when_its_tunnel_stays_away() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit()
    suspend(fleet, one)
    fleet.advance(2.9)
    assert not two.streams
    fleet.advance(0.2)
    await finish(fleet, two, client)
    assert fleet.dispatcher.open_exchanges == 1, "the lost one's slot is not free yet"
    resume(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    quiet(fleet)


async def test_a_request_waits_for_its_tunnel_when_there_is_nobody_else() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    suspend(fleet, one)
    fleet.advance(10.0)
    two = fleet.connect("b", deployment(slots=1))
    assert not two.streams
    fleet.advance(3.1)
    assert len(two.streams) == 1, "it looks again"
    await finish(fleet, two, client)
    resume(fleet, one)
    quiet(fleet)


@pytest.mark.parametrize("body", [RequestBody(b"half", rest_begun=True), RequestBody(b"whole")])
async def test_what_may_not_be_repeated_waits_for_its_tunnel(body: RequestBody) -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(route="chat" if body.rest_begun else "any", body=body))
    suspend(fleet, one)
    fleet.advance(20.0)
    assert not two.streams
    resume(fleet, one)
    await finish(fleet, one, client)
    quiet(fleet)


async def test_time_without_a_tunnel_does_not_count_against_the_engine() -> None:
    fleet, (one,) = fleet_of("a", first_byte_s=10)
    client = fleet.submit()
    fleet.advance(6.0)
    suspend(fleet, one)
    fleet.advance(20.0)
    resume(fleet, one)
    fleet.advance(3.0)
    assert not client.settled
    fleet.advance(1.1 + ANSWER_S)
    assert isinstance(client.error, DeadlineExceeded)
    quiet(fleet)


def test_a_client_that_leaves_while_its_tunnel_is_away_has_it_let_go_later() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit()
    suspend(fleet, one)
    client.cancel()
    fleet.advance(5.0)
    assert not two.streams
    resume(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    quiet(fleet)
