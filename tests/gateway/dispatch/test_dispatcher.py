"""Dispatch: late binding, responses, failures, budgets; over real sessions joined in memory."""

import pytest

from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.stall_detection import ANSWER_S
from gateway.domain.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    EngineError,
    HeadersTooLarge,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    QueueTimeout,
    RouteNotSupported,
    ShuttingDown,
    StreamBroken,
)
from gateway.domain.request import RequestBody
from shared.protocol.credit import WindowSettings
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import (
    AgentStatus,
    DeploymentStatus,
    Drain,
    ResponseHead,
    Trailers,
    Usage,
)
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend

HEAD = ResponseHead(200, (("content-type", "text/plain"),))
TRAILERS = Trailers(usage=Usage(3, 5))


async def read(client: Client) -> bytes:
    """Everything that is there now, consumed."""
    chunks = await client.response.next_chunks()
    for chunk in chunks:
        client.response.consumed(len(chunk))
    return b"".join(chunks)


def answer(stream: EngineStream, body: bytes = b"hello") -> None:
    stream.stream.send_head(HEAD)
    stream.stream.send_data(body)
    stream.stream.end(TRAILERS)


async def finish(fleet: Fleet, agent: FakeAgent, client: Client) -> None:
    """Answer the agent's oldest open stream and read the answer to its end."""
    answer(agent.open_streams[0])
    fleet.settle()
    assert await read(client) == b"hello"
    assert await read(client) == b""


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


# --- Attempts ---


@pytest.mark.parametrize("code", [ErrorCode.REFUSED, ErrorCode.ENGINE_UNREACHABLE, ErrorCode.OVERLOADED])
async def test_a_refused_request_goes_to_another_deployment(code: ErrorCode) -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit(fleet.request(body=RequestBody(b"prompt")))
    one.streams[0].stream.reset(code, "no")
    fleet.settle()
    assert two.streams[0].body == b"prompt"
    await finish(fleet, two, client)
    assert client.response.attempts == 2
    assert client.request.attempts == ["a/d-m", "b/d-m"]
    fleet.advance(1.0)
    fleet.assert_quiet()


async def test_a_request_is_not_given_to_the_same_deployment_while_there_is_another() -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment(slots=4)), fleet.connect("b", deployment(slots=0))
    client = fleet.submit()
    one.streams[0].stream.reset(ErrorCode.REFUSED)
    fleet.settle()
    fleet.advance(5.0)
    assert len(one.streams) == 1, "b serves the model too, if not at this moment"
    two.serve(deployment(slots=1))
    fleet.settle()
    await finish(fleet, two, client)
    fleet.assert_quiet()


async def test_others_pass_a_request_that_waits_for_another_deployment() -> None:
    fleet = Fleet()
    one, _ = fleet.connect("a", deployment(slots=1)), fleet.connect("b", deployment(slots=0))
    picky = fleet.submit()
    one.streams[0].stream.reset(ErrorCode.REFUSED)
    fleet.settle()
    fleet.advance(1.0)
    other = fleet.submit()
    await finish(fleet, one, other)
    picky.cancel()
    fleet.assert_quiet()


async def test_the_only_deployment_is_asked_again_after_a_rest() -> None:
    fleet = Fleet(settings=DispatchSettings(rest_s=0.1))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.reset(ErrorCode.REFUSED)
    fleet.settle()
    assert len(agent.streams) == 1
    fleet.advance(0.11)
    assert len(agent.streams) == 2
    agent.streams[1].stream.reset(ErrorCode.REFUSED)
    fleet.settle()
    fleet.advance(0.11)
    assert len(agent.streams) == 2, "the second rest is longer"
    fleet.advance(0.1)
    await finish(fleet, agent, client)
    assert client.response.attempts == 3
    fleet.assert_quiet()


def test_attempts_are_bounded() -> None:
    fleet = Fleet(settings=DispatchSettings(max_attempts=3))
    agents = [fleet.connect(name, deployment()) for name in "abcd"]
    client = fleet.submit()
    for agent in agents[:3]:
        agent.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "it died")
        fleet.settle()
    assert isinstance(client.error, EngineError)
    assert "it died" in client.error.message
    assert not agents[3].streams
    fleet.advance(1.0)
    fleet.assert_quiet()


async def test_a_lost_session_moves_built_in_routes_to_another_deployment() -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit()
    assert len(one.streams) == 1
    fleet.cut(one)
    assert len(two.streams) == 1
    await finish(fleet, two, client)
    fleet.assert_quiet()


def test_a_lost_session_fails_other_routes_which_may_have_had_an_effect() -> None:
    fleet = Fleet()
    routes = ("any",)
    one, two = fleet.connect("a", deployment(routes=routes)), fleet.connect("b", deployment(routes=routes))
    client = fleet.submit(fleet.request(route="any"))
    fleet.cut(one)
    assert isinstance(client.error, EngineError)
    assert not two.streams
    fleet.assert_quiet()


async def test_a_refused_request_of_another_route_is_given_on() -> None:
    fleet = Fleet()
    routes = ("any",)
    one, two = fleet.connect("a", deployment(routes=routes)), fleet.connect("b", deployment(routes=routes))
    client = fleet.submit(fleet.request(route="any"))
    one.streams[0].stream.reset(ErrorCode.REFUSED)
    fleet.settle()
    await finish(fleet, two, client)
    fleet.advance(1.0)
    fleet.assert_quiet()


async def test_a_session_lost_in_the_middle_breaks_the_response() -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit()
    one.streams[0].stream.send_head(HEAD)
    fleet.settle()
    fleet.cut(one)
    with pytest.raises(StreamBroken) as broken:
        await client.response.next_chunks()
    assert broken.value.code is ErrorCode.SESSION_LOST
    assert not two.streams
    fleet.assert_quiet()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.PROTOCOL_ERROR, EngineError),
        (ErrorCode.DEADLINE, DeadlineExceeded),
        (ErrorCode.TOO_LARGE, BodyTooLarge),
    ],
)
def test_failures_that_no_other_engine_would_avoid_are_told(code: ErrorCode, error: type[Exception]) -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit()
    one.streams[0].stream.reset(code, "why")
    fleet.settle()
    assert isinstance(client.error, error)
    assert not two.streams
    fleet.assert_quiet()


@pytest.mark.parametrize(
    "code", [ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL, ErrorCode.CANCELLED, ErrorCode.ENGINE_TIMEOUT]
)
async def test_other_failures_before_the_head_move_the_request(code: ErrorCode) -> None:
    fleet = Fleet()
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    client = fleet.submit()
    one.streams[0].stream.reset(code, "why")
    fleet.settle()
    await finish(fleet, two, client)
    assert client.response.attempts == 2
    fleet.assert_quiet()


def test_a_full_session_gets_no_more_until_a_stream_closes() -> None:
    fleet = Fleet()
    windows = WindowSettings(floor=16384, initial=16384, maximum=16384, session=1 << 20, streams=2)
    agent = fleet.connect("a", deployment(slots=5), windows=windows)
    clients = [fleet.submit() for _ in range(3)]
    assert len(agent.streams) == 2
    agent.streams[0].stream.reset(ErrorCode.DEADLINE)
    fleet.settle()
    assert len(agent.streams) == 3
    for client in clients[1:]:
        client.cancel()
    fleet.settle()
    for stream in agent.open_streams:
        stream.confirm()
    fleet.assert_quiet()


async def test_a_session_full_of_unread_answers_opens_when_they_are_read() -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    windows = WindowSettings(floor=16384, initial=16384, maximum=16384, session=1 << 20, streams=1)
    agent = fleet.connect("a", deployment(slots=5), windows=windows)
    first = fleet.submit()
    answer(agent.streams[0])
    fleet.settle()
    second = fleet.submit()
    assert len(agent.streams) == 1, "the first answer still takes the session's room"
    assert await read(first) == b"hello"
    assert await read(first) == b""
    fleet.settle()
    await finish(fleet, agent, second)
    fleet.assert_quiet()


def test_a_head_too_large_for_a_frame_is_an_error_of_the_request() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    request = fleet.request()
    request.headers = tuple((f"x-{n}", '"' * 300) for n in range(100))
    assert isinstance(fleet.submit(request).error, HeadersTooLarge)
    request.headers = tuple((f"x-{n}", "'" * 300) for n in range(100))
    fleet.submit(request)
    assert agent.streams[0].head.headers == request.headers


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


# --- Budgets ---


def test_no_head_in_time_is_told_and_stops_the_engine() -> None:
    fleet = Fleet(settings=DispatchSettings(first_byte_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    fleet.advance(10.0)
    assert not client.settled, "first the tunnel is asked whether the silence is its own"
    fleet.advance(ANSWER_S)
    assert isinstance(client.error, DeadlineExceeded)
    assert agent.streams[0].reset_code is ErrorCode.DEADLINE
    agent.streams[0].confirm()
    fleet.assert_quiet()


def test_nobody_is_late_before_what_waited_for_the_tunnel_could_arrive() -> None:
    """As when a tunnel is half-open: most of the time is over before anybody knows that it is gone."""
    fleet = Fleet(settings=DispatchSettings(first_byte_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    fleet.advance(9.95)
    suspend(fleet, agent)
    fleet.advance(3.0)
    resume(fleet, agent)
    fleet.advance(ANSWER_S * 0.9)
    assert not client.settled
    agent.streams[0].stream.send_head(HEAD)
    fleet.settle()
    assert client.response.status == 200


def test_the_deadline_counts_for_the_first_byte_of_a_stream() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 4))
    assert agent.streams[0].head.deadline_s is None
    fleet.advance(4.0)
    assert isinstance(client.error, DeadlineExceeded)


async def test_the_deadline_of_a_stream_that_has_begun_is_over() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 4))
    agent.streams[0].stream.send_head(HEAD)
    fleet.advance(5.0)
    agent.streams[0].stream.send_data(b"token")
    fleet.settle()
    assert await read(client) == b"token"


async def test_the_deadline_of_a_whole_answer_counts_to_its_end() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(streaming=False, deadline_s=fleet.loop.now_s + 4))
    assert agent.streams[0].head.deadline_s == 4.0
    agent.streams[0].stream.send_head(HEAD)
    fleet.advance(4.0)
    assert isinstance(client.error, DeadlineExceeded)


async def test_silence_in_the_middle_breaks_the_response() -> None:
    fleet = Fleet(settings=DispatchSettings(idle_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    for _ in range(5):
        agent.streams[0].stream.send_data(b"t")
        fleet.advance(9.0)
        assert await read(client) == b"t"
    fleet.advance(11.0)
    with pytest.raises(StreamBroken) as broken:
        await client.response.next_chunks()
    assert broken.value.code is ErrorCode.ENGINE_TIMEOUT
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_a_slow_reader_is_not_taken_for_a_silent_engine() -> None:
    fleet = Fleet(settings=DispatchSettings(idle_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    answer(agent.streams[0])
    fleet.advance(100.0)
    assert await read(client) == b"hello"
    assert await read(client) == b""
    fleet.assert_quiet()


async def test_an_answer_may_not_take_for_ever() -> None:
    fleet = Fleet(settings=DispatchSettings(idle_s=10, total_s=35))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    for _ in range(7):
        fleet.advance(5.0)
        if not agent.streams[0].reset_code:
            agent.streams[0].stream.send_data(b"t")
            fleet.settle()
    while await client.response.next_chunks():
        with pytest.raises(StreamBroken):
            await client.response.next_chunks()
        break
    assert agent.streams[0].reset_code is ErrorCode.DEADLINE


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
