"""What the gateway adds to a request to learn its usage is no reason for a client to get an error."""

from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.json_members import without_usage
from gateway.domain.request import Request, RequestBody
from shared.protocol.messages import (
    DeploymentState,
    DeploymentStatus,
    ResponseHead,
    Trailers,
    UsageMode,
)
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.domain.test_json_members import with_usage
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet

ASKED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
PLAIN = orjson.dumps(ASKED)
BODY = with_usage(PLAIN, None, present=False)
STREAM = ResponseHead(200, (("content-type", "text/event-stream"),))
WHOLE = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
SETTINGS = DispatchSettings(slow_start_s=0, rest_s=0.01)


def served(model: str = "m") -> DeploymentState:
    return DeploymentState("d", model, "v1", routes=("chat",), slots=2)


def request_of(fleet: Fleet, body: bytes = BODY, usage: UsageMode = UsageMode.STRIP) -> Request:
    length = (("content-type", "application/json"), ("content-length", str(len(body))))
    request = fleet.request(body=RequestBody(body, size_bytes=len(body)), usage=usage)
    request.headers = length
    return request


def ask(fleet: Fleet, body: bytes = BODY, usage: UsageMode = UsageMode.STRIP) -> Client:
    return fleet.submit(request_of(fleet, body, usage))


def reject(fleet: Fleet, stream: EngineStream, status: int = 422) -> None:
    stream.stream.send_head(ResponseHead(status, ()))
    stream.stream.send_data(b'{"detail":"Unexpected fields: stream_options"}')
    stream.stream.end(Trailers())
    fleet.settle()


def take(fleet: Fleet, stream: EngineStream) -> None:
    stream.stream.send_head(STREAM)
    stream.stream.send_data(WHOLE)
    stream.stream.end(Trailers())
    fleet.settle()


def lengths(stream: EngineStream) -> tuple[int, int]:
    return int(dict(stream.head.headers)["content-length"]), len(stream.body)


async def carried_out(fleet: Fleet, agent: FakeAgent) -> None:
    """One request, rejected and asked again."""
    count = len(agent.streams)
    client = ask(fleet)
    reject(fleet, agent.streams[count])
    take(fleet, agent.streams[count + 1])
    assert await read_to_end(client) == WHOLE
    fleet.settle()


@pytest.mark.parametrize("status", [400, 422])
async def test_an_engine_that_rejects_the_option_is_asked_without_it_and_it_is_remembered(
    status: int,
) -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    client = ask(fleet)
    assert agent.streams[0].body == BODY
    reject(fleet, agent.streams[0], status)
    assert agent.streams[1].body == PLAIN
    assert lengths(agent.streams[1]) == (len(PLAIN), len(PLAIN))
    take(fleet, agent.streams[1])
    assert client.response.status == 200
    assert await read_to_end(client) == WHOLE
    for turn in range(2, 5):
        again = ask(fleet)
        assert agent.streams[turn].body == PLAIN
        assert lengths(agent.streams[turn]) == (len(PLAIN), len(PLAIN))
        take(fleet, agent.streams[turn])
        assert await read_to_end(again) == WHOLE
        fleet.settle()
    fleet.advance(2.0)
    fleet.assert_quiet()


async def test_a_request_that_is_wrong_is_told_so_after_one_more_try() -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    client = ask(fleet)
    reject(fleet, agent.streams[0])
    reject(fleet, agent.streams[1])
    assert client.response.status == 422
    assert b"Unexpected" in await read_to_end(client)
    fleet.settle()
    assert len(agent.streams) == 2
    ask(fleet)
    assert agent.streams[2].body == BODY, "nothing is known of the option"


async def test_an_engine_that_takes_the_option_is_believed_in_what_it_rejects() -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    take(fleet, (ask(fleet), agent.streams[0])[1])
    client = ask(fleet)
    reject(fleet, agent.streams[1])
    assert client.response.status == 422
    assert len(agent.streams) == 2


async def test_what_the_client_asked_for_itself_is_its_own_affair() -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    client = ask(fleet, BODY, UsageMode.KEEP)
    reject(fleet, agent.streams[0])
    assert client.response.status == 422
    assert len(agent.streams) == 1


@pytest.mark.parametrize("status", [401, 404, 413])
async def test_other_errors_are_the_engines_answer(status: int) -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    client = ask(fleet)
    reject(fleet, agent.streams[0], status)
    assert client.response.status == status


async def test_a_body_that_is_still_coming_is_sent_without_the_option_where_that_is_known() -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    await carried_out(fleet, agent)

    async def rest() -> AsyncIterator[bytes]:
        yield b"rest"

    request = request_of(fleet)
    request.body.rest = rest()
    fleet.submit(request)
    assert agent.streams[2].body.startswith(PLAIN)
    assert int(dict(agent.streams[2].head.headers)["content-length"]) == len(PLAIN)


async def test_it_is_forgotten_when_the_engine_is_loaded_anew() -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", served())
    await carried_out(fleet, agent)
    failed = DeploymentState("d", "m", "v1", DeploymentStatus.FAILED, routes=("chat",), slots=2)
    agent.serve(failed)
    fleet.settle()
    agent.serve(served())
    fleet.settle()
    ask(fleet)
    assert agent.streams[2].body == BODY


def test_only_what_the_gateway_put_there_is_taken_out() -> None:
    assert without_usage(BODY) == PLAIN
    assert without_usage(b" " + BODY) == b" " + PLAIN
    assert without_usage(PLAIN) is None
    assert without_usage(b"") is None
