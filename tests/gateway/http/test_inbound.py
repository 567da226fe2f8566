import asyncio
import tracemalloc
from typing import Any

import pytest

from gateway.errors import BadRequest, BodyTimeout, BodyTooLarge, BuffersFull, ClientGone
from gateway.http.buffers import BufferBudget
from gateway.http.inbound import BodyLimits, Inbound

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
    return Inbound(feed, declared, BodyLimits(**limits), budget or BufferBudget(10**9))


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

    async def trickle() -> dict[str, Any]:
        nonlocal pieces
        pieces -= 1
        await asyncio.sleep(0)
        return piece(bytes((pieces % 251, 7)), more=pieces > 0)

    body = Inbound(trickle, None, BodyLimits(), BufferBudget(10**9))
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


async def test_silence_in_a_body_times_out() -> None:
    with pytest.raises(BodyTimeout):
        await inbound(Feed(piece(b"ab")), grace_s=0.001, rate_bytes_per_s=10**9).read(whole)


async def test_bytes_earn_time() -> None:
    feed = Feed(piece(b"ab"))
    reading = asyncio.create_task(inbound(feed, grace_s=0.0, rate_bytes_per_s=1).read(whole))
    for _ in range(5):
        await asyncio.sleep(0)
    feed.queue.put_nowait(piece(b"c", more=False))
    assert await reading == b"abc"


async def test_memory_is_reserved_by_the_announced_length_and_given_back() -> None:
    budget = BufferBudget(50)
    body = inbound(Feed(piece(b"x" * 40, more=False)), 40, budget)
    await body.read(whole, 40)
    assert budget.used_bytes == 40
    with pytest.raises(BuffersFull):
        await inbound(Feed(), 20, budget).read(whole, 20)
    body.release()
    assert budget.used_bytes == 0


async def test_memory_of_an_unannounced_body_is_reserved_as_it_grows() -> None:
    with pytest.raises(BuffersFull):
        await inbound(Feed(piece(b"x")), None, BufferBudget(100)).read(whole)


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
    await body.read(first)
    rest = body.rest()
    assert rest is not None
    watch = asyncio.create_task(body.until_gone())
    with pytest.raises(ClientGone):
        [chunk async for chunk in rest]
    await watch


async def test_a_rest_that_grows_too_long_fails_its_reader() -> None:
    feed = Feed(piece(b"a"), piece(b"x" * 60), piece(b"x" * 60))
    body = inbound(feed)
    await body.read(first)
    rest = body.rest()
    assert rest is not None
    watch = asyncio.create_task(body.until_gone())
    with pytest.raises(BodyTooLarge):
        [chunk async for chunk in rest]
    feed.queue.put_nowait(DISCONNECT)
    await watch


async def test_silence_in_the_rest_times_out() -> None:
    body = inbound(Feed(piece(b"a")), grace_s=0.01)
    await body.read(first)
    rest = body.rest()
    assert rest is not None
    watch = asyncio.create_task(body.until_gone())
    with pytest.raises(BodyTimeout):
        [chunk async for chunk in rest]
    watch.cancel()


async def test_after_the_body_only_leaving_is_waited_for() -> None:
    feed = Feed(piece(b"", more=False))
    body = inbound(feed)
    await body.read(whole)
    watch = asyncio.create_task(body.until_gone())
    await asyncio.sleep(0)
    assert not watch.done()
    feed.queue.put_nowait(DISCONNECT)
    await watch
