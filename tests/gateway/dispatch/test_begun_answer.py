"""An answer whose front part is all that is left of its gateway goes on at its next token."""

import asyncio

import orjson
import pytest

from gateway.dispatch.dispatcher import DispatchSettings, EngineResponse
from gateway.dispatch.recovery import NotContinuable
from gateway.domain.errors import RequestError, StreamBroken
from gateway.domain.request import BegunAnswer, Request, RequestBody
from shared.process.server_sent_events import last_event_end
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import UsageMode
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.dispatch.streamed_answers import BODY, HEAD, UNDISTURBED, able, answer, outcomes
from tests.gateway.fleet.fleet import Fleet, deployment


def fleet_of(*deployments: object) -> Fleet:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, rest_s=0.01))
    for number, each in enumerate(deployments or (able(),)):
        fleet.connect(f"agent-{number}", each)  # type: ignore[arg-type]
    return fleet


def front(size_bytes: int) -> bytes:
    """Whole events of the answer."""
    return UNDISTURBED[: last_event_end(UNDISTURBED[:size_bytes], 0)]


def request_of(
    fleet: Fleet, data: bytes, *, version: str = "v1", model: str = "m", **more: object
) -> Request:
    body = RequestBody(orjson.dumps(orjson.loads(BODY) | more))
    request = fleet.request(body=body, usage=UsageMode.KEEP)
    request.begun = BegunAnswer(data, HEAD.headers, model, version)
    return request


async def resumed(fleet: Fleet, request: Request) -> EngineResponse:
    """The response, which is there before an engine is found."""
    async with asyncio.timeout(30):
        return await fleet.dispatcher.run(request)


async def rest_of(response: EngineResponse) -> bytes:
    got = b""
    async with asyncio.timeout(30):
        while chunks := await response.next_chunks():
            response.consumed(sum(map(len, chunks)))
            got += b"".join(chunks)
    return got


def released(fleet: Fleet) -> bool:
    return fleet.dispatcher.records.taken_bytes == 0


@pytest.mark.parametrize("size_bytes", [0, 300, 700, 1000])
async def test_the_rest_comes_from_another_engine(size_bytes: int) -> None:
    fleet = fleet_of()
    data = front(size_bytes)
    response = await resumed(fleet, request_of(fleet, data))
    fleet.settle()
    (stream,) = fleet.agents[0].streams
    answer(stream)
    fleet.settle()
    whole = data + await rest_of(response)
    assert seen_in_chat(whole) == seen_in_chat(UNDISTURBED)
    assert (response.agent, response.attempts) == ("agent-0", 1)
    assert outcomes(fleet)["done"] == 1
    fleet.settle()
    fleet.assert_quiet()
    assert released(fleet)


async def test_no_token_is_asked_for_again() -> None:
    fleet = fleet_of()
    data = front(900)
    await resumed(fleet, request_of(fleet, data))
    fleet.settle()
    asked = orjson.loads(fleet.agents[0].streams[0].body)
    assert asked["continue_final_message"] is True
    text = asked["messages"][-1]["content"]
    assert text
    assert text == seen_in_chat(data).text


async def test_an_answer_that_lacks_only_its_end_needs_no_engine() -> None:
    fleet = fleet_of()
    whole = UNDISTURBED.removesuffix(b"data: [DONE]\n\n")
    for data in (whole, UNDISTURBED):
        response = await resumed(fleet, request_of(fleet, data))
        assert data + await rest_of(response) == UNDISTURBED
        assert not fleet.agents[0].streams
        assert released(fleet)


@pytest.mark.parametrize(
    ("served", "begun", "asked"),
    [
        (able("v2"), {}, {}),  # another version
        (deployment(routes=("chat",)), {"version": ""}, {}),  # an engine that cannot go on
        (able(), {"model": "other"}, {}),  # the alias leads elsewhere by now
        (able(), {}, {"response_format": {"type": "json_object"}}),  # an answer that is held to a grammar
    ],
)
async def test_what_cannot_go_on_is_refused_before_it_waits(
    served: object, begun: dict[str, str], asked: dict[str, object]
) -> None:
    fleet = fleet_of(served)
    with pytest.raises(NotContinuable):
        await resumed(fleet, request_of(fleet, front(700), **begun, **asked))  # type: ignore[arg-type]
    assert released(fleet)
    fleet.assert_quiet()


async def test_a_request_that_is_refused_holds_nothing() -> None:
    fleet = fleet_of()
    fleet.dispatcher.stop_accepting()
    with pytest.raises(RequestError):
        await resumed(fleet, request_of(fleet, front(700)))
    assert released(fleet)


async def test_the_second_engine_may_be_lost_too() -> None:
    fleet = fleet_of(able(), able())
    data = front(500)
    response = await resumed(fleet, request_of(fleet, data))
    fleet.settle()
    first = next(agent for agent in fleet.agents if agent.streams)
    answer(first.streams[0], 400)
    fleet.settle()
    first.streams[0].stream.reset(ErrorCode.ENGINE_UNREACHABLE, "it is gone")
    fleet.settle()
    fleet.advance(1)
    second = next(agent for agent in fleet.agents if agent is not first)
    answer(second.streams[0])
    fleet.settle()
    assert seen_in_chat(data + await rest_of(response)) == seen_in_chat(UNDISTURBED)


async def test_it_breaks_when_nobody_is_left_to_go_on() -> None:
    fleet = fleet_of(able(slots=1))
    fleet.submit()
    fleet.settle()
    response = await resumed(fleet, request_of(fleet, front(700)))
    fleet.settle()
    fleet.agents[0].serve()
    fleet.settle()
    fleet.advance(60)
    with pytest.raises(StreamBroken):
        await rest_of(response)
    assert released(fleet)


async def test_a_reader_that_leaves_takes_its_place_along() -> None:
    fleet = fleet_of(able(slots=1))
    fleet.submit()
    fleet.settle()
    response = await resumed(fleet, request_of(fleet, front(700)))
    assert fleet.dispatcher.room.depth("m") == 1
    response.abort()
    fleet.settle()
    assert fleet.dispatcher.room.depth("m") == 0
    assert released(fleet)
