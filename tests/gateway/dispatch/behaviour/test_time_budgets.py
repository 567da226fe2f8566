"""How long engines, clients and whole answers may take."""

import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.stall_detection import ANSWER_S
from gateway.domain.errors import (
    DeadlineExceeded,
    StreamBroken,
)
from shared.protocol.errors import ErrorCode
from shared.protocol.followed import FOLLOWED
from shared.protocol.messages import ResponseHead
from tests.gateway.dispatch.answers import HEAD, answer, quiet, read, read_to_end
from tests.gateway.dispatch.streamed_answers import able, ask
from tests.gateway.dispatch.streamed_answers import answer as begins
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend


def test_no_head_in_time_is_told_and_stops_the_engine() -> None:
    fleet = Fleet(settings=DispatchSettings(first_byte_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    fleet.advance(10.0)
    assert not client.settled, "first the tunnel is asked whether the silence is its own"
    fleet.advance(ANSWER_S)
    assert isinstance(client.error, DeadlineExceeded)
    assert agent.streams[0].reset_code is ErrorCode.DEADLINE
    agent.streams[0].confirm()
    fleet.assert_quiet()


def test_nobody_is_late_before_what_waited_for_the_tunnel_could_arrive() -> None:
    """As when a tunnel is half-open: most of the time is over before anybody knows that it is gone."""
    fleet = Fleet(settings=DispatchSettings(first_byte_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    fleet.advance(9.95)
    suspend(fleet, agent)
    fleet.advance(3.0)
    resume(fleet, agent)
    fleet.advance(ANSWER_S * 0.9)
    assert not client.settled
    agent.streams[0].stream.send_head(HEAD)
    fleet.settle()
    assert client.response.status == 200


def test_the_deadline_counts_for_the_first_byte_of_a_stream() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 4))
    assert agent.streams[0].head.deadline_s is None
    fleet.advance(4.0)
    assert isinstance(client.error, DeadlineExceeded)


async def test_the_deadline_of_a_stream_that_has_begun_is_over() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 4))
    agent.streams[0].stream.send_head(HEAD)
    fleet.advance(5.0)
    agent.streams[0].stream.send_data(b"token")
    fleet.settle()
    assert await read(client) == b"token"


async def test_the_deadline_of_a_whole_answer_counts_to_its_end() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    client = fleet.submit(fleet.request(streaming=False, deadline_s=fleet.loop.now_s + 4))
    assert agent.streams[0].head.deadline_s == 4.0
    agent.streams[0].stream.send_head(HEAD)
    fleet.advance(4.0)
    assert isinstance(client.error, DeadlineExceeded)


async def test_silence_in_the_middle_breaks_the_response() -> None:
    fleet = Fleet(settings=DispatchSettings(idle_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    for _ in range(5):
        agent.streams[0].stream.send_data(b"t")
        fleet.advance(9.0)
        assert await read(client) == b"t"
    fleet.advance(11.0)
    with pytest.raises(StreamBroken) as broken:
        await client.response.next_chunks()
    assert broken.value.code is ErrorCode.ENGINE_TIMEOUT
    agent.streams[0].confirm()
    fleet.assert_quiet()


async def test_a_slow_reader_is_not_taken_for_a_silent_engine() -> None:
    fleet = Fleet(settings=DispatchSettings(idle_s=10))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    answer(agent.streams[0])
    fleet.advance(100.0)
    assert await read(client) == b"hello"
    assert await read(client) == b""
    fleet.assert_quiet()


async def test_an_answer_may_not_take_for_ever() -> None:
    fleet = Fleet(settings=DispatchSettings(idle_s=10, total_s=35))
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    agent.streams[0].stream.send_head(HEAD)
    for _ in range(7):
        fleet.advance(5.0)
        if not agent.streams[0].reset_code:
            agent.streams[0].stream.send_data(b"t")
            fleet.settle()
    while await client.response.next_chunks():
        with pytest.raises(StreamBroken):
            await client.response.next_chunks()
        break
    assert agent.streams[0].reset_code is ErrorCode.DEADLINE


async def test_an_answer_that_another_engine_is_asked_to_go_on_with_may_not_take_for_ever() -> None:
    """Its time is over before that one has begun: nobody waits for it any longer, nor looks again at once."""
    fleet = Fleet(settings=DispatchSettings(idle_s=100, stall_s=100, total_s=35))
    one, two = fleet.connect("a", able()), fleet.connect("b", able())
    client = ask(fleet)
    begins(one.streams[0], 700)
    fleet.advance(30.0)
    fleet.cut(one)
    fleet.advance(4.9)
    assert not two.streams[0].reset_code
    fleet.advance(0.2)
    assert two.streams[0].reset_code is ErrorCode.DEADLINE
    with pytest.raises(StreamBroken) as broken:
        await read_to_end(client)
    assert broken.value.code is ErrorCode.DEADLINE
    quiet(fleet)


async def test_an_answer_that_is_followed_is_there_before_it_is_whole() -> None:
    """Any other that is not streamed waits for its end, for another engine to answer if this one fails."""
    for content_type, there in ((FOLLOWED, True), ("application/octet-stream", False)):
        fleet = Fleet()
        agent = fleet.connect("a", deployment())
        client = fleet.submit(fleet.request(streaming=False))
        agent.streams[0].stream.send_head(ResponseHead(200, (("content-type", content_type),)))
        agent.streams[0].stream.send_data(b'{"progress": 0.5}\n')
        fleet.settle()
        assert client.settled is there
