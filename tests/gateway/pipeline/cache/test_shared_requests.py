"""Identical requests that wait for one answer, whatever becomes of the first of them."""

import asyncio

import pytest

from gateway.domain.errors import DeadlineExceeded, EngineError, StreamBroken
from gateway.domain.request import Request, Tier
from gateway.pipeline.cache import CacheRule
from shared.protocol.errors import ErrorCode
from tests.gateway.pipeline.cache.asking import (
    Site,
    chat,
    read,
    request,
    turns,
    until,
)


def asking(site: Site, count: int, asked: Request | None = None) -> "list[asyncio.Task[tuple[str, bytes]]]":
    return [asyncio.create_task(site.ask(asked)) for _ in range(count)]


async def test_identical_requests_wait_for_one_answer() -> None:
    site = Site(CacheRule(cache_s=0.0))
    site.engine.held = True
    tasks = asking(site, 5)
    await turns()
    assert len(site.engine.asked) == 1
    site.engine.go(0)
    told = await asyncio.gather(*tasks)
    assert told == [("miss", site.engine.body)] + 4 * [("coalesced", site.engine.body)]
    assert site.counted("coalesced") == 4
    assert len(site.cache) == 0, "nothing is kept, only shared"
    site.assert_quiet()


async def test_a_slow_client_of_the_first_holds_up_nobody() -> None:
    site = Site()
    first = await site.lookup().run(request(), site.engine.run)
    assert await site.ask() == ("hit", site.engine.body)
    assert await read(first) == site.engine.body


async def test_when_the_first_fails_one_of_the_others_leads_the_rest() -> None:
    site = Site()
    site.engine.held, site.engine.failing = True, {0}
    tasks = asking(site, 4)
    await turns()
    site.engine.go(0)
    await until(lambda: len(site.engine.asked) == 2)
    await turns()
    assert len(site.engine.asked) == 2, "the others follow again"
    site.engine.go(1)
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(told[0], EngineError)
    assert sorted(each[0] for each in told[1:] if not isinstance(each, BaseException)) == [
        "coalesced",
        "coalesced",
        "miss",
    ]
    site.assert_quiet()


async def test_who_followed_in_vain_twice_goes_its_own_way() -> None:
    site = Site()
    site.engine.held, site.engine.failing = True, {0, 1}
    tasks = asking(site, 4)
    for number in range(2):
        await until(lambda number=number: len(site.engine.asked) > number)  # type: ignore[misc]
        await turns()
        site.engine.go(number)
    await until(lambda: len(site.engine.asked) == 4)
    site.engine.go(2)
    site.engine.go(3)
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, EngineError) for each in told].count(True) == 2
    assert [each for each in told if not isinstance(each, BaseException)] == 2 * [("miss", site.engine.body)]
    site.assert_quiet()


async def test_when_the_first_client_leaves_another_leads() -> None:
    site = Site()
    site.engine.held = True
    first, second, third = asking(site, 3)
    await turns()
    first.cancel()
    await until(lambda: len(site.engine.asked) == 2)
    site.engine.go(1)
    assert await second == ("miss", site.engine.body)
    assert await third == ("coalesced", site.engine.body)
    with pytest.raises(asyncio.CancelledError):
        await first
    site.assert_quiet()


async def test_a_client_that_leaves_while_the_answer_is_read_lets_the_engine_go() -> None:
    site = Site()
    coming = asyncio.Event()
    answer = await site.engine.run(request())

    async def later(_: Request) -> object:
        return answer

    async def never(sink: object = None) -> list[bytes]:
        await coming.wait()
        return []

    site.engine.answers[0].next_chunks = never  # type: ignore[method-assign]
    first = asyncio.create_task(site.lookup().run(request(), later))  # type: ignore[arg-type]
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert site.engine.answers[0].aborted
    site.assert_quiet()


async def test_an_answer_that_breaks_off_is_an_error_of_the_first_and_nobody_elses() -> None:
    site = Site()
    site.engine.held = True
    site.engine.breaking[0] = StreamBroken(ErrorCode.ENGINE_FAILED, "it died")
    first, second = asking(site, 2)
    await turns()
    site.engine.go(0)
    await until(lambda: len(site.engine.asked) == 2)
    site.engine.go(1)
    with pytest.raises(EngineError, match="it died"):
        await first
    assert await second == ("miss", site.engine.body)
    site.assert_quiet()


async def test_nobody_waits_for_a_follower_that_leaves() -> None:
    site = Site()
    site.engine.held = True
    first, second, third = asking(site, 3)
    await turns()
    second.cancel()
    await turns()
    site.engine.go(0)
    assert await first == ("miss", site.engine.body)
    assert await third == ("coalesced", site.engine.body)
    assert second.cancelled()
    site.assert_quiet()


async def test_a_follower_waits_no_longer_than_its_client() -> None:
    site = Site()
    site.engine.held = True
    (first,) = asking(site, 1)
    await turns()
    impatient = request(deadline_s=asyncio.get_running_loop().time() - 1)
    with pytest.raises(DeadlineExceeded, match="identical one"):
        await site.ask(impatient)
    site.engine.go(0)
    await first
    site.assert_quiet()


async def test_more_than_may_follow_go_their_own_way() -> None:
    site = Site(followers=2)
    site.engine.held = True
    tasks = asking(site, 5)
    await turns()
    assert len(site.engine.asked) == 3
    for number in range(3):
        site.engine.go(number)
    assert sorted(outcome for outcome, _ in await asyncio.gather(*tasks)) == [
        *2 * ["coalesced"],
        *3 * ["miss"],
    ]
    site.assert_quiet()


async def test_an_answer_too_long_to_be_shared_is_computed_for_each_and_waited_for_once() -> None:
    site = Site(entry_bytes=1024)
    site.engine.body = b'{"data":' + b"1" * 5000 + b"}"
    site.engine.held = True
    tasks = asking(site, 3)
    await turns()
    site.engine.go(0)
    await until(lambda: len(site.engine.asked) == 3)
    site.engine.go(1)
    site.engine.go(2)
    assert await asyncio.gather(*tasks) == 3 * [("miss", site.engine.body)]
    more = asking(site, 2)
    await turns()
    assert len(site.engine.asked) == 5
    site.engine.go(3)
    site.engine.go(4)
    await asyncio.gather(*more)
    assert site.engine.answers[0].credit_bytes == len(site.engine.body), "each byte is credited once"
    site.assert_quiet()


async def test_nobody_follows_who_is_less_urgent_and_streams_follow_nobody() -> None:
    site = Site()
    site.engine.held = True
    tasks = asking(site, 1, request(tier=Tier.BATCH)) + asking(site, 1, request(tier=Tier.REALTIME))
    tasks += asking(site, 2, chat(stream=True))
    await turns()
    assert len(site.engine.asked) == 4
    for number in range(4):
        site.engine.go(number)
    await asyncio.gather(*tasks)
