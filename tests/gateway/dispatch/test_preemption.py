"""Requests of lower tiers give way to realtime ones, and go on where they were."""

from typing import Any

import orjson
import pytest

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.preemption import VAIN, VAIN_S
from gateway.domain.errors import QueueFull
from gateway.domain.request import Principal, RequestBody, Tier
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import UsageMode
from tests.gateway.dispatch.answers import answer as answer_whole
from tests.gateway.dispatch.answers import quiet, read_to_end
from tests.gateway.dispatch.recovery.engines import Style
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.dispatch.streamed_answers import (
    BODY,
    UNDISTURBED,
    able,
    answer,
    whole,
)
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend

LONG = 5000
"""Output tokens that are expected of those who run: nobody is taken to be done soon."""


def fleet_of(*slots: int, **settings: Any) -> tuple[Fleet, list[FakeAgent]]:
    fleet = Fleet(settings=DispatchSettings(**({"slow_start_s": 0, "reserved_share": 0.0} | settings)))
    fleet.metrics.know_model("m")
    return fleet, [fleet.connect(name, able(slots=count)) for name, count in zip("abcd", slots, strict=False)]


def ask(fleet: Fleet, tier: Tier = Tier.BATCH, **more: Any) -> Client:
    more.setdefault("body", RequestBody(BODY))
    more.setdefault("output_tokens", LONG)
    return fleet.submit(fleet.request(tier=tier, usage=UsageMode.KEEP, **more))


def preempted(fleet: Fleet, tier: str = "batch") -> float:
    found = fleet.metrics.registry.get_sample_value(
        "trunkline_preemptions_total", {"model": "m", "tier": tier}
    )
    return found or 0.0


def interrupt(fleet: Fleet, agent: FakeAgent) -> Client:
    """A realtime request comes when the agent's first stream has been answered so far."""
    answer(agent.streams[0], 700)
    fleet.settle()
    return ask(fleet, Tier.REALTIME)


async def serve(fleet: Fleet, agent: FakeAgent, client: Client) -> None:
    """The request that runs at ``agent`` last is answered."""
    answer(agent.streams[-1])
    await whole(fleet, client)


# --- Streams ---


async def test_a_batch_stream_gives_way_and_goes_on_where_it_was() -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet)
    urgent = interrupt(fleet, one)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    assert preempted(fleet) == 1
    one.streams[0].confirm()
    fleet.settle()
    await serve(fleet, one, urgent)
    assert orjson.loads(one.streams[2].body)["continue_final_message"] is True
    answer(one.streams[2], style=Style(id="other", created=9))
    await whole(fleet, batch)
    assert batch.response.trailers is not None
    assert batch.response.trailers.usage is not None
    for tier, waits in (("batch", 2), ("realtime", 1)):
        labels = {"model": "m", "tier": tier}
        assert fleet.metrics.registry.get_sample_value("trunkline_queue_seconds_count", labels) == waits
    quiet(fleet)


@pytest.mark.parametrize(
    "cuts", [(0, 0), (0, 300), (150, 400), (450, 120), (700, 380), (650, 800), (1000, 1)]
)
async def test_wherever_an_answer_gives_way_the_client_gets_the_whole_of_it(cuts: tuple[int, int]) -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet)
    for cut in cuts:
        mine = one.streams[-1]
        answer(mine, cut)
        fleet.advance(4.0)
        urgent = ask(fleet, Tier.REALTIME)
        assert mine.reset_code is ErrorCode.CANCELLED
        mine.confirm()
        fleet.advance(9.0)
        await serve(fleet, one, urgent)
    answer(one.streams[-1])
    await whole(fleet, batch)
    assert batch.request.preempted == 2
    quiet(fleet)


async def test_a_stream_that_gave_way_may_go_on_at_another_deployment() -> None:
    fleet, (one, two) = fleet_of(1, 1)
    batch = ask(fleet)
    busy = ask(fleet, Tier.STANDARD)
    urgent = interrupt(fleet, one)
    one.streams[0].confirm()
    fleet.settle()
    await serve(fleet, two, busy)
    answer(two.streams[1])
    await whole(fleet, batch)
    await serve(fleet, one, urgent)
    quiet(fleet)


async def test_who_waits_after_giving_way_is_kept_alive_and_never_sent_away() -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet)
    urgent = interrupt(fleet, one)
    one.streams[0].confirm()
    fleet.settle()
    answer(one.streams[1], 100)
    got = b"".join(await batch.response.next_chunks())
    assert UNDISTURBED.startswith(got)
    for _ in range(6):
        fleet.advance(15.0)
        one.streams[1].stream.send_data(b": alive\n\n")
        (comment,) = await batch.response.next_chunks()
        assert comment == b": waiting\n\n"
        got += comment
    urgent.response.abort()
    fleet.settle()
    one.streams[1].confirm()
    fleet.settle()
    answer(one.streams[2])
    fleet.settle()
    batch.response.consumed(len(got))
    assert seen_in_chat(got + await read_to_end(batch)) == seen_in_chat(UNDISTURBED)
    quiet(fleet)


@pytest.mark.parametrize("more", [{"n": 2}, {"logprobs": True}])
async def test_what_cannot_be_continued_soundly_keeps_its_slot(more: dict[str, Any]) -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet, body=RequestBody(orjson.dumps(orjson.loads(BODY) | more)))
    urgent = interrupt(fleet, one)
    fleet.advance(5.0)
    assert one.streams[0].reset_code is None
    assert preempted(fleet) == 0
    batch.response.abort()
    urgent.cancel()
    quiet(fleet)


async def test_where_one_cannot_give_way_another_does() -> None:
    fleet, (one,) = fleet_of(3)
    clients = [
        ask(fleet, body=RequestBody(orjson.dumps(orjson.loads(BODY) | more)))
        for more in ({}, {"n": 2}, {"n": 3})
    ]
    for stream in one.streams:
        answer(stream, 700)
    fleet.settle()
    ask(fleet, Tier.REALTIME)
    assert [stream.reset_code for stream in one.streams] == [ErrorCode.CANCELLED, None, None]
    for client in clients:
        client.response.abort()


async def test_an_answer_whose_engine_cannot_go_on_is_left_alone() -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0))
    one = fleet.connect("a", deployment())
    ask(fleet)
    interrupt(fleet, one)
    assert one.streams[0].reset_code is None


async def test_an_answer_that_lacks_but_its_end_is_left_alone() -> None:
    fleet, (one,) = fleet_of(1)
    ask(fleet)
    answer(one.streams[0], len(UNDISTURBED) - len(b"data: [DONE]\n\n"))
    fleet.settle()
    ask(fleet, Tier.REALTIME)
    assert one.streams[0].reset_code is None


# --- Requests without an answer ---


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_request_without_an_answer_starts_over(streaming: bool) -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet, streaming=streaming)
    urgent = ask(fleet, Tier.REALTIME)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED
    one.streams[0].confirm()
    fleet.settle()
    await serve(fleet, one, urgent)
    assert one.streams[2].body == BODY
    answer_whole(one.streams[2])
    fleet.settle()
    assert await read_to_end(batch) == b"hello"
    quiet(fleet)


@pytest.mark.parametrize(
    "body", [RequestBody(b"half", rest_begun=True), RequestBody(b"whole")], ids=["half read", "other route"]
)
def test_what_may_not_be_repeated_keeps_its_slot(body: RequestBody) -> None:
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0))
    one = fleet.connect("a", deployment(routes=("chat", "any")))
    ask(fleet, route="chat" if body.rest_begun else "any", body=body, streaming=False)
    ask(fleet, Tier.REALTIME)
    fleet.advance(5.0)
    assert one.streams[0].reset_code is None


def test_a_request_whose_tunnel_is_away_is_not_asked() -> None:
    fleet, (one, two) = fleet_of(1, 1)
    ask(fleet)
    ask(fleet, Tier.STANDARD)
    suspend(fleet, one)
    ask(fleet, Tier.REALTIME)
    fleet.advance(1.0)
    assert preempted(fleet) == 0
    assert two.streams[0].reset_code is None
    resume(fleet, one)


# --- How often, for whom, at whose cost ---


async def test_one_request_gives_way_so_often_and_no_more() -> None:
    fleet, (one,) = fleet_of(1, max_preemptions=2)
    batch = ask(fleet)
    for _ in range(2):
        urgent = ask(fleet, Tier.REALTIME)
        one.open_streams[0].confirm()
        fleet.advance(9.0)
        await serve(fleet, one, urgent)
    assert batch.request.preempted == preempted(fleet) == 2
    ask(fleet, Tier.REALTIME)
    fleet.advance(5.0)
    assert one.open_streams[0].reset_code is None
    assert batch.request.preempted == 2


def test_one_gives_way_for_each_who_waits_and_no_more() -> None:
    fleet, (one,) = fleet_of(4)
    for _ in range(4):
        ask(fleet)
    for number in range(3):
        ask(fleet, Tier.REALTIME)
        fleet.advance(2.0)
        assert preempted(fleet) == number + 1, "those are being let go"
    assert [stream.reset_code is None for stream in one.streams].count(True) == 1


def test_nobody_gives_way_while_a_slot_that_fits_is_free() -> None:
    fleet, (one,) = fleet_of(2)
    ask(fleet)
    ask(fleet, Tier.REALTIME)
    assert len(one.streams) == 2
    assert preempted(fleet) == 0


def test_standard_gives_way_if_it_is_told_to() -> None:
    for told in (False, True):
        fleet, _ = fleet_of(1, preempt_standard=told)
        ask(fleet, Tier.STANDARD)
        ask(fleet, Tier.REALTIME)
        assert preempted(fleet, "standard") == told


def test_the_reserve_is_given_back_by_standard_too_and_by_no_more_than_it_is() -> None:
    fleet, (one,) = fleet_of(10, reserved_share=0.2)
    for _ in range(10):
        ask(fleet, Tier.STANDARD)
    assert len(one.open_streams) == 10, "others borrow it"
    for _ in range(4):
        ask(fleet, Tier.REALTIME)
    fleet.advance(3.0)
    assert preempted(fleet, "standard") == 2
    for stream in one.streams:
        if stream.reset_code is not None:
            stream.confirm()
    fleet.advance(3.0)
    assert preempted(fleet, "standard") == 2, "realtime has what is its own"
    assert len(one.open_streams) == 10


def test_realtime_is_let_in_where_it_would_wait_for_long_if_nobody_gave_way() -> None:
    for share, tier in ((0.0, Tier.BATCH), (0.5, Tier.STANDARD)):
        fleet, (one,) = fleet_of(2, reserved_share=share)
        for _ in range(2):
            ask(fleet, tier)
        (record,) = fleet.registry.index.models.values()
        record.hold_s = 600.0
        urgent = ask(fleet, Tier.REALTIME)
        assert not urgent.settled
        assert preempted(fleet, tier) == 1
        refused = ask(fleet, Tier.STANDARD)
        assert isinstance(refused.error, QueueFull)
        assert len(one.streams) == 2


def test_realtime_gives_way_to_nobody() -> None:
    fleet, _ = fleet_of(1, preempt_standard=True, reserved_share=1.0)
    ask(fleet, Tier.REALTIME)
    ask(fleet, Tier.REALTIME)
    fleet.advance(5.0)
    assert preempted(fleet, "realtime") == 0


def test_a_wait_that_becomes_long_is_noticed_though_nothing_happens() -> None:
    fleet, (one,) = fleet_of(1)
    ask(fleet, output_tokens=0)
    ask(fleet, Tier.REALTIME)
    assert one.streams[0].reset_code is None, "it is expected to be done at once"
    fleet.advance(2.0)
    assert one.streams[0].reset_code is ErrorCode.CANCELLED


async def test_a_client_that_leaves_while_it_waits_after_giving_way_leaves_nothing() -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet)
    urgent = interrupt(fleet, one)
    batch.response.abort()
    urgent.cancel()
    quiet(fleet)
    assert not fleet.dispatcher._preemption._running
    assert not fleet.dispatcher._preemption._freeing
    assert not fleet.dispatcher._preemption._realtime
    assert len(one.streams) == 1


def test_a_tenant_whose_requests_leave_when_others_gave_way_has_nobody_give_way_any_more() -> None:
    fleet, (one,) = fleet_of(12)
    for _ in range(12):
        ask(fleet)
    idle_hands, others = Principal("k2", "x", "x"), Principal("k3", "y", "y")

    def engines_let_go() -> None:
        for stream in one.open_streams:
            if stream.reset_code is not None:
                stream.confirm()
        fleet.advance(1.0)

    for turn in range(8):
        urgent = ask(fleet, Tier.REALTIME, principal=idle_hands)
        fleet.advance(1.0)
        urgent.cancel()
        engines_let_go()
        assert preempted(fleet) == min(turn + 1, VAIN)
    ask(fleet, Tier.REALTIME, principal=others)
    fleet.advance(1.0)
    engines_let_go()
    assert preempted(fleet) == VAIN + 1, "others are not to blame"
    fleet.advance(VAIN_S)
    ask(fleet, Tier.REALTIME, principal=idle_hands)
    fleet.advance(1.0)
    assert preempted(fleet) == VAIN + 2, "it may try again"
    assert len(fleet.dispatcher._preemption._gave_way_for) <= 2


async def test_what_a_request_really_cost_is_settled() -> None:
    fleet, (one,) = fleet_of(1)
    client = ask(fleet)
    assert client.exchange is not None
    ticket = client.exchange.ticket
    assert ticket.charged > LONG
    await serve(fleet, one, client)
    assert ticket.charged == pytest.approx(8 + 0.02 * 15 + 4)
    aborted = ask(fleet)
    assert aborted.exchange is not None
    ticket = aborted.exchange.ticket
    answer(one.streams[1], 700)
    fleet.settle()
    aborted.response.abort()
    assert ticket.charged == pytest.approx(8 + 1), "a piece is a token"
    quiet(fleet)
