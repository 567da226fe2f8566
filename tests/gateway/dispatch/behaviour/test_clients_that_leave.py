"""Clients that leave, or gateways that stop, while an answer is to go on at another engine."""

import pytest

from gateway.domain.errors import StreamBroken
from shared.protocol.errors import ErrorCode
from tests.gateway.dispatch.answers import quiet, read_to_end
from tests.gateway.dispatch.streamed_answers import begun
from tests.gateway.fleet.tunnels import resume, suspend


def test_a_client_that_leaves_while_its_answer_waits_leaves_nothing() -> None:
    fleet, one, two, client = begun()
    fleet.submit()
    assert two.streams
    fleet.cut(one)
    assert fleet.dispatcher.room.requests == 1
    client.cancel()
    assert fleet.dispatcher.room.requests == 0
    assert fleet.dispatcher.open_exchanges == 1
    assert fleet.dispatcher.records.taken_bytes == 0


def test_a_client_that_leaves_while_another_is_asked_has_it_let_go() -> None:
    fleet, one, two, client = begun()
    fleet.cut(one)
    client.response.abort()
    fleet.settle()
    assert two.streams[0].reset_code is ErrorCode.CANCELLED
    quiet(fleet)


def test_a_client_that_leaves_while_the_tunnel_is_away_has_it_let_go_later() -> None:
    fleet, one, two, client = begun()
    busy = fleet.submit()
    suspend(fleet, one)
    fleet.advance(6.0)
    client.response.abort()
    assert fleet.dispatcher.room.requests == 0
    assert fleet.dispatcher.records.taken_bytes == 0
    resume(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    busy.cancel()
    fleet.settle()
    assert two.streams
    quiet(fleet)


async def test_a_gateway_that_stops_breaks_an_answer_that_waits() -> None:
    fleet, one, _, client = begun()
    fleet.submit()
    fleet.cut(one)
    await fleet.dispatcher.close()
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    assert broken.value.code is ErrorCode.DRAINING
    fleet.settle()
    quiet(fleet)
