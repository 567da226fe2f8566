"""Engines that have enough to do: requests wait for them as for a slot, and are told when that is in vain."""

import pytest

from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.domain.errors import DeadlineExceeded, EngineBusy, QueueFull
from gateway.domain.request import RequestBody
from gateway.scheduling.health.failover import MOST_REFUSALS, retry_after_s
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Headers, Refusal, ResponseHead, Trailers
from tests.gateway.dispatch.answers import answer, finish, fleet_of, quiet, read_to_end
from tests.gateway.fleet.fleet import EngineStream, Fleet, deployment

REFUSALS = [
    ResponseHead(429, (), refusal=Refusal.BUSY),
    ResponseHead(503, (), refusal=Refusal.BUSY),
    ResponseHead(429, ()),
    ResponseHead(503, ()),
]


def refuse(fleet: Fleet, stream: EngineStream, head: ResponseHead) -> None:
    """The engine says no and lets go."""
    stream.stream.send_head(head)
    stream.stream.send_data(b"busy")
    stream.stream.end(Trailers())
    fleet.settle()
    if not stream.closed:
        stream.confirm()
        fleet.settle()


@pytest.mark.parametrize("head", REFUSALS)
async def test_a_request_is_held_for_a_lone_engine_that_has_enough_to_do(head: ResponseHead) -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit(fleet.request(body=RequestBody(b"prompt")))
    for tries in range(5):
        refuse(fleet, one.streams[-1], head)
        assert not client.settled
        fleet.advance(4.0)
        assert len(one.streams) == tries + 2
    assert one.streams[-1].body == b"prompt"
    await finish(fleet, one, client)
    assert client.response.status == 200
    quiet(fleet)


def test_it_keeps_its_place_in_the_queue() -> None:
    fleet, (one,) = fleet_of("a")
    first, second = fleet.submit(), fleet.submit()
    refuse(fleet, one.streams[0], REFUSALS[0])
    fleet.advance(1.0)
    assert [stream.head.request_id for stream in one.streams] == [first.request.id] * 2
    assert not second.settled


def test_an_engine_is_left_alone_for_as_long_as_it_asks() -> None:
    fleet, (one,) = fleet_of("a", slots=4)
    client = fleet.submit()
    refuse(fleet, one.streams[0], ResponseHead(429, (("retry-after", "7"),), refusal=Refusal.BUSY))
    later = fleet.submit()
    fleet.advance(6.5)
    assert len(one.streams) == 1, "nor is it given anybody else's"
    fleet.advance(0.6)
    assert len(one.streams) == 3
    for each in (client, later):
        each.cancel()
    quiet(fleet)


def test_held_requests_wait_no_longer_than_all_may_and_are_told_when_to_come_back() -> None:
    fleet = Fleet(queue=QueueSettings(max_wait_s=20.0), settings=DispatchSettings(slow_start_s=0))
    one = fleet.connect("a", deployment())
    client = fleet.submit()
    while not client.settled:
        for stream in one.open_streams:
            refuse(fleet, stream, ResponseHead(429, ()))
        fleet.advance(0.5)
    assert fleet.loop.now_s - client.request.arrived_s == 20.0
    error = client.error
    assert isinstance(error, EngineBusy)
    assert (error.status, error.type, error.code) == (429, "overloaded_error", "engine_busy")
    assert error.retry_after_s is not None
    assert 0.0 < error.retry_after_s <= 120.0
    quiet(fleet)


async def test_a_refusal_that_cannot_be_held_is_passed_on_as_it_is() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    head = ResponseHead(429, (("retry-after", "61"), ("x-why", "full")), refusal=Refusal.BUSY)
    refuse(fleet, one.streams[0], head)
    assert (client.response.status, client.response.headers) == (429, head.headers)
    assert await read_to_end(client) == b"busy"
    quiet(fleet)


async def test_a_refusal_that_says_nothing_of_when_is_passed_on_with_the_time_that_is_expected() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(body=RequestBody(b"half", rest_begun=True)))
    refuse(fleet, one.streams[0], ResponseHead(503, (("x-why", "full"),)))
    assert client.response.status == 503
    assert client.response.headers[0] == ("x-why", "full")
    name, text = client.response.headers[1]
    assert name == "retry-after"
    assert 1 <= int(text) <= 120
    assert not two.streams, "what was begun to be read cannot be sent again"
    client.response.abort()
    quiet(fleet)


def test_a_deadline_ends_the_hold() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 3.0))
    refuse(fleet, one.streams[0], ResponseHead(429, (("retry-after", "2"),), refusal=Refusal.BUSY))
    fleet.advance(2.1)
    refuse(fleet, one.streams[1], ResponseHead(503, (), refusal=Refusal.BUSY))
    one.takes_bodies = False
    fleet.advance(0.95)
    assert isinstance(client.error, DeadlineExceeded)
    quiet(fleet)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_of_the_request_itself_is_an_answer(status: int) -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit()
    refuse(fleet, one.streams[0], ResponseHead(status, (), refusal=Refusal.REQUEST))
    assert (client.response.status, client.response.headers) == (status, ())
    assert await read_to_end(client) == b"busy"
    assert not two.streams
    quiet(fleet)


def test_what_may_have_had_an_effect_is_not_sent_again() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit(fleet.request(route="any"))
    refuse(fleet, one.streams[0], ResponseHead(503, (), refusal=Refusal.BUSY))
    assert client.response.status == 503
    assert not two.streams
    client.response.abort()
    quiet(fleet)


async def test_another_engine_is_asked_at_once_and_the_first_again_when_its_rest_is_over() -> None:
    fleet, (one, two) = fleet_of("a", "b")
    client = fleet.submit()
    refuse(fleet, one.streams[0], ResponseHead(429, (("retry-after", "500"),)))
    assert len(two.streams) == 1, "one engine's rest is no other's"
    refuse(fleet, two.streams[0], REFUSALS[0])
    fleet.advance(1.0)
    await finish(fleet, two, client)
    quiet(fleet)


def test_an_agent_that_has_no_memory_is_waited_for_too() -> None:
    fleet, (one,) = fleet_of("a")
    client = fleet.submit()
    one.streams[0].stream.reset(ErrorCode.OVERLOADED, "the agent is out of memory")
    fleet.advance(1.0)
    assert len(one.streams) == 2
    client.cancel()
    quiet(fleet)


def test_refusals_cost_no_retries_and_open_no_circuit() -> None:
    fleet, (one,) = fleet_of("a", retry_share=0.0)
    while fleet.dispatcher._retries.take("tenant", fleet.loop.now_s):
        pass
    client = fleet.submit()
    for _ in range(8):
        refuse(fleet, one.streams[-1], REFUSALS[1])
        fleet.advance(5.1)
    assert len(one.streams) == 9
    (session,) = fleet.registry.sessions
    assert all(each.healthy for each in session.deployments.values())
    client.cancel()
    quiet(fleet)


def test_refusals_say_nothing_of_how_fast_a_queue_drains() -> None:
    """Or else more would be let in than can be served in time, by an engine that refuses quickly."""
    fleet = Fleet(queue=QueueSettings(max_wait_s=30.0), settings=DispatchSettings(slow_start_s=0))
    one = fleet.connect("a", deployment())
    for _ in range(3):  # an answer takes 10 s
        client = fleet.submit()
        fleet.advance(10.0)
        answer(one.open_streams[0])
        fleet.settle()
        client.response.abort()
    running, waiting = fleet.submit(), fleet.submit()
    fleet.advance(0.5)
    one.serve(deployment(slots=2))
    fleet.settle()
    for _ in range(20):
        if len(one.open_streams) > 1:
            refuse(fleet, one.open_streams[1], REFUSALS[0])
        fleet.advance(0.5)
    one.serve(deployment(slots=1))
    fleet.advance(0.5)
    let_in = 0
    while True:
        client = fleet.submit()
        if client.settled:
            break
        let_in += 1
        assert let_in < 10
    assert isinstance(client.error, QueueFull)
    assert not running.settled
    assert not waiting.settled


def test_one_request_is_not_given_to_engines_without_end() -> None:
    fleet = Fleet(
        queue=QueueSettings(max_wait_s=1e6), settings=DispatchSettings(slow_start_s=0, rest_max_s=0.1)
    )
    one = fleet.connect("a", deployment())
    client = fleet.submit()
    while not client.settled:
        refuse(fleet, one.streams[-1], REFUSALS[0])
        fleet.advance(0.2)
    assert len(one.streams) == MOST_REFUSALS + 1
    client.cancel()


# --- What an engine says of when ---

DATE = ("date", "Sun, 06 Nov 1994 08:49:37 GMT")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ((("retry-after", "7"),), 7.0),
        ((("retry-after", "1.5"),), 1.5),
        ((("retry-after-ms", "250"), ("retry-after", "1")), 0.25),
        ((("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"), DATE), 30.0),
        ((("retry-after", "Sun, 06 Nov 1994 08:40:07 GMT"), DATE), 0.0),
        ((("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"),), None),
        ((("retry-after", "Sun, 99 Nov 1994 08:50:07 GMT"), DATE), None),
        ((("retry-after", "Sun, 06 Nov 1994 08:50:07 -0000"), DATE), None),
        ((("retry-after", "soon"),), None),
        ((("retry-after", "-1"),), None),
        ((("retry-after", "inf"),), None),
        ((("retry-after", "nan"),), None),
        ((("retry-after-ms", "x"), ("retry-after", "3")), 3.0),
        ((), None),
    ],
)
def test_when_an_engine_wants_to_be_asked_again(headers: Headers, seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds
