"""What becomes of a request whose attempt fails before its answer, or in the middle of it."""

import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    EngineError,
    HeadersTooLarge,
    StreamBroken,
)
from gateway.domain.request import RequestBody
from shared.protocol.credit import WindowSettings
from shared.protocol.errors import ErrorCode
from tests.gateway.dispatch.answers import HEAD, answer, finish, leave, read_to_end
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment


def two_agents(routes: tuple[str, ...] = ("chat",)) -> tuple[Fleet, FakeAgent, FakeAgent]:
    fleet = Fleet()
    one, two = (fleet.connect(name, deployment(routes=routes)) for name in "ab")
    return fleet, one, two


def fail(fleet: Fleet, agent: FakeAgent, code: ErrorCode = ErrorCode.REFUSED, reason: str = "") -> None:
    """The agent ends its oldest open stream with an error."""
    agent.open_streams[0].stream.reset(code, reason)
    fleet.settle()


@pytest.mark.parametrize("code", [ErrorCode.REFUSED, ErrorCode.ENGINE_UNREACHABLE, ErrorCode.OVERLOADED])
async def test_a_refused_request_goes_to_another_deployment(code: ErrorCode) -> None:
    fleet, one, two = two_agents()
    client = fleet.submit(fleet.request(body=RequestBody(b"prompt")))
    fail(fleet, one, code, "no")
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
    fail(fleet, one)
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
    fail(fleet, one)
    fleet.advance(1.0)
    other = fleet.submit()
    await finish(fleet, one, other)
    picky.cancel()
    fleet.assert_quiet()


async def test_the_only_deployment_is_asked_again_after_a_rest() -> None:
    fleet = Fleet(settings=DispatchSettings(rest_s=0.1))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    fail(fleet, agent)
    assert len(agent.streams) == 1
    fleet.advance(0.11)
    assert len(agent.streams) == 2
    fail(fleet, agent)
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
        fail(fleet, agent, ErrorCode.ENGINE_FAILED, "it died")
    assert isinstance(client.error, EngineError)
    assert "it died" in client.error.message
    assert not agents[3].streams
    fleet.advance(1.0)
    fleet.assert_quiet()


async def test_a_lost_session_moves_built_in_routes_to_another_deployment() -> None:
    fleet, one, two = two_agents()
    client = fleet.submit()
    assert len(one.streams) == 1
    fleet.cut(one)
    assert len(two.streams) == 1
    await finish(fleet, two, client)
    fleet.assert_quiet()


def test_a_lost_session_fails_other_routes_which_may_have_had_an_effect() -> None:
    fleet, one, two = two_agents(routes=("any",))
    client = fleet.submit(fleet.request(route="any"))
    fleet.cut(one)
    assert isinstance(client.error, EngineError)
    assert not two.streams
    fleet.assert_quiet()


async def test_a_refused_request_of_another_route_is_given_on() -> None:
    fleet, one, two = two_agents(routes=("any",))
    client = fleet.submit(fleet.request(route="any"))
    fail(fleet, one)
    await finish(fleet, two, client)
    fleet.advance(1.0)
    fleet.assert_quiet()


async def test_a_session_lost_in_the_middle_breaks_the_response() -> None:
    fleet, one, two = two_agents()
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
    fleet, one, two = two_agents()
    client = fleet.submit()
    fail(fleet, one, code, "why")
    assert isinstance(client.error, error)
    assert not two.streams
    fleet.assert_quiet()


@pytest.mark.parametrize(
    "code", [ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL, ErrorCode.CANCELLED, ErrorCode.ENGINE_TIMEOUT]
)
async def test_other_failures_before_the_head_move_the_request(code: ErrorCode) -> None:
    fleet, one, two = two_agents()
    client = fleet.submit()
    fail(fleet, one, code, "why")
    await finish(fleet, two, client)
    assert client.response.attempts == 2
    fleet.assert_quiet()


def test_a_full_session_gets_no_more_until_a_stream_closes() -> None:
    fleet = Fleet()
    windows = WindowSettings(floor=16384, initial=16384, maximum=16384, session=1 << 20, streams=2)
    agent = fleet.connect("a", deployment(slots=5), windows=windows)
    clients = [fleet.submit() for _ in range(3)]
    assert len(agent.streams) == 2
    fail(fleet, agent, ErrorCode.DEADLINE)
    assert len(agent.streams) == 3
    leave(fleet, *clients[1:])


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_session_full_of_unread_answers_opens_when_they_are_read(streaming: bool) -> None:
    fleet = Fleet(settings=DispatchSettings(unread_bytes=0))
    windows = WindowSettings(floor=16384, initial=16384, maximum=16384, session=1 << 20, streams=1)
    agent = fleet.connect("a", deployment(slots=5), windows=windows)
    first = fleet.submit(fleet.request(streaming=streaming))
    answer(agent.streams[0])
    fleet.settle()
    second = fleet.submit(fleet.request(streaming=streaming))
    assert len(agent.streams) == 1, "the first answer still takes the session's room"
    assert await read_to_end(first) == b"hello"
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
