"""How far a long answer came is read over many turns of the loop, and anything may happen meanwhile."""

from typing import Any

import orjson
import pytest

from gateway.dispatch.answer_state import AnswerPhase
from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.recovery import ContinuationReading
from gateway.dispatch.recovery.reading import NOT_READ
from gateway.domain.errors import StreamBroken
from gateway.domain.request import PREEMPTED, RequestBody, Tier
from shared.protocol.errors import ErrorCode, TunnelClosed
from shared.protocol.messages import UsageMode
from tests.gateway.dispatch.answers import quiet, read_to_end
from tests.gateway.dispatch.recovery import engines
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.dispatch.streamed_answers import ASKED, HEAD, able, outcomes
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet
from tests.gateway.fleet.tunnels import resume, suspend

MODEL = Model(tuple(f" word{number}" for number in range(2000)))
BODY = orjson.dumps(ASKED | {"stream_options": {"include_usage": True}})
WHOLE = engines.chat(MODEL, orjson.loads(BODY), Style())
CUT = WHOLE.index(b"word1500")


class House:
    """Clients whose long answers the first of two agents has begun."""

    def __init__(self, count: int = 1, tier: Tier = Tier.STANDARD, **settings: Any) -> None:
        self.fleet = Fleet(settings=DispatchSettings(slow_start_s=0, rest_s=0.01, **settings))
        self.fleet.metrics.know_model("m")
        self.one = self.fleet.connect("a", able(slots=count))
        self.clients = [self._ask(tier) for _ in range(count)]
        self.two: FakeAgent | None = None
        self.got = dict.fromkeys(self.clients, b"")

    def _ask(self, tier: Tier) -> Client:
        request = self.fleet.request(
            tier=tier, body=RequestBody(BODY), usage=UsageMode.KEEP, output_tokens=5000
        )
        return self.fleet.submit(request)

    async def begin(self, second: int = 1) -> None:
        for stream in self.one.streams:
            stream.stream.send_head(HEAD)
            self._send(stream.stream, WHOLE[:CUT])
        await self.read()
        if second:
            self.two = self.fleet.connect("b", able(slots=second))

    def _send(self, stream: Any, data: bytes) -> None:
        """In pieces that fit the window, which opens as the client reads."""
        for client in self.clients:
            self._take(client)
        stream.send_data(data)
        self.fleet.settle()

    def _take(self, client: Client) -> None:
        if client.settled:
            chunks = client.response._buffer.take(1 << 20)
            self.got[client] += b"".join(chunks)
            client.response.consumed(sum(map(len, chunks)))

    async def read(self) -> None:
        for _ in range(100):
            self.fleet.settle()
            for client in self.clients:
                self._take(client)

    def lose(self) -> None:
        """The first agent is gone; no callback of the loop has run since."""
        for gateway_end, agent_end in self.fleet._links:
            if agent_end is self.one.endpoint:
                gateway_end.lost(TunnelClosed("cut"))
                agent_end.lost(TunnelClosed("cut"))

    def phases(self) -> list[AnswerPhase]:
        found = [exchange._answer for exchange in self.fleet.dispatcher.exchanges.values()]
        return [answer.phase for answer in found if answer is not None]

    async def finish(self) -> None:
        assert self.two is not None
        await self.read()
        for stream in self.two.streams:
            stream.stream.send_head(HEAD)
            self._send(stream.stream, engines.chat(MODEL, orjson.loads(stream.body), Style(id="two")))
            await self.read()
            stream.stream.end(None)
            await self.read()
        for client in self.clients:
            assert seen_in_chat(self.got[client]).text == seen_in_chat(WHOLE).text
            client.response.abort()


async def test_a_long_answer_is_read_over_turns_and_goes_on() -> None:
    house = House()
    await house.begin()
    house.lose()
    assert house.phases() == [AnswerPhase.READING]
    turns = 0
    while house.phases() == [AnswerPhase.READING]:
        assert house.fleet.loop.turn()
        turns += 1
    assert turns > 3
    await house.finish()
    assert outcomes(house.fleet) == {"wanted": 1, "begun": 1, "done": 1}
    quiet(house.fleet)


async def test_many_lost_at_once_are_read_over_as_many_turns() -> None:
    house = House(16)
    await house.begin(second=16)
    house.lose()
    turns = 0
    while AnswerPhase.READING in house.phases():
        assert house.fleet.loop.turn()
        turns += 1
    assert turns > 16 * 3
    await house.finish()
    quiet(house.fleet)


async def test_a_client_that_leaves_meanwhile_is_forgotten() -> None:
    house = House()
    await house.begin()
    house.lose()
    house.fleet.loop.turn()
    house.clients[0].response.abort()
    assert not house.phases() or house.phases() == [AnswerPhase.OVER]
    await house.read()
    assert house.two is not None
    assert not house.two.streams
    quiet(house.fleet)


async def test_an_answer_whose_time_is_over_meanwhile_ends() -> None:
    house = House(total_s=30.0)
    await house.begin()
    house.lose()
    house.fleet.loop.advance(31.0)
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(house.clients[0])
    assert broken.value.code is ErrorCode.DEADLINE
    house.clients[0].response.abort()
    quiet(house.fleet)


async def test_a_gateway_that_shuts_down_meanwhile_says_so() -> None:
    house = House()
    await house.begin()
    house.lose()
    await house.fleet.dispatcher.close()
    with pytest.raises(StreamBroken, match="shutting down"):
        await read_to_end(house.clients[0])
    house.clients[0].response.abort()
    house.fleet.settle()
    assert house.fleet.dispatcher.records.taken_bytes == 0


async def test_an_answer_that_cannot_be_read_breaks_with_its_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(2)
    await house.begin(2)
    step, steps = ContinuationReading._step, list[ContinuationReading]()

    def fails_once(reading: ContinuationReading) -> int:
        steps.append(reading)
        if len(steps) > 2 and reading is steps[0]:
            raise RuntimeError("a defect")
        return step(reading)

    monkeypatch.setattr(ContinuationReading, "_step", fails_once)
    house.lose()
    began_s = house.fleet.loop.time()
    await house.read()
    broken = [client for client in house.clients if client.response._broken is not None]
    assert len(broken) == 1
    with pytest.raises(StreamBroken, match=NOT_READ):
        await read_to_end(broken[0])
    assert house.fleet.loop.time() == began_s
    assert house.two is not None
    assert len(house.two.open_streams) == 1, "the other one goes on"


@pytest.mark.parametrize("back", [True, False])
async def test_a_tunnel_that_is_gone_for_long_or_back_while_the_answer_is_read(back: bool) -> None:
    house = House()
    await house.begin()
    assert house.two is not None
    suspend(house.fleet, house.one)
    loop = house.fleet.loop
    for _ in range(100):
        if house.fleet.dispatcher.sliced_parser._tasks:
            break
        loop.advance(0.1)
    assert house.fleet.dispatcher.sliced_parser._tasks, "is being read"
    assert house.phases() == [AnswerPhase.STREAMING]
    if back:
        resume(house.fleet, house.one)
        await house.read()
        assert not house.two.streams
        (stream,) = house.one.open_streams
        stream.stream.send_data(WHOLE[CUT:])
        stream.stream.end(None)
        await house.read()
        assert house.got[house.clients[0]] == WHOLE
        house.clients[0].response.abort()
    else:
        await house.finish()
        house.fleet.cut(house.one)
    quiet(house.fleet)


async def test_a_long_answer_gives_way_once_it_has_been_read() -> None:
    house = House(tier=Tier.BATCH, reserved_share=0.0)
    await house.begin(second=0)
    (batch,) = house.clients
    urgent = house.fleet.submit(
        house.fleet.request(tier=Tier.REALTIME, body=RequestBody(BODY), usage=UsageMode.KEEP)
    )
    stream = house.one.streams[0]
    await house.read()
    assert batch.request.preempted == 1
    assert batch.request.troubles == [("a/d", PREEMPTED)]
    assert stream.reset_code is ErrorCode.CANCELLED
    stream.confirm()
    house.fleet.settle()
    assert len(house.one.streams) == 2, "the urgent one has the slot"
    for client in (urgent, batch):
        assert client.exchange is not None
        client.exchange.cancel()
    house.fleet.settle()
    quiet(house.fleet)


async def test_a_long_answer_that_cannot_give_way_keeps_its_slot() -> None:
    house = House(tier=Tier.BATCH, reserved_share=0.0)
    house.clients[0].request.body.prefix = orjson.dumps(orjson.loads(BODY) | {"logprobs": True})
    await house.begin(second=0)
    urgent = house.fleet.submit(
        house.fleet.request(tier=Tier.REALTIME, body=RequestBody(BODY), usage=UsageMode.KEEP)
    )
    await house.read()
    assert house.one.streams[0].reset_code is None
    preemption = house.fleet.dispatcher._preemption
    assert not preemption._freeing, "nobody counts on its slot"
    for client in (urgent, house.clients[0]):
        assert client.exchange is not None
        client.exchange.cancel()
    house.fleet.settle()
    quiet(house.fleet)
