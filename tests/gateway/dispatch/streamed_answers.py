"""Streams of events that engines begin, lose and go on with, and how the client's whole answer reads."""

import orjson

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.request import RequestBody
from shared.protocol.messages import DeploymentState, ResponseHead, Trailers, Usage, UsageMode
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.dispatch.recovery import engines
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet

MODEL = Model(("Once", " upon", "\n", ' a "time"', " there", " was", " an", " end"))
HEAD = ResponseHead(200, (("content-type", "text/event-stream"),))
ASKED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
BODY = orjson.dumps(ASKED | {"stream_options": {"include_usage": True}})
UNDISTURBED = engines.chat(MODEL, orjson.loads(BODY), Style())


def able(version: str = "v1", slots: int = 1, **continues: str) -> DeploymentState:
    ways = continues or {"chat": "final_message"}
    return DeploymentState("d", "m", version, routes=("chat",), slots=slots, continues=ways)


def ask(fleet: Fleet, **more: object) -> Client:
    request = fleet.request(body=RequestBody(orjson.dumps(orjson.loads(BODY) | more)), usage=UsageMode.KEEP)
    return fleet.submit(request)


def answer(stream: EngineStream, size_bytes: int | None = None, style: Style | None = None) -> None:
    """The head and the first bytes of the answer, or all of it and its end."""
    data = engines.chat(MODEL, orjson.loads(stream.body), style or Style())
    stream.stream.send_head(HEAD)
    stream.stream.send_data(data[:size_bytes])
    if size_bytes is None:
        stream.stream.end(Trailers(usage=Usage(15, 4)))


def begun(size_bytes: int = 700, **more: object) -> tuple[Fleet, FakeAgent, FakeAgent, Client]:
    """Two able agents, the first of which has answered so far."""
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, rest_s=0.01))
    one, two = fleet.connect("a", able()), fleet.connect("b", able())
    client = ask(fleet, **more)
    answer(one.streams[0], size_bytes)
    fleet.settle()
    return fleet, one, two, client


def goes_on_itself(agent: FakeAgent, size_bytes: int = 700) -> None:
    """The engine sends what comes after the first bytes of the answer, and its end."""
    agent.streams[0].stream.send_data(UNDISTURBED[size_bytes:])
    agent.streams[0].stream.end(Trailers())


async def whole(fleet: Fleet, client: Client) -> None:
    fleet.settle()
    seen = seen_in_chat(await read_to_end(client))
    assert seen == seen_in_chat(UNDISTURBED)
    fleet.settle()


def outcomes(fleet: Fleet) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in fleet.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "trunkline_continuations_total":
                found[sample.labels["outcome"]] = sample.value
    return found
