"""A request's place in the waiting room."""

from msgspec import structs

from gateway.domain.request import Tier
from gateway.domain.residency import read_where
from gateway.scheduling.base import BLOCK_TOKENS, DeploymentConstraints, PendingRequest
from gateway.scheduling.queue.tickets import Capacity
from tests.gateway.scheduling.queue.waiting import request, room

NO_SLOT = Capacity(slots=1, free=0, hold_s=1.0)


def test_policies_see_of_a_request_what_it_says() -> None:
    where = read_where("region=eu")
    asked = request(
        need="chat/x",
        tier=Tier.REALTIME,
        arrived_s=3.0,
        deadline_s=9.0,
        session_key="s",
        version="2",
        continuing=True,
        input_tokens=100,
        work_tokens=20,
        output_tokens=30,
        prefix=(7, 8),
        ttft_s=0.5,
        where=where,
        agent="a",
    )
    ticket = room().enter(asked, NO_SLOT, 4.0)
    expected = PendingRequest(
        number=ticket.number,
        route="chat/x",
        work=ticket.work,
        arrived_s=3.0,
        tier=Tier.REALTIME,
        tenant="tenant",
        deadline_s=9.0,
        session_key="s",
        version="2",
        continuing=True,
        input_tokens=120,
        output_tokens=30,
        prefix=(7, 8),
        block_tokens=BLOCK_TOKENS,
        ttft_s=0.5,
        where=where,
        agent="a",
    )
    assert ticket.as_pending() == expected
    assert ticket.as_pending() is ticket.as_pending()
    assert ticket.as_pending(frozenset({"a/d"})) == structs.replace(expected, avoid=frozenset({"a/d"}))
    assert ticket.as_pending() == expected
    assert expected.fit == DeploymentConstraints("chat/x", frozenset(), "2", True, where, "a")
