"""What is told of how long a request will run comes from what was observed, or nothing is."""

import pytest

from gateway.dispatch.outlook import DispatchOutlook
from gateway.domain.jobs import JobEstimate
from gateway.domain.quotas import FREE, Price
from gateway.domain.residency import read_where
from shared.protocol.messages import ResponseHead, Trailers, Usage
from tests.gateway.dispatch.answers import read_to_end
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment

HEAD = ResponseHead(200, (("content-type", "text/event-stream"),))


async def serve(fleet: Fleet, agent: FakeAgent, seconds: float) -> None:
    client = fleet.submit(fleet.request(input_tokens=900, output_tokens=40))
    stream = agent.open_streams[0].stream
    stream.send_head(HEAD)
    fleet.advance(seconds / 2)
    stream.send_data(b'data: {"choices":[]}\n\n')
    fleet.advance(seconds / 2)
    stream.send_data(b"data: [DONE]\n\n")
    stream.end(Trailers(usage=Usage(900, 40)))
    fleet.settle()
    await read_to_end(client)
    fleet.settle()


def outlook_of(fleet: Fleet, price: Price = FREE, **names: tuple[str, ...]) -> DispatchOutlook:
    dispatcher = fleet.dispatcher
    return DispatchOutlook(
        dispatcher.index, dispatcher.scheduling, lambda model: price, lambda name: names.get(name, (name,))
    )


async def test_nothing_is_said_before_anything_was_seen() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(slots=4))
    outlook = outlook_of(fleet, Price(1.0, 1.0))
    assert outlook.estimate(fleet.request(input_tokens=900, output_tokens=40)) == JobEstimate()
    assert outlook.estimate(fleet.request(model="never")) == JobEstimate()
    assert (outlook.slots("m"), outlook.slots("never")) == (4, 0)


async def test_what_answers_took_says_what_the_next_will_take() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=1))
    for _ in range(30):
        await serve(fleet, agent, 8.0)
    outlook = outlook_of(fleet)
    asked = fleet.request(input_tokens=900, output_tokens=40)
    found = outlook.estimate(asked)
    assert found.seconds == pytest.approx(8.0, rel=0.3)
    assert found.cost is None, "no price was set"
    assert (asked.input_tokens, asked.output_tokens) == (900, 40)
    longer = outlook.estimate(fleet.request(input_tokens=900, output_tokens=400))
    assert (longer.seconds or 0.0) > 20


async def test_a_price_makes_it_a_cost() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    await serve(fleet, agent, 4.0)
    found = outlook_of(fleet, Price(1000.0, 2000.0, 0.5)).estimate(
        fleet.request(input_tokens=900, output_tokens=40)
    )
    assert found.seconds is not None
    assert found.cost == pytest.approx(0.9 + 0.08 + 0.5 * found.seconds / 2)


async def test_an_alias_is_its_targets() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    await serve(fleet, agent, 4.0)
    outlook = outlook_of(fleet, chat=("gone", "m"))
    direct = outlook.estimate(fleet.request(input_tokens=900, output_tokens=40))
    assert direct.seconds is not None
    asked = fleet.request(model="chat", input_tokens=900, output_tokens=40)
    assert (outlook.estimate(asked), asked.model) == (direct, "chat")
    assert outlook.slots("chat") == 2


async def test_where_it_may_not_run_counts_for_nothing() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    await serve(fleet, agent, 4.0)
    elsewhere = fleet.request(input_tokens=900, where=read_where("region=eu"))
    assert outlook_of(fleet).estimate(elsewhere) == JobEstimate()
