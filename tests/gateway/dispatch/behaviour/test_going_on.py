"""Answers that outlive their engines: another deployment goes on, and the client sees a pause."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.stream_recovery import MOST_FAULTS
from gateway.domain.errors import EngineError, StreamBroken
from gateway.pipeline.relay import as_request_error
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers, Usage
from tests.gateway.dispatch.answers import quiet, read_to_end
from tests.gateway.dispatch.recovery import engines
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.dispatch.streamed_answers import (
    HEAD,
    UNDISTURBED,
    able,
    answer,
    ask,
    begun,
    goes_on_itself,
    outcomes,
    whole,
)
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet
from tests.gateway.fleet.tunnels import resume, suspend

TROUBLES = [
    ErrorCode.ENGINE_FAILED,
    ErrorCode.ENGINE_TIMEOUT,
    ErrorCode.ENGINE_UNREACHABLE,
    ErrorCode.DRAINING,
    ErrorCode.INTERNAL,
    ErrorCode.OVERLOADED,
]


def left_by_one() -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """Of three able agents the first is cut in its answer: the one that is asked to go on, and the other."""
    fleet, one, two, client = begun()
    three = fleet.connect("c", able())
    fleet.cut(one)
    asked, other = (two, three) if two.streams else (three, two)
    return fleet, asked, other, client


async def told_at_once(fleet: Fleet, one: FakeAgent, two: FakeAgent, client: Client) -> StreamBroken:
    """The first agent is lost, the second is not asked to go on: what the client is told."""
    fleet.cut(one)
    assert not two.streams
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    quiet(fleet)
    return broken.value


@pytest.mark.parametrize("code", TROUBLES)
async def test_an_engine_that_fails_in_the_middle_is_gone_on_for(code: ErrorCode) -> None:
    fleet, one, two, client = begun()
    one.streams[0].stream.reset(code, "why")
    fleet.settle()
    assert orjson.loads(two.streams[0].body)["continue_final_message"] is True
    length = dict(two.streams[0].head.headers)["content-length"]
    assert int(length) == len(two.streams[0].body)
    answer(two.streams[0], style=Style(id="two", created=9))
    await whole(fleet, client)
    assert client.response.trailers is not None
    assert client.response.trailers.usage is not None
    assert client.response.trailers.usage == Usage(15 - 3, 3 + 4), "three tokens had come"
    assert outcomes(fleet) == {"wanted": 1, "begun": 1, "done": 1}
    quiet(fleet)


async def test_a_lost_session_is_gone_on_for() -> None:
    fleet, one, two, client = begun()
    fleet.cut(one)
    answer(two.streams[0])
    await whole(fleet, client)
    quiet(fleet)


@pytest.mark.parametrize("size_bytes", [0, 10, 300, 701, 1100])
async def test_an_answer_that_ends_before_its_end_goes_on(size_bytes: int) -> None:
    fleet, one, two, client = begun(size_bytes)
    one.streams[0].stream.end(Trailers())
    fleet.settle()
    answer(two.streams[0])
    await whole(fleet, client)
    quiet(fleet)


async def test_an_answer_without_its_last_line_is_ended_by_the_gateway() -> None:
    fleet, one, two, client = begun(len(UNDISTURBED) - len(b"data: [DONE]\n\n"))
    one.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "why")
    await whole(fleet, client)
    assert not two.streams
    quiet(fleet)


async def test_an_answer_may_lose_engine_after_engine_while_it_gets_further() -> None:
    fleet, one, two, client = begun(500)
    agents = [one, two]
    for turn in range(6):
        agent = agents[turn % 2]
        agent.open_streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "why")
        fleet.advance(70.0)
        stream = agents[(turn + 1) % 2].open_streams[0]
        answer(stream, 380 if turn < 5 else None)
        fleet.settle()
    await whole(fleet, client)
    quiet(fleet)


async def test_an_answer_that_engine_after_engine_dies_of_is_given_up_however_far_it_gets() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, rest_s=0.01))
    agents = [fleet.connect("a", able()), fleet.connect("b", able())]
    model = Model(tuple(f" word{n}" for n in range(50)))
    client = ask(fleet)
    for _ in range(MOST_FAULTS):
        (stream,) = (each for agent in agents for each in agent.open_streams)
        stream.stream.send_head(HEAD)
        events = list(engines.chat_events(model, orjson.loads(stream.body), Style()))
        stream.stream.send_data(b"".join(events[:3]))
        fleet.settle()
        stream.stream.reset(ErrorCode.ENGINE_FAILED, "why")
        fleet.advance(70.0)
    assert sum(len(agent.streams) for agent in agents) == MOST_FAULTS
    with pytest.raises(StreamBroken, match="too many engines"):
        await read_to_end(client)
    quiet(fleet)


async def test_engines_that_fail_in_a_row_are_tried_as_often_as_allowed() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, max_attempts=3))
    agents = [fleet.connect(name, able()) for name in "abcd"]
    client = ask(fleet)
    answer(agents[0].streams[0], 700)
    fleet.settle()
    for agent in agents[:3]:
        agent.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "why")
        fleet.settle()
    assert not agents[3].streams
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    assert as_request_error(broken.value).code == "stream_not_continuable"
    quiet(fleet)


@pytest.mark.parametrize("head", [ResponseHead(400, ()), ResponseHead(503, ()), ResponseHead(200, ())])
async def test_a_next_engine_that_answers_otherwise_is_passed_over(head: ResponseHead) -> None:
    fleet, asked, other, client = left_by_one()
    asked.streams[0].stream.send_head(head)
    fleet.settle()
    assert asked.streams[0].reset_code is ErrorCode.CANCELLED
    answer(other.streams[0])
    await whole(fleet, client)
    quiet(fleet)


async def test_an_engine_whose_words_do_not_fit_is_not_asked_again_while_another_may_come_back() -> None:
    fleet, one, two, client = begun()
    three = fleet.connect("c", able())
    suspend(fleet, three)
    one.streams[0].stream.reset(ErrorCode.ENGINE_FAILED, "why")
    fleet.settle()
    unfit = two.streams[0].stream
    unfit.send_head(HEAD)
    unfit.send_data(b'data: {"error": {"message": "no"}}\n\n')
    fleet.advance(2.0)
    assert (len(one.streams), len(two.streams), len(three.streams)) == (1, 1, 0)
    resume(fleet, three)
    fleet.settle()
    answer(three.streams[0])
    await whole(fleet, client)
    quiet(fleet)


async def test_what_does_not_fit_is_not_joined() -> None:
    fleet, asked, other, client = left_by_one()
    asked.streams[0].stream.send_head(HEAD)
    asked.streams[0].stream.send_data(b'data: {"error": {"message": "no"}}\n\n')
    fleet.settle()
    answer(other.streams[0])
    await whole(fleet, client)
    quiet(fleet)


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"n": 2}, "'n'"), ({"logprobs": True}, "'logprobs'"), ({"guided_regex": "a"}, "grammar")],
)
async def test_what_cannot_be_continued_soundly_is_told(more: dict[str, Any], reason: str) -> None:
    fleet, one, two, client = begun(**more)
    error = as_request_error(await told_at_once(fleet, one, two, client))
    assert isinstance(error, EngineError)
    assert error.code == "stream_not_continuable"
    assert reason in error.message
    assert outcomes(fleet)["impossible"] == 1


async def test_an_answer_longer_than_is_kept_cannot_go_on() -> None:
    fleet = Fleet(settings=DispatchSettings(record_bytes=4096))
    one, two = fleet.connect("a", able()), fleet.connect("b", able())
    client = ask(fleet)
    event = UNDISTURBED[: UNDISTURBED.index(b"\n\n") + 2]
    one.streams[0].stream.send_head(HEAD)
    one.streams[0].stream.send_data(event * 40)
    fleet.settle()
    assert "too large" in str(await told_at_once(fleet, one, two, client))


async def test_only_the_same_version_and_ability_will_do() -> None:
    fleet, one, two, client = begun()
    fleet.cut(two)
    other = fleet.connect("c", able("v2"))
    unable = fleet.connect("d", replace(able(), continues={}))
    fleet.cut(one)
    fleet.advance(4.0)
    assert not other.streams
    assert not unable.streams
    right = fleet.connect("e", able())
    answer(right.streams[0])
    await whole(fleet, client)
    quiet(fleet)


async def test_where_nobody_ever_could_it_is_told_at_once() -> None:
    fleet = Fleet()
    one, two = (
        fleet.connect("a", replace(able(), continues={})),
        fleet.connect("b", replace(able(), continues={})),
    )
    client = ask(fleet)
    answer(one.streams[0], 700)
    fleet.settle()
    assert "no engine is there that can" in str(await told_at_once(fleet, one, two, client))


async def test_a_wait_for_another_deployment_ends() -> None:
    fleet = Fleet(queue=QueueSettings(max_wait_s=20))
    one = fleet.connect("a", able())
    fleet.connect("b", able("v2"))
    client = ask(fleet)
    answer(one.streams[0], 700)
    fleet.settle()
    fleet.cut(one)
    fleet.advance(25.0)
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    assert as_request_error(broken.value).code == "stream_not_continuable"
    quiet(fleet)


# --- Tunnels that are away ---


async def test_a_tunnel_that_is_soon_back_goes_on_itself() -> None:
    fleet, one, two, client = begun()
    suspend(fleet, one)
    fleet.advance(4.0)
    resume(fleet, one)
    goes_on_itself(one)
    await whole(fleet, client)
    assert not two.streams
    quiet(fleet)


async def test_another_goes_on_when_a_tunnel_stays_away() -> None:
    fleet, one, two, client = begun()
    suspend(fleet, one)
    fleet.advance(5.0)
    answer(two.streams[0])
    await whole(fleet, client)
    assert fleet.dispatcher.open_exchanges == 1, "the lost one's slot is not free yet"
    resume(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    quiet(fleet)


async def test_a_tunnel_that_is_back_before_a_slot_was_free_goes_on_itself() -> None:
    fleet, one, two, client = begun()
    busy = fleet.submit()
    assert len(two.streams) == 1
    suspend(fleet, one)
    fleet.advance(5.0)
    assert fleet.dispatcher.room.requests == 1
    resume(fleet, one)
    assert fleet.dispatcher.room.requests == 0
    goes_on_itself(one)
    await whole(fleet, client)
    busy.cancel()
    fleet.settle()
    quiet(fleet)


async def test_a_tunnel_that_is_away_is_waited_for_when_nobody_else_can() -> None:
    fleet, one, two, client = begun()
    fleet.cut(two)
    got = b"".join(await client.response.next_chunks())
    client.response.consumed(len(got))
    suspend(fleet, one)
    fleet.advance(25.0)
    assert one.streams[0].reset_code is None
    resume(fleet, one)
    goes_on_itself(one)
    fleet.settle()
    got += await read_to_end(client)
    assert b": waiting\n\n" in got, "a long pause is filled with comments"
    assert seen_in_chat(got) == seen_in_chat(UNDISTURBED)
    quiet(fleet)


async def test_half_an_event_survives_a_wait_for_somebody_else() -> None:
    fleet, one, two, client = begun(705)
    busy = fleet.submit()
    suspend(fleet, one)
    fleet.advance(6.0)
    resume(fleet, one)
    goes_on_itself(one, 705)
    await whole(fleet, client)
    busy.cancel()
    fleet.settle()
    assert len(two.streams) == 1
    quiet(fleet)


async def test_the_next_engines_tunnel_may_go_too() -> None:
    fleet, asked, other, client = left_by_one()
    suspend(fleet, asked)
    fleet.advance(3.1)
    answer(other.streams[0])
    await whole(fleet, client)
    resume(fleet, asked)
    assert asked.streams[0].reset_code is ErrorCode.CANCELLED
    quiet(fleet)
