"""Streams of an agent that is to end go on at others, as far as these have room."""

from dataclasses import replace

import orjson

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.moving import LACKING_S, move_streams
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers, Usage
from tests.gateway.dispatch.answers import quiet
from tests.gateway.dispatch.recovery import engines
from tests.gateway.dispatch.recovery.engines import Style
from tests.gateway.dispatch.streamed_answers import MODEL, able, answer, ask, whole
from tests.gateway.fleet.fleet import EngineStream, FakeAgent, Fleet


def fleet_of(*slots: int) -> tuple[Fleet, list[FakeAgent]]:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, reserved_share=0.0))
    return fleet, [fleet.connect(name, able(slots=count)) for name, count in zip("abc", slots, strict=False)]


def hold(fleet: Fleet, agent: FakeAgent) -> None:
    session = fleet.session(agent)
    fleet.registry.allow(session, replace(session.principal, held=True))


class Borrowed(dict[str, int]):
    """What was to be borrowed of each model."""

    def borrow(self, model: str, slots: int, for_s: float) -> None:
        assert for_s == LACKING_S
        self[model] = slots


def move(fleet: Fleet, agent: FakeAgent, borrowed: Borrowed | None = None) -> int:
    lender = Borrowed() if borrowed is None else borrowed
    moved = move_streams(fleet.registry, fleet.registry.index, agent.name, fleet.loop.time(), lender)
    fleet.settle()
    return moved


def finish(stream: EngineStream) -> None:
    """The rest of an answer of which 700 bytes were sent."""
    data = engines.chat(MODEL, orjson.loads(stream.body), Style())
    stream.stream.send_data(data[700:])
    stream.stream.end(Trailers(usage=Usage(15, 7)))


async def test_a_stream_goes_on_at_another_agent_token_for_token() -> None:
    fleet, (one,) = fleet_of(1)
    client = ask(fleet)
    answer(one.streams[0], 700)
    fleet.settle()
    two = fleet.connect("b", able(slots=1))
    assert move(fleet, one) == 0, "it is to take work still"
    hold(fleet, one)
    borrowed = Borrowed({"m": 1})
    assert move(fleet, one, borrowed) == 1
    assert borrowed == {"m": 0}, "none lacks a slot any more"
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    one.streams[0].confirm()
    fleet.settle()
    answer(two.streams[0])
    await whole(fleet, client)
    quiet(fleet)


async def test_only_so_many_move_as_have_a_slot_elsewhere() -> None:
    fleet, (one,) = fleet_of(3)
    clients = [ask(fleet) for _ in range(3)]
    for stream in one.streams:
        answer(stream, 700)
    fleet.settle()
    two = fleet.connect("b", able(slots=2))
    hold(fleet, one)
    borrowed = Borrowed()
    assert move(fleet, one, borrowed) == 2
    assert borrowed == {"m": 1}, "another process may hold a slot that lies idle"
    assert move(fleet, one) == 0
    assert len(two.streams) == 2
    staying = [each for each in one.streams if each.reset_code is None]
    assert len(staying) == 1
    for stream in one.streams:
        finish(stream) if stream in staying else stream.confirm()
    fleet.settle()
    for stream in two.streams:
        answer(stream)
    for client in clients:
        await whole(fleet, client)
    quiet(fleet)


async def test_a_stream_that_no_other_engine_can_go_on_with_stays() -> None:
    fleet, (one,) = fleet_of(1)
    client = ask(fleet)
    answer(one.streams[0], 700)
    fleet.settle()
    fleet.connect("b", replace(able(slots=1), continues={}))
    hold(fleet, one)
    borrowed = Borrowed()
    assert move(fleet, one, borrowed) == 0
    assert borrowed == {}
    finish(one.streams[0])
    await whole(fleet, client)
    quiet(fleet)


async def test_an_answer_in_one_piece_stays() -> None:
    fleet, agents = fleet_of(1, 1)
    client = fleet.submit(fleet.request(streaming=False))
    agent = next(each for each in agents if each.streams)
    hold(fleet, agent)
    assert move(fleet, agent) == 0
    client.cancel()
