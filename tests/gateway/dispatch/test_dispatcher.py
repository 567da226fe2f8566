"""Dispatch: late binding, responses, waiting; over real sessions joined in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.dispatch.arrival_gatherer import ArrivalGatherer
from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.domain.errors import (
    DeadlineExceeded,
    ModelNotFound,
    NoDeployment,
    NoSlotFree,
    QueueFull,
    QueueTimeout,
    RouteNotSupported,
    ShuttingDown,
    StreamBroken,
)
from gateway.domain.request import RequestBody
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import (
    AgentStatus,
    DeploymentStatus,
    Drain,
)
from tests.gateway.dispatch.answers import HEAD, TRAILERS, answer, finish, read
from tests.gateway.fleet.fleet import Client, Fleet, deployment


async def test_a_request_goes_to_a_free_slot_and_its_answer_comes_back() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(body=RequestBody(b'{"model":"m"}')))
    (stream,) = agent.streams
    assert (stream.body, stream.body_ended) == (b'{"model":"m"}', True)
    assert (stream.head.deployment, stream.head.model, stream.head.request_id) == ("d-m", "m", "r1")
    assert not client.settled
    answer(stream)
    fleet.settle()
    assert (client.response.status, client.response.headers) == (200, HEAD.headers)
    assert (client.response.agent, client.response.deployment) == ("a", "a/d-m")
    assert client.response.attempts == 1
    assert await read(client) == b"hello"
    assert await read(client) == b""
    assert client.response.trailers == TRAILERS
    fleet.assert_quiet()


async def test_a_request_waits_until_a_slot_is_free() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1))
    first, second = fleet.submit(), fleet.submit()
    assert len(agent.streams) == 1
    fleet.advance(2.0)
    await finish(fleet, agent, first)
    assert len(agent.streams) == 2
    await finish(fleet, agent, second)
    assert second.response.queue_s == pytest.approx(2.0)
    fleet.assert_quiet()


@pytest.mark.parametrize(("slots", "placed"), [(1, False), (2, True)])
async def test_a_request_at_once_comes_behind_clients_that_came_earlier_in_the_turn(
    slots: int, placed: bool
) -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=slots))
    steps: list[Callable[[], None]] = []
    fleet.dispatcher._gatherer = ArrivalGatherer(fleet.dispatcher.submit, steps.append)
    client = asyncio.create_task(fleet.dispatcher.run(fleet.request()))
    await asyncio.sleep(0)
    assert (len(steps), fleet.dispatcher.open_exchanges) == (1, 0), "it waits for the end of the turn"
    try:
        fleet.dispatcher.submit_at_once(fleet.request(), lambda outcome: None, lambda each: True)
    except NoSlotFree:
        assert not placed
    else:
        assert placed
    for step in steps:
        step()
    fleet.settle()
    assert [each.head.request_id for each in agent.streams] == ["r1", "r2"][:slots]
    client.cancel()
    await asyncio.wait([client])


async def test_a_slot_is_free_only_when_the_agent_has_confirmed() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1))
    first = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    fleet.settle()
    first.response.abort()
    second = fleet.submit()
    assert agent.streams[0].reset_code is ErrorCode.CANCELLED
    assert len(agent.streams) == 1, "the engine has not let go yet"
    agent.streams[0].confirm()
    fleet.settle()
    assert len(agent.streams) == 2
    await finish(fleet, agent, second)
    fleet.assert_quiet()


def test_cancelling_while_waiting_gives_the_place_up() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=0))
    client = fleet.submit()
    assert fleet.dispatcher.room.requests == 1
    client.cancel()
    assert not client.settled
    agent.serve(deployment(slots=1))
    fleet.settle()
    assert not agent.streams
    fleet.assert_quiet()


def test_cancelling_before_the_head_resets_the_stream() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    client.cancel()
    fleet.settle()
    assert agent.streams[0].reset_code is ErrorCode.CANCELLED
    assert fleet.dispatcher.open_exchanges == 1
    agent.streams[0].confirm()
    fleet.assert_quiet()
    assert not client.settled


async def test_aborting_gives_back_the_credit_of_what_was_not_read() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    agent.streams[0].stream.send_data(b"x" * 10_000)
    fleet.settle()
    assert fleet.session(agent).endpoint.session.held_bytes == 10_000
    assert len(await client.response.next_chunks()) >= 1
    client.response.abort()
    client.response.abort()
    with pytest.raises(StreamBroken):
        await client.response.next_chunks()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_a_reader_that_stops_holds_no_more_than_was_granted() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    stream = agent.streams[0].stream
    stream.send_head(HEAD)
    while stream.send_data(b"x" * 16_384):
        fleet.settle()
    fleet.settle()
    held = fleet.session(agent).endpoint.session.held_bytes
    assert held == 128 * 1024
    taken = 0
    while taken < held:
        taken += sum(map(len, await client.response.next_chunks()))
    fleet.settle()
    assert fleet.session(agent).endpoint.session.held_bytes == held, "taken, but not consumed"
    client.response.consumed(held)
    fleet.settle()
    assert fleet.session(agent).endpoint.session.held_bytes > 0, "the engine went on"
    client.response.abort()
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_what_came_before_a_break_is_read_before_it_is_told() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    stream = agent.streams[0].stream
    stream.send_head(HEAD)
    stream.send_data(b"half an ans")
    fleet.settle()
    stream.reset(ErrorCode.ENGINE_FAILED, "engine died")
    fleet.settle()
    assert await read(client) == b"half an ans"
    with pytest.raises(StreamBroken, match="engine died") as broken:
        await client.response.next_chunks()
    assert broken.value.code is ErrorCode.ENGINE_FAILED
    fleet.assert_quiet()


async def test_many_small_chunks_are_joined() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    stream = agent.streams[0].stream
    stream.send_head(HEAD)
    for _ in range(5000):
        stream.send_data(b"x")
        fleet.settle()
    chunks = await client.response.next_chunks()
    assert sum(map(len, chunks)) == 5000
    assert len(chunks) <= 1024
    client.response.consumed(5000)
    stream.end()
    fleet.settle()
    assert await read(client) == b""
    fleet.assert_quiet()


# --- Admission and waiting ---


def test_a_model_nothing_ever_served_is_not_found() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m"))
    assert isinstance(fleet.submit(fleet.request("other")).error, ModelNotFound)


def test_a_route_that_no_deployment_of_the_model_does_is_refused() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(routes=("chat",)))
    assert isinstance(fleet.submit(fleet.request(route="embeddings")).error, RouteNotSupported)


async def test_a_model_whose_agent_left_is_held_for_a_moment() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    agent = fleet.connect("a", deployment())
    fleet.cut(agent)
    client = fleet.submit()
    fleet.advance(3.0)
    assert not client.settled
    agent = fleet.connect("a", deployment())
    await finish(fleet, agent, client)
    fleet.assert_quiet()


def test_when_the_agent_stays_away_those_who_wait_are_told_and_newcomers_at_once() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    agent = fleet.connect("a", deployment(slots=0))
    early = fleet.submit()
    fleet.cut(agent)
    late = fleet.submit()
    fleet.advance(5.0)
    assert isinstance(early.error, NoDeployment)
    assert isinstance(late.error, NoDeployment)
    assert isinstance(fleet.submit().error, NoDeployment)
    fleet.assert_quiet()


@pytest.mark.parametrize("status", [DeploymentStatus.LOADABLE, DeploymentStatus.FAILED])
def test_a_known_model_that_nothing_has_loaded_has_no_deployment(status: DeploymentStatus) -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(status=status))
    fleet.advance(6.0)
    assert isinstance(fleet.submit().error, NoDeployment)


async def test_requests_wait_for_a_model_that_is_loading() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(status=DeploymentStatus.LOADING))
    client = fleet.submit()
    fleet.advance(30.0)
    assert not client.settled
    agent.serve(deployment())
    fleet.settle()
    await finish(fleet, agent, client)
    fleet.assert_quiet()


def test_a_request_that_waited_as_long_as_it_may_is_sent_away_with_a_promise() -> None:
    fleet = Fleet(queue=QueueSettings(max_wait_s=60))
    fleet.connect("a", deployment())
    fleet.submit()
    client = fleet.submit()
    fleet.advance(59.0)
    assert not client.settled
    fleet.advance(1.0)
    assert isinstance(client.error, QueueTimeout)
    assert client.error.retry_after_s is not None
    assert 0 < client.error.retry_after_s <= 120


def test_a_deadline_ends_the_wait() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment())
    fleet.submit()
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 3))
    fleet.advance(3.0)
    assert isinstance(client.error, DeadlineExceeded)


def test_a_full_queue_refuses_at_once() -> None:
    fleet = Fleet(queue=QueueSettings(max_requests=1))
    fleet.connect("a", deployment(slots=1))
    clients = [fleet.submit() for _ in range(3)]
    assert not clients[1].settled
    assert isinstance(clients[2].error, QueueFull)


def test_a_draining_agent_gets_nothing_new_and_finishes_what_it_has() -> None:
    fleet = Fleet()
    one = fleet.connect("a", deployment(slots=4))
    fleet.submit()
    one.endpoint.send_drain(Drain("restart", 30.0))
    fleet.settle()
    two = fleet.connect("b", deployment())
    fleet.submit()
    assert (len(one.streams), len(two.streams)) == (1, 1)
    assert one.streams[0].reset_code is None


@pytest.mark.parametrize(("status", "streams"), [(AgentStatus.BUSY, 1), (AgentStatus.FAILED, 0)])
def test_agents_get_work_by_their_status(status: AgentStatus, streams: int) -> None:
    fleet = Fleet()
    agent = fleet.connect("a")
    agent.serve(deployment(), status=status)
    fleet.settle()
    fleet.submit()
    assert len(agent.streams) == streams


# --- Ends ---


async def test_closing_fails_what_waits_and_resets_what_runs() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    answering, opening, waiting = fleet.submit(), fleet.submit(), fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    fleet.settle()
    await fleet.dispatcher.close()
    fleet.settle()
    assert isinstance(opening.error, ShuttingDown)
    assert isinstance(waiting.error, ShuttingDown)
    with pytest.raises(StreamBroken) as broken:
        await answering.response.next_chunks()
    assert broken.value.code is ErrorCode.DRAINING
    assert [stream.reset_code for stream in agent.streams] == [ErrorCode.DRAINING] * 2
    for stream in agent.streams:
        stream.confirm()
    fleet.assert_quiet()
    assert isinstance(fleet.submit().error, ShuttingDown)


async def test_what_runs_when_no_more_is_accepted_goes_on() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    running, waiting = fleet.submit(), fleet.submit()
    fleet.dispatcher.stop_accepting()
    assert isinstance(fleet.submit().error, ShuttingDown)
    await finish(fleet, agent, running)
    await finish(fleet, agent, waiting)
    await fleet.dispatcher.wait_idle()
    fleet.assert_quiet()


def test_a_model_that_cannot_be_looked_at_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m"))
    other = fleet.connect("b", deployment("n"))
    scheduler = fleet.dispatcher.scheduling.scheduler
    assign = scheduler.assign

    def failing(model: str, *arguments: Any) -> Any:
        if model == "m":
            raise RuntimeError("a fault of a policy")
        return assign(model, *arguments)

    monkeypatch.setattr(scheduler, "assign", failing)
    for model in ("m", "n"):
        client = Client(fleet.request(model))
        fleet.dispatcher.submit(client.request, client.settle)
    with pytest.raises(RuntimeError, match="a fault of a policy"):
        fleet.settle()
    fleet.settle()
    assert len(other.streams) == 1
