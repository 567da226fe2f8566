import asyncio
import tracemalloc
from typing import Any

import pytest

from gateway.api.exchange.buffers import BufferBudget, BufferOwner
from gateway.api.exchange.inbound import MIB, BodyLimits, Inbound
from gateway.domain.errors import BadRequest, BodyTimeout, BodyTooLarge, BuffersFull, ClientGone
from tests.support.clock import ManualClock

DISCONNECT = {"type": "http.disconnect"}


def piece(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


class Feed:
    """An ASGI ``receive`` that gives these messages and then waits."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.taken = 0
        for message in messages:
            self.queue.put_nowait(message)

    async def __call__(self) -> dict[str, Any]:
        message = await self.queue.get()
        self.taken += 1
        return message


def inbound(
    feed: Feed, declared: int | None = None, budget: BufferBudget | None = None, **limits: Any
) -> Inbound:
    limits = {"body_bytes": 100, "prefix_bytes": 10, **limits}
    fields = {} if declared is None else {b"content-length": b"%d" % declared}
    return Inbound(feed, fields, BodyLimits(**limits), budget or BufferBudget(10**9))


def whole(chunk: bytes) -> bool:
    return False


def first(chunk: bytes) -> bool:
    return True


async def test_a_body_is_put_together() -> None:
    body = inbound(Feed(piece(b"ab"), piece(b""), piece(b"c", more=False)))
    assert await body.read(whole) == b"abc"
    assert body.complete
    assert body.rest() is None


async def test_a_body_in_tiny_pieces_takes_the_memory_of_its_bytes() -> None:
    pieces = 8000

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        pieces -= 1
        await asyncio.sleep(0)
        return piece(bytes((pieces % 251, 7)), more=pieces > 0)

    body = Inbound(receive, {}, BodyLimits(), BufferBudget(10**9))
    tracemalloc.start()
    try:
        assert len(await body.read(whole)) == 16_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000


async def test_reading_stops_when_there_is_enough() -> None:
    feed = Feed(piece(b"ab"), piece(b"c", more=False))
    body = inbound(feed)
    assert await body.read(first) == b"ab"
    assert not body.complete
    assert feed.taken == 1


async def test_an_announced_length_over_the_limit_is_refused_before_reading() -> None:
    feed = Feed(piece(b"x"))
    with pytest.raises(BodyTooLarge):
        await inbound(feed, 101).read(whole)
    assert feed.taken == 0


async def test_a_body_that_turns_out_too_long_is_refused() -> None:
    with pytest.raises(BodyTooLarge):
        await inbound(Feed(piece(b"x" * 60), piece(b"x" * 41))).read(whole)


async def test_a_body_of_another_length_than_announced_is_refused() -> None:
    with pytest.raises(BadRequest):
        await inbound(Feed(piece(b"abc", more=False)), 4).read(whole)


async def test_a_client_that_leaves_while_sending_is_gone() -> None:
    with pytest.raises(ClientGone):
        await inbound(Feed(piece(b"ab"), DISCONNECT)).read(whole)


async def passes(clock: ManualClock, by_s: float) -> None:
    """Let everything due happen, the loop's time go on, and everything that is due then."""
    for _ in range(10):
        await asyncio.sleep(0)
    clock.advance(by_s)
    for _ in range(10):
        await asyncio.sleep(0)


async def trickle(clock: ManualClock, feed: Feed, times: int, every_s: float) -> None:
    """A byte, so many times."""
    for _ in range(times):
        await passes(clock, every_s)
        feed.queue.put_nowait(piece(b"x"))
    await passes(clock, 0.0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The event loop's."""
    loop = asyncio.get_running_loop()
    clock = ManualClock(loop.time())
    monkeypatch.setattr(loop, "time", clock)
    return clock


async def test_silence_in_a_body_times_out(clock: ManualClock) -> None:
    feed = Feed(piece(b"x" * 90))
    reading = asyncio.create_task(inbound(feed, 100, grace_s=30.0, rate_bytes_per_s=1).read(whole))
    await passes(clock, 29.9)
    assert not reading.done()
    await passes(clock, 0.2)
    with pytest.raises(BodyTimeout):
        await reading


async def test_bytes_earn_time(clock: ManualClock) -> None:
    feed = Feed(piece(b"x" * 40))
    reading = asyncio.create_task(inbound(feed, grace_s=30.0, rate_bytes_per_s=1).read(whole))
    await passes(clock, 29.9)
    feed.queue.put_nowait(piece(b"x"))
    await passes(clock, 29.9)
    feed.queue.put_nowait(piece(b"x", more=False))
    await passes(clock, 0.0)
    assert len(await reading) == 42


async def test_a_trickle_below_the_rate_times_out(clock: ManualClock) -> None:
    feed = Feed(piece(b"x"))
    reading = asyncio.create_task(inbound(feed, grace_s=30.0, rate_bytes_per_s=1024).read(whole))
    await trickle(clock, feed, 6, 5.1)
    with pytest.raises(BodyTimeout):
        await reading


async def test_a_long_body_must_come_faster_than_a_short_one(clock: ManualClock) -> None:
    """64 MiB that were announced come within ten minutes and a half, 2 KiB a second are too little then."""
    limits: dict[str, Any] = {"body_bytes": 64 * MIB, "grace_s": 30.0, "whole_s": 600.0}
    long, short = Feed(piece(b"x")), Feed(piece(b"x"))
    slow = asyncio.create_task(inbound(long, 64 * MIB, **limits).read(whole))
    same = asyncio.create_task(inbound(short, 600 * 2048, **limits).read(whole))
    for _ in range(40):
        await passes(clock, 1.0)
        long.queue.put_nowait(piece(b"x" * 2048))
        short.queue.put_nowait(piece(b"x" * 2048))
    await passes(clock, 0.0)
    assert slow.done()
    assert not same.done()
    with pytest.raises(BodyTimeout):
        await slow
    same.cancel()


async def test_no_body_that_is_held_takes_longer_than_the_longest(clock: ManualClock) -> None:
    feed = Feed(piece(b"x" * 4 * MIB))
    body = inbound(feed, body_bytes=64 * MIB, grace_s=30.0, whole_s=600.0)
    reading = asyncio.create_task(body.read(whole))
    await trickle(clock, feed, 64, 10.0)
    with pytest.raises(BodyTimeout):
        await reading


async def test_memory_is_reserved_as_it_comes_and_given_back() -> None:
    budget = BufferBudget(64 * MIB)
    feed = Feed(piece(b"x" * 40))
    body = inbound(feed, 80, budget)
    body.owner = BufferOwner("acme", "k1")
    reading = asyncio.create_task(body.read(whole, 80))
    for _ in range(5):
        await asyncio.sleep(0)
    assert budget.used_bytes == 40
    feed.queue.put_nowait(piece(b"x" * 40, more=False))
    await reading
    assert budget.used_bytes == 80
    assert body.reservation is not None
    body.reservation.release()
    assert budget.used_bytes == 0


async def test_a_body_without_room_for_what_comes_is_refused() -> None:
    with pytest.raises(BuffersFull):
        await inbound(Feed(piece(b"x" * 60)), None, BufferBudget(50)).read(whole)


async def test_a_body_longer_than_all_memory_for_bodies_is_too_large_at_once() -> None:
    feed = Feed(piece(b"x"))
    with pytest.raises(BodyTooLarge):
        await inbound(feed, 60 * MIB, BufferBudget(64 * MIB), body_bytes=64 * MIB).read(whole, 60 * MIB)
    assert feed.taken == 0


async def rest_of(body: Inbound) -> list[bytes]:
    rest = body.rest()
    assert rest is not None
    return [chunk async for chunk in rest]


async def begun(body: Inbound) -> asyncio.Task[None]:
    """Its first piece is read, and that the client leaves is waited for."""
    await body.read(first)
    return asyncio.create_task(body.until_gone())


async def test_the_rest_comes_one_message_ahead_of_its_reader() -> None:
    feed = Feed(*(piece(b"%d" % i) for i in range(5)), piece(b"", more=False))
    body = inbound(feed)
    assert await body.read(first) == b"0"
    rest = body.rest()
    assert rest is not None
    watch = asyncio.create_task(body.until_gone())
    for _ in range(10):
        await asyncio.sleep(0)
    assert feed.taken == 2
    assert [chunk async for chunk in rest] == [b"1", b"2", b"3", b"4"]
    feed.queue.put_nowait(DISCONNECT)
    await watch


async def test_a_client_that_leaves_ends_the_rest_and_the_watch() -> None:
    feed = Feed(piece(b"a"), piece(b"b"), DISCONNECT)
    body = inbound(feed)
    watch = await begun(body)
    with pytest.raises(ClientGone):
        await rest_of(body)
    await watch


async def test_a_rest_that_grows_too_long_fails_its_reader() -> None:
    feed = Feed(piece(b"a"), piece(b"x" * 60), piece(b"x" * 60))
    body = inbound(feed)
    watch = await begun(body)
    with pytest.raises(BodyTooLarge):
        await rest_of(body)
    feed.queue.put_nowait(DISCONNECT)
    await watch


async def test_silence_in_the_rest_times_out(clock: ManualClock) -> None:
    body = inbound(Feed(piece(b"a")), grace_s=30.0)
    watch = await begun(body)
    reading = asyncio.create_task(rest_of(body))
    await passes(clock, 0.0)
    await passes(clock, 30.1)
    with pytest.raises(BodyTimeout):
        await reading
    watch.cancel()


async def test_a_rest_that_trickles_times_out(clock: ManualClock) -> None:
    feed = Feed(piece(b"a"))
    body = inbound(feed, 64 * MIB, body_bytes=64 * MIB, grace_s=30.0)
    watch = await begun(body)
    reading = asyncio.create_task(rest_of(body))
    await trickle(clock, feed, 8, 10.0)
    with pytest.raises(BodyTimeout):
        await reading
    watch.cancel()


async def test_time_in_which_nobody_takes_the_rest_is_not_its_clients(clock: ManualClock) -> None:
    feed = Feed(piece(b"a"), piece(b"b"), piece(b"c", more=False))
    body = inbound(feed, grace_s=30.0)
    watch = await begun(body)
    rest = body.rest()
    assert rest is not None
    assert await anext(rest) == b"b"
    await passes(clock, 3600.0)
    assert await anext(rest) == b"c"
    watch.cancel()


@pytest.mark.parametrize("last", [b"", b"b"])
async def test_a_client_that_leaves_is_noticed_though_nobody_took_the_last_piece(last: bytes) -> None:
    feed = Feed(piece(b"a"), piece(last, more=False), DISCONNECT)
    async with asyncio.timeout(60):
        await (await begun(inbound(feed)))


@pytest.mark.parametrize("last", [b"", b"b"])
async def test_the_last_piece_can_be_taken_while_leaving_is_waited_for(last: bytes) -> None:
    feed = Feed(piece(b"a"), piece(last, more=False))
    body = inbound(feed)
    await body.read(first)
    rest = body.rest()
    assert rest is not None
    watch = asyncio.create_task(body.until_gone())
    while feed.taken < 2:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0)
    assert [chunk async for chunk in rest] == [last][: len(last)]
    assert not watch.done()
    feed.queue.put_nowait(DISCONNECT)
    await watch


async def test_after_the_body_only_leaving_is_waited_for() -> None:
    feed = Feed(piece(b"", more=False))
    body = inbound(feed)
    await body.read(whole)
    watch = asyncio.create_task(body.until_gone())
    await asyncio.sleep(0)
    assert not watch.done()
    feed.queue.put_nowait(DISCONNECT)
    await watch
