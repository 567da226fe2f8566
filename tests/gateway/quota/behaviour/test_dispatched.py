"""What the dispatcher tells limits, and they tell it: GPU-seconds, tokens seen, bounds, shares, weights."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gateway.dispatch.dispatcher import QueueSettings
from gateway.domain.errors import QueueFull
from gateway.domain.request import Principal, Request
from shared.protocol.messages import ResponseHead, Trailers, Usage
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment

HEAD = ResponseHead(200, (("content-type", "text/event-stream"),))


async def answer(
    fleet: Fleet, agent: FakeAgent, client: Client, pieces: int = 1, *, head: bool = True, tokens: int = 0
) -> None:
    stream = agent.open_streams[0].stream
    if head:
        stream.send_head(HEAD)
    for _ in range(pieces):
        stream.send_data(b"data: {}\n\n")
    stream.send_data(b"data: [DONE]\n\n")
    stream.end(Trailers(usage=Usage(100, tokens or pieces)))
    fleet.settle()
    await read_to_end(client)
    fleet.settle()


async def test_requests_use_the_gpu_together_and_each_is_told_its_part() -> None:
    fleet = Fleet()
    told: list[tuple[str, str, float]] = []
    fleet.dispatcher._ran = lambda request, key, gpu_s: told.append((request.id, key, gpu_s))
    agent = fleet.connect("a", deployment(slots=2))
    first = fleet.submit()
    fleet.advance(1.0)
    second = fleet.submit()
    fleet.advance(2.0)
    await answer(fleet, agent, first)
    fleet.advance(3.0)
    await answer(fleet, agent, second)
    assert [(name, key) for name, key, _ in told] == [("r1", "a/d-m"), ("r2", "a/d-m")]
    assert [gpu_s for _, _, gpu_s in told] == pytest.approx([2.0, 4.0])
    assert first.request.gpu_s == pytest.approx(2.0)
    [served] = fleet.registry.index.models["m"].serving.values()
    assert served.gpu_clock.running == 0


async def test_what_was_seen_of_a_stream_is_counted_once_whatever_becomes_of_it() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    client = fleet.submit()
    (engine,) = agent.open_streams
    engine.stream.send_head(HEAD)
    for _ in range(3):
        engine.stream.send_data(b"data: {}\n\n")
        fleet.settle()
    engine.stream.send_data(b"data: {}\n\n" * 100)
    fleet.settle()
    client.response.abort()
    client.response.abort()
    assert client.request.seen_tokens == 4, "pieces, or one for each 256 of 1030 bytes"
    engine.confirm()
    fleet.assert_quiet()
    whole = fleet.submit()
    await answer(fleet, agent, whole, pieces=5)
    assert (client.request.seen_tokens, whole.request.seen_tokens) == (4, 1), "it came at once"


async def test_the_bounds_of_a_request_are_what_it_allows_or_what_few_answers_go_beyond() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())

    def bounds(**more: Any) -> tuple[int, int]:
        return fleet.dispatcher.bounds(fleet.request(prompt_bytes=400, input_tokens=1, **more))

    assert bounds(most_tokens=7, output_tokens=7) == (100, 7)
    assert bounds(output_tokens=256) == (100, 4096 - 100), "all there may be while nothing is known"
    assert bounds(output_tokens=256, choices=3) == (100, 3 * 3996)
    assert bounds(most_tokens=0) == (100, 0)
    for pieces in [10] * 50 + [90] * 10:
        client = fleet.submit(fleet.request(prompt_bytes=200, output_tokens=256))
        await answer(fleet, agent, client, pieces)
    request = fleet.request(prompt_bytes=400, output_tokens=256)
    input_tokens, output_tokens = fleet.dispatcher.bounds(request)
    assert input_tokens == pytest.approx(200, rel=0.05)
    assert output_tokens > 80, "one in six has 90"
    assert (request.input_tokens, request.output_tokens) == (0, 256), "nothing is changed"


async def test_without_a_history_the_context_of_the_model_is_reserved() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", replace(deployment(), context_tokens=32_768))

    def output_tokens(**more: Any) -> int:
        request = fleet.request(prompt_bytes=400, input_tokens=1, output_tokens=256, **more)
        return fleet.dispatcher.bounds(request)[1]

    assert output_tokens() == 32_768 - 100
    for _ in range(20):  # their client cut them short: they say nothing of those that nobody cuts
        await answer(fleet, agent, fleet.submit(fleet.request(output_tokens=1, most_tokens=1)), 1)
    assert output_tokens() > 32_000
    for _ in range(7):
        await answer(fleet, agent, fleet.submit(fleet.request(output_tokens=256)), 20)
    assert output_tokens() > 32_000, "too few to tell"
    await answer(fleet, agent, fleet.submit(fleet.request(output_tokens=256)), 20)
    assert output_tokens() == 20
    assert output_tokens(choices=4) == 80
    assert output_tokens(endless=True) > 32_000
    assert output_tokens(most_tokens=5) == 5


def of_tenant(fleet: Fleet, tenant: str, model: str = "m") -> Request:
    return fleet.request(model, principal=Principal("k", "key", tenant), output_tokens=1000)


async def test_a_tenant_takes_no_more_places_to_wait_in_than_its_share() -> None:
    fleet = Fleet(queue=QueueSettings(max_requests=10, max_requests_total=15, max_wait_s=600))
    fleet.connect("a", deployment(), deployment("n"))
    for model in ("m", "n"):
        fleet.submit(of_tenant(fleet, "other", model))
    fleet.dispatcher.share_out({}, {"acme": 0.2})
    waiting = [fleet.submit(of_tenant(fleet, "acme")) for _ in range(2)]
    refused = fleet.submit(of_tenant(fleet, "acme"))
    assert isinstance(refused.error, QueueFull)
    assert "as its share of the queue" in str(refused.error)
    assert fleet.submit(of_tenant(fleet, "acme", "n")).exchange is not None
    assert isinstance(fleet.submit(of_tenant(fleet, "acme", "n")).error, QueueFull), "three of fifteen in all"
    assert fleet.submit(of_tenant(fleet, "other")).exchange is not None
    waiting[0].cancel()
    fleet.settle()
    assert fleet.submit(of_tenant(fleet, "acme")).exchange is not None
    fleet.dispatcher.share_out({}, {})
    for _ in range(4):
        assert fleet.submit(of_tenant(fleet, "acme")).exchange is not None
    fleet.dispatcher.stop_accepting()
    await fleet.dispatcher.close()
    assert not fleet.dispatcher.room.shares._waiting


async def test_weights_count_for_those_who_wait_already() -> None:
    fleet = Fleet(queue=QueueSettings(max_wait_s=6000))
    agent = fleet.connect("a", deployment())
    clients = [fleet.submit(of_tenant(fleet, "first"))]
    for _ in range(30):
        clients += [fleet.submit(of_tenant(fleet, tenant)) for tenant in ("light", "heavy")]
    fleet.dispatcher.share_out({"heavy": 3.0})
    served: Counter[str] = Counter()
    for _ in range(30):
        (stream,) = (each.stream for each in agent.open_streams)
        stream.send_head(HEAD)
        fleet.settle()
        (client,) = (each for each in clients if each.settled)
        clients.remove(client)
        served[client.request.principal.tenant] += 1
        await answer(fleet, agent, client, head=False, tokens=1000)
    assert 17 <= served["heavy"] <= 24, served
