"""The gateway tells its scheduler what runs and what became of it, and goes where that says."""

from random import Random
from typing import Any

import orjson
import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.request import Request, RequestBody, Tier
from gateway.scheduling.learning.performance import Speeds
from gateway.scheduling.policies.late_binding import OFFERED
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers, Usage
from shared.protocol.work import WorkScale
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment

HEAD = ResponseHead(200, (("content-type", "text/event-stream"),))
EVENT = b'data: {"choices":[]}\n\n'
DONE = b"data: [DONE]\n\n"
CHAIN = tuple(range(100, 130))


def fleet_of(*names: str, policy: str = "cost", slots: int = 8) -> tuple[Fleet, list[FakeAgent]]:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0), policy=policy)
    return fleet, [fleet.connect(name, deployment(slots=slots)) for name in names]


async def serve(fleet: Fleet, agent: FakeAgent, client: Client, seconds: float = 1.0) -> None:
    stream = agent.open_streams[0].stream
    stream.send_head(HEAD)
    fleet.advance(seconds / 2)
    stream.send_data(EVENT)
    fleet.advance(seconds / 2)
    stream.send_data(DONE)
    stream.end(Trailers(usage=Usage(900, 40)))
    fleet.settle()
    await read_to_end(client)
    fleet.settle()


def speeds_of(fleet: Fleet) -> Speeds:
    (speeds,) = fleet.dispatcher.scheduling.scheduler.performance
    return speeds


async def test_answers_teach_how_long_they_take() -> None:
    fleet, (agent,) = fleet_of("a")
    for _ in range(3):
        client = fleet.submit(fleet.request(input_tokens=900, output_tokens=40))
        await serve(fleet, agent, client, seconds=2.0)
    seen = speeds_of(fleet).accuracy
    assert (seen.first_token.count, seen.total.count) == (3, 3)
    fleet.assert_quiet()


async def test_answers_teach_how_many_tokens_there_will_be() -> None:
    fleet, (agent,) = fleet_of("a")
    asked: dict[str, Any] = {"prompt_bytes": 4500, "output_tokens": 256}
    first = fleet.submit(fleet.request(**asked))
    assert (first.request.input_tokens, first.request.output_tokens) == (1125, 256)
    await serve(fleet, agent, first)
    for _ in range(40):
        await serve(fleet, agent, fleet.submit(fleet.request(**asked)), seconds=0.1)
    later = fleet.submit(fleet.request(**asked))
    assert later.request.input_tokens == pytest.approx(900, rel=0.05), "what the engine counted for them"
    assert later.request.output_tokens == pytest.approx(40, rel=0.5)
    bounded = fleet.submit(fleet.request(**asked, most_tokens=10))
    assert bounded.request.output_tokens == 10
    plain = fleet.submit(fleet.request(prompt_bytes=100))
    assert plain.request.output_tokens == 0, "an embedding has no answer of tokens"


async def test_requests_that_an_engine_refuses_teach_nothing_of_how_long_answers_take() -> None:
    fleet, (agent,) = fleet_of("a")
    asked: dict[str, Any] = {"streaming": False, "tier": Tier.REALTIME, "output_tokens": 256}
    for _ in range(30):
        client = fleet.submit(fleet.request(**asked))
        fleet.advance(0.01)
        stream = agent.open_streams[0].stream
        stream.send_head(ResponseHead(400, (("content-type", "application/json"),)))
        stream.send_data(b"{}")
        stream.end(Trailers())
        fleet.settle()
        assert await read_to_end(client) == b"{}"
        fleet.settle()
    assert speeds_of(fleet).accuracy.total.count == 0
    dispatcher = fleet.dispatcher
    in_s = dispatcher.hedge_at(fleet.request(**asked), 0.0)
    assert in_s == dispatcher.settings.stall_s, "no other engine is asked as soon as they were refused"
    fleet.assert_quiet()


async def test_answers_that_were_cut_at_their_limit_do_not_make_longer_ones_shorter() -> None:
    fleet, (agent,) = fleet_of("a")
    asked: dict[str, Any] = {"prompt_bytes": 4500, "output_tokens": 40, "most_tokens": 40}
    for _ in range(40):
        await serve(fleet, agent, fleet.submit(fleet.request(**asked)), seconds=0.1)
    longer = fleet.submit(fleet.request(**(asked | {"output_tokens": 400, "most_tokens": 400})))
    assert longer.request.output_tokens == 400


async def test_what_pictures_take_is_learnt_from_their_steps_and_sizes() -> None:
    """Each of them takes 0.4 s, and 0.05 s for each step of a megapixel; none says a word of tokens."""
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0), policy="cost")
    scale = WorkScale(20.0, {"steps": 20.0, "size": 1_000_000.0, "n": 1.0})
    agent = fleet.connect("a", deployment(routes=("workflows",), work=scale))

    def asked(**inputs: float) -> Request:
        body = RequestBody(orjson.dumps({"inputs": inputs}))
        return fleet.request(route="workflows", streaming=False, body=body)

    def seconds(steps: float, size: float, n: float) -> float:
        return 0.4 + 0.05 * steps * size / 1_000_000 * n

    draw = Random(7)
    for _ in range(120):
        steps, n = draw.choice((4.0, 20.0, 50.0)), draw.choice((1.0, 4.0))
        size = draw.choice((262_144.0, 1_048_576.0))
        client = fleet.submit(asked(steps=steps, size=size, n=n))
        stream = agent.open_streams[0].stream
        fleet.advance(seconds(steps, size, n))
        stream.send_head(ResponseHead(200, (("content-type", "image/png"),)))
        stream.send_data(b"PNG")
        stream.end(Trailers())
        fleet.settle()
        await read_to_end(client)
        fleet.settle()
    assert speeds_of(fleet).accuracy.total.count == 120
    for steps, size, n in ((4, 262_144, 1), (30, 1_048_576, 1), (50, 1_048_576, 4)):
        request = asked(steps=steps, size=size, n=n)
        fleet.dispatcher.scheduling.estimate(request)
        predicted_s = speeds_of(fleet).fixed_s + speeds_of(fleet).read_s(request.work_tokens)
        assert predicted_s == pytest.approx(seconds(steps, size, n), rel=0.15)
    fleet.assert_quiet()


async def test_a_request_that_brings_its_workflow_is_as_much_work_as_that() -> None:
    fleet, _ = fleet_of("a")
    nodes = {"1": {"class_type": "Sampler", "inputs": {"steps": 12}}}
    body = RequestBody(orjson.dumps({"workflow": nodes}))
    request = fleet.request(route="workflows", body=body, prefix=(1, 2), input_tokens=3)
    fleet.dispatcher.scheduling.estimate(request)
    assert (request.work_tokens, request.input_tokens, request.prefix) == (1_200, 3, ())
    body = RequestBody(orjson.dumps({"inputs": {"steps": 30}}))
    unknown = fleet.request(route="workflows", body=body, prefix=(1, 2))
    fleet.dispatcher.scheduling.estimate(unknown)
    assert (unknown.work_tokens, unknown.prefix) == (0, (1, 2)), "nobody says how much work that is"


@pytest.mark.parametrize("policy", ["cost", "prefix"])
async def test_a_prompt_goes_where_its_beginning_was_read(policy: str) -> None:
    fleet, agents = fleet_of("a", "b", "c", policy=policy)
    first = fleet.submit(fleet.request(input_tokens=8000, output_tokens=40, prefix=CHAIN))
    (reader,) = (agent for agent in agents if agent.streams)
    await serve(fleet, reader, first)
    for round_ in range(3):
        again = fleet.submit(fleet.request(input_tokens=8000, output_tokens=40, prefix=(*CHAIN, round_)))
        assert len(reader.open_streams) == 1
        await serve(fleet, reader, again)
    fleet.assert_quiet()


async def test_who_comes_back_has_read_nothing_any_more() -> None:
    fleet, (agent,) = fleet_of("a")
    await serve(fleet, agent, fleet.submit(fleet.request(input_tokens=8000, prefix=CHAIN)))
    (known,) = fleet.dispatcher.scheduling.scheduler.models.values()
    assert known.knowledge.prefixes.matched_blocks("a/d-m", CHAIN) == len(CHAIN)
    fleet.cut(agent)
    assert not known.knowledge.views
    fleet.connect("a", deployment(slots=8))
    assert known.knowledge.prefixes.matched_blocks("a/d-m", CHAIN) == 0
    assert set(known.knowledge.views) == {"a/d-m"}


def test_what_failed_or_was_left_teaches_nothing() -> None:
    fleet, (agent,) = fleet_of("a")
    failed = fleet.submit()
    agent.streams[0].stream.reset(ErrorCode.TOO_LARGE, "no")
    fleet.settle()
    assert failed.error is not None
    left = fleet.submit()
    agent.streams[1].stream.send_head(HEAD)
    agent.streams[1].stream.send_data(EVENT)
    fleet.settle()
    left.response.abort()
    fleet.settle()
    agent.streams[1].confirm()
    fleet.settle()
    assert speeds_of(fleet).accuracy.total.count == 0
    fleet.assert_quiet()


async def test_work_is_shared_out_by_what_is_predicted() -> None:
    fleet, agents = fleet_of("a", "b")
    for _ in range(8):
        fleet.submit(fleet.request(input_tokens=100, output_tokens=200))
    assert sorted(len(agent.streams) for agent in agents) == [4, 4]


async def test_a_prompt_waits_here_until_the_engine_has_read_the_one_before() -> None:
    fleet, (agent,) = fleet_of("a")
    clients = [fleet.submit(fleet.request(input_tokens=20_000, output_tokens=40)) for _ in range(3)]
    assert len(agent.streams) == 1, "though it has eight slots"
    agent.streams[0].stream.send_head(HEAD)
    agent.streams[0].stream.send_data(EVENT)
    fleet.settle()
    assert len(agent.streams) == 2, "the first token says that the prompt was read"
    fleet.advance(5.0)
    assert len(agent.streams) == 3, "nothing was heard, and it should have been read long since"
    for client in clients:
        client.cancel()


def test_of_many_who_wait_all_are_asked_once_there_are_slots_for_them() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0), policy="least-outstanding")
    agent = fleet.connect("a", deployment(slots=0))
    clients = [fleet.submit() for _ in range(3 * OFFERED)]
    assert not agent.streams
    agent.serve(deployment(slots=4 * OFFERED))
    fleet.settle()
    assert len(agent.streams) == 3 * OFFERED
    for client in clients:
        client.cancel()
