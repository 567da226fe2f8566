"""The parent's requests do not wait here: they go to an agent now, or back to the parent."""

import asyncio
from dataclasses import replace

import pytest

from gateway.domain.request import RequestBody
from gateway.domain.residency import read_where
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import RequestHead, Usage
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.uplink.child import BODY, OWN, PARENT, Child, UpStream


async def test_an_answer_goes_up_with_its_usage_and_who_ran_it_and_is_booked() -> None:
    child = Child(1)
    stream = child.ask()
    await child.answer(child.agents[0], b"done")
    assert (stream.heads[0].status, stream.heads[0].ran_by, stream.data) == (200, "a0", b"done")
    assert stream.trailers is not None
    assert (stream.trailers.usage, stream.trailers.ran_by) == (Usage(3, 2, 0), "a0")
    ((account, amount),) = child.ledger.take().items()
    assert (account.tenant, account.key_id, account.deployment) == ("(uplink)", "(uplink)", "a0/d-m")
    assert (amount.requests, amount.completion_tokens) == (1, 2)
    (facts,) = child.audited
    assert (facts.id, facts.status, facts.tenant) == ("r1", 200, "(uplink)")
    assert (child.runner.outcomes["answered"], child.runner.running, child.capacity.running) == (1, 0, 0)
    child.fleet.assert_quiet()


async def test_without_a_free_slot_it_is_refused_at_once_and_takes_no_place_in_the_queue() -> None:
    child = Child(1)
    group = child.capacity.state().deployments[0].id
    own = child.fleet.submit()
    stream = child.ask(deployment=group)
    assert stream.reset_with == (ErrorCode.REFUSED, "all slots are taken")
    assert child.fleet.dispatcher.room.requests == 0
    assert own.exchange is not None
    own.exchange.cancel()


async def test_a_slot_that_a_client_took_while_the_body_came_is_refused() -> None:
    child = Child(1)
    (group,) = child.capacity.state().deployments
    stream = UpStream(RequestHead(group.id, "POST", "/v1/chat/completions", (), "m", "r1", via=(PARENT,)))
    child.runner.open(child, stream)  # type: ignore[arg-type]
    stream.handler.on_data(BODY)
    own = child.fleet.submit()
    stream.handler.on_end(None)
    assert stream.reset_with is not None
    assert stream.reset_with[0] is ErrorCode.REFUSED
    assert child.capacity.running == 0
    assert own.exchange is not None
    own.exchange.cancel()


async def test_it_does_not_overtake_clients_that_wait() -> None:
    child = Child(1)
    (group,) = child.capacity.state().deployments
    clients = [child.fleet.submit() for _ in range(2)]
    child.agents[0].open_streams[0].stream.reset(ErrorCode.ENGINE_UNREACHABLE)
    assert child.ask(deployment=group.id).reset_with is not None
    assert len(child.agents[0].streams) >= 1
    for each in clients:
        assert each.exchange is not None
        each.exchange.cancel()


async def test_another_agent_answers_what_one_refused_and_without_one_it_goes_back() -> None:
    child = Child(1, 1)
    stream = child.ask()
    first, second = sorted(child.agents, key=lambda each: not each.open_streams)
    first.open_streams[0].stream.reset(ErrorCode.REFUSED)
    await child.settle()
    assert len(second.open_streams) == 1
    second.open_streams[0].stream.reset(ErrorCode.REFUSED)
    await child.settle()
    assert stream.reset_with is not None
    assert stream.reset_with[0] is ErrorCode.DRAINING or stream.reset_with[0] is ErrorCode.REFUSED
    assert child.fleet.dispatcher.room.requests == 0


async def test_what_the_parent_gives_up_is_given_up_here() -> None:
    child = Child(1)
    stream = child.ask()
    stream.handler.on_reset(ErrorCode.CANCELLED, "")
    await child.settle()
    (engine,) = child.agents[0].streams
    assert engine.reset_code is ErrorCode.CANCELLED
    engine.confirm()
    await child.settle()
    assert stream.reset_with == (ErrorCode.CANCELLED, "")
    assert (child.runner.outcomes["cancelled"], child.audited[0].status) == (1, 499)
    child.fleet.assert_quiet()


async def test_where_it_may_run_is_held_against_the_agents_labels_and_those_of_the_uplink() -> None:
    child = Child(labels={"region": "eu"})
    child.fleet.connect("us", deployment("m", 1), labels={"region": "us"})
    refused = child.ask(where={"region": ("eu",)})
    assert refused.reset_with is not None
    assert refused.reset_with[0] is ErrorCode.REFUSED
    child.fleet.connect("anywhere", deployment("m", 1))
    unlabelled = child.capacity.state().deployments[1].id
    assert child.ask(where={"region": ("eu",)}, deployment=unlabelled).reset_with is None
    assert not child.fleet.agents[0].streams


@pytest.mark.parametrize("via", [(PARENT, OWN), tuple(str(n) * 16 for n in range(1, 6))])
async def test_loops_and_long_ways_are_refused(via: tuple[str, ...]) -> None:
    child = Child(1)
    stream = child.ask(via=via)
    assert stream.reset_with is not None
    assert stream.reset_with[0] is ErrorCode.REFUSED
    assert not child.agents[0].streams


async def test_a_request_at_fault_is_answered_as_by_an_engine() -> None:
    child = Child(1)
    stream = child.ask(body=b"{")
    assert (stream.heads[0].status, stream.ended, stream.reset_with) == (400, True, None)
    assert b"error" in stream.data


async def test_a_gateway_that_stops_gives_requests_back() -> None:
    child = Child(1)
    stream = child.ask()
    child.capacity.drain()
    child.runner.cut_off()
    assert stream.reset_with == (ErrorCode.DRAINING, "the gateway ends")
    await asyncio.wait_for(child.runner.idle(), 60)


async def test_a_long_body_is_passed_on_while_it_comes() -> None:
    child = Child(1)
    (group,) = child.capacity.state().deployments
    stream = UpStream(RequestHead(group.id, "POST", "/v1/chat/completions", (), "m", "r1", via=(PARENT,)))
    child.runner.open(child, stream)  # type: ignore[arg-type]
    body = b'{"x":"' + b"y" * (3 * 1024 * 1024) + b'"}'
    for start in range(0, len(body), 65_536):
        stream.handler.on_data(body[start : start + 65_536])
        await child.settle()
    stream.handler.on_end(None)
    await child.settle()
    assert child.agents[0].streams[0].body == body
    assert stream.consumed_bytes == len(body)
    await child.answer(child.agents[0])
    assert stream.ended


def test_heads_to_gateways_say_where_and_by_which_way() -> None:
    fleet = Fleet()
    fleet.registry.gateway_id = lambda: OWN
    gateway, agent = fleet.connect("region"), fleet.connect("gpu")
    fleet.session(gateway).is_gateway = True
    gateway.serve(replace(deployment("up"), via=(PARENT,)))
    agent.serve(deployment("m"))
    fleet.settle()
    for model in ("up", "m"):
        fleet.submit(fleet.request(model, body=RequestBody(BODY), via=("1" * 16,)))
    assert gateway.streams[0].head.via == ("1" * 16, OWN)
    assert agent.streams[0].head.via == ()


def test_a_place_goes_on_without_what_was_inherited() -> None:
    where = read_where("region=eu,tier=gold").inheriting({"region": "eu"})
    assert where.allows({"tier": "gold"})
    assert not where.allows({"tier": "gold", "region": "us"})
    assert not where.allows({})
    assert where.to_dict() == {"region": ["eu"], "tier": ["gold"]}
    assert str(where) == "region=eu,tier=gold"
