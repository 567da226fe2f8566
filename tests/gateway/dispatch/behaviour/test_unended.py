"""Engines that end their streams in order but without the last event: their answers are whole."""

from dataclasses import replace

import orjson
import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.stream_recovery import REQUEST_BYTES
from gateway.domain.errors import StreamBroken
from gateway.domain.request import RequestBody
from gateway.scheduling.health import DeploymentHealth
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import DeploymentState, Headers, ResponseHead, Trailers, Usage, UsageMode
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.dispatch.recovery import engines, going_on
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.fleet.fleet import Client, EngineStream, Fleet

TEXT = ("Once", " upon", " a time")
EVENTS: Headers = (("content-type", "text/event-stream"),)
SETTINGS = DispatchSettings(slow_start_s=0, rest_s=0.01)
ENGINES = {"chat": engines.chat, "completions": engines.completions, "messages": engines.messages}
MARKS = {"chat": b"data: [DONE]\n\n", "completions": b"data: [DONE]\n\n"}
ASKED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}], "prompt": "PROMPT:"}


def serving(route: str, slots: int = 4) -> DeploymentState:
    return DeploymentState("d", "m", "v1", routes=(route,), slots=slots, continues={})


def whole_of(route: str, *, crlf: bool = False) -> bytes:
    return ENGINES[route](Model(TEXT), ASKED, Style(crlf=crlf))


def unended(route: str, *, crlf: bool = False) -> bytes:
    whole = whole_of(route, crlf=crlf)
    mark = MARKS.get(route, b"data: " + orjson.dumps({"type": "message_stop"}) + b"\n\n")
    cut = whole.rindex(b"event: message_stop") if route == "messages" else len(whole) - len(mark) - 2 * crlf
    return whole[:cut]


def ask(fleet: Fleet, route: str = "chat", **more: object) -> Client:
    body = RequestBody(orjson.dumps(ASKED | more))
    return fleet.submit(fleet.request(body=body, route=route, usage=UsageMode.STRIP))


def answer(fleet: Fleet, stream: EngineStream, data: bytes, usage: Usage | None = None) -> None:
    stream.stream.send_head(ResponseHead(200, EVENTS))
    stream.stream.send_data(data)
    stream.stream.end(Trailers(usage=usage))
    fleet.settle()


def healths(fleet: Fleet) -> list[DeploymentHealth | None]:
    return [each.health for session in fleet.registry.sessions for each in session.deployments.values()]


@pytest.mark.parametrize("crlf", [False, True])
@pytest.mark.parametrize("route", ["chat", "completions", "messages"])
async def test_answer_after_answer_is_whole_and_none_counts_as_a_failure(route: str, crlf: bool) -> None:
    """A circuit that opened would let one request a second through, and no other would be there at once."""
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", serving(route))
    for turn in range(40):
        client = ask(fleet, route)
        assert len(agent.streams) == turn + 1, "the next one is not held back"
        answer(fleet, agent.streams[-1], unended(route, crlf=crlf), Usage(3, 4))
        got = await read_to_end(client)
        assert got.startswith(unended(route, crlf=crlf))
        assert going_on.events(got) == going_on.events(whole_of(route))
        trailers = client.response.trailers
        assert trailers is not None
        assert trailers.usage == Usage(3, 4)
        fleet.settle()
    assert all(health is not None and health.healthy for health in healths(fleet))
    fleet.advance(2.0)
    fleet.assert_quiet()


@pytest.mark.parametrize("route", ["chat", "completions", "messages"])
async def test_one_that_lacks_only_its_end_is_whole_though_its_stream_breaks_and_nobody_could_go_on(
    route: str,
) -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", serving(route))
    client = ask(fleet, route)
    stream = agent.streams[-1].stream
    stream.send_head(ResponseHead(200, EVENTS))
    stream.send_data(unended(route))
    fleet.settle()
    stream.reset(ErrorCode.ENGINE_FAILED, "cut")
    fleet.settle()
    assert going_on.events(await read_to_end(client)) == going_on.events(whole_of(route))
    fleet.settle()
    fleet.assert_quiet()


@pytest.mark.parametrize("long", ["request", "answer"])
async def test_one_whose_end_went_out_is_whole_though_too_much_for_going_on_was_asked_or_answered(
    long: str,
) -> None:
    """Its stream breaks behind its last event."""
    fleet = Fleet(settings=replace(SETTINGS, record_bytes=100) if long == "answer" else SETTINGS)
    agent = fleet.connect("a", serving("chat"))
    client = ask(fleet, **({"user": "x" * REQUEST_BYTES} if long == "request" else {}))
    stream = agent.streams[-1].stream
    stream.send_head(ResponseHead(200, EVENTS))
    stream.send_data(whole_of("chat"))
    fleet.settle()
    fleet.cut(agent)
    assert await read_to_end(client) == whole_of("chat")
    fleet.settle()
    fleet.assert_quiet()


@pytest.mark.parametrize("kept", ["no reason", "half of the reason"])
async def test_one_that_does_not_say_why_it_ends_is_not_whole(kept: str) -> None:
    fleet = Fleet(settings=SETTINGS)
    agent = fleet.connect("a", serving("chat"))
    client = ask(fleet)
    data = unended("chat")
    last = data[:-2].rindex(b"\n\n") + 2
    answer(fleet, agent.streams[0], data[: last if kept == "no reason" else -20])
    with pytest.raises(StreamBroken):
        await read_to_end(client)
    fleet.advance(2.0)


async def test_an_answer_too_long_to_be_kept_is_whole_too() -> None:
    fleet = Fleet(settings=replace(SETTINGS, record_bytes=256))
    agent = fleet.connect("a", serving("chat"))
    client = ask(fleet)
    answer(fleet, agent.streams[0], unended("chat"))
    assert going_on.events(await read_to_end(client)) == going_on.events(whole_of("chat"))


async def test_one_that_goes_on_with_anothers_answer_may_omit_its_end_too() -> None:
    able = replace(serving("chat", slots=1), continues={"chat": "final_message"})
    fleet = Fleet(settings=SETTINGS)
    one, two = fleet.connect("a", able), fleet.connect("b", able)
    client = ask(fleet)
    one.streams[0].stream.send_head(ResponseHead(200, EVENTS))
    one.streams[0].stream.send_data(unended("chat")[:400])
    fleet.settle()
    fleet.cut(one)
    asked = orjson.loads(two.streams[0].body)
    rest = engines.chat(Model(TEXT), asked, Style(id="two")).removesuffix(MARKS["chat"])
    answer(fleet, two.streams[0], rest)
    got = await read_to_end(client)
    assert got.endswith(MARKS["chat"])
    assert going_on.seen_in_chat(got) == going_on.seen_in_chat(whole_of("chat"))
