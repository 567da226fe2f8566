"""A request counts as one of those its key may have at once from its head on, before its body has come."""

import asyncio

from gateway.domain.quotas import Rates, TenantLimits
from tests.gateway.api.calls import Call
from tests.gateway.api.support import BEARER
from tests.gateway.quota.support import CHAT, Stage

BODY = b'{"model":"m"}'


def begun(stage: Stage) -> Call:
    """A request whose body is still to come."""
    return stage.surface.ask("POST", CHAT, BEARER, (b"content-length", b"%d" % len(BODY)))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_second_body_is_not_read_beside_the_first() -> None:
    stage = Stage(Rates(concurrency=1))
    first = begun(stage)
    await settle()
    second = await begun(stage).done()
    assert (second.status, stage.refusals) == (429, [("", "rate_limit_exceeded")])
    first.body(BODY)
    assert (await first.done()).status == 200
    third = begun(stage)
    third.body(BODY)
    assert (await third.done()).status == 200


async def test_those_of_a_tenant_count_together() -> None:
    stage = Stage(Rates(concurrency=5), TenantLimits(rates=Rates(concurrency=2)))
    waiting = [begun(stage) for _ in range(2)]
    await settle()
    assert (await begun(stage).done()).status == 429
    for each in waiting:
        each.body(BODY)
        assert (await each.done()).status == 200


async def test_one_whose_client_leaves_or_whose_body_is_wrong_counts_no_more() -> None:
    stage = Stage(Rates(concurrency=1))
    gone = begun(stage)
    await settle()
    gone.disconnect()
    await gone.done()
    wrong = begun(stage)
    wrong.body(b"{" * len(BODY))
    assert (await wrong.done()).status == 400
    good = begun(stage)
    good.body(BODY)
    assert (await good.done()).status == 200
