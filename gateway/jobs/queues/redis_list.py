"""Redis lists as queues: LMOVE takes a message from the head into a list of its process's own.

Producers ``RPUSH``. Each process keeps what it has taken in ``{list}:processing:{process}`` and says that it
lives with the key ``{list}:alive:{process}``, which ends by itself; ``{list}:processes`` names them all. What
a dead process held goes back to the head of the list, in its order. A dead letter is JSON with ``message``
and ``reason``, pushed to the list of dead letters; replies are pushed to theirs, to be taken from the
head.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from gateway.jobs.queues.redis_client import (
    close_client,
    redis_client,
    redis_failures,
    reply_failures,
    text_of,
)
from gateway.jobs.queues.source import TakenMessage

ALIVE_S = 60.0
"""A process that has said nothing for so long is dead."""
LOOK_EVERY_S = 15.0
_BLOCK_S = 2.0


class RedisListSource:
    """One list (:class:`gateway.jobs.queues.source.Source`). Messages have no id but what they say."""

    def __init__(
        self,
        url: str,
        name: str,
        dead_letter: str,
        *,
        owner: str | None = None,
        alive_s: float = ALIVE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``owner``: what nobody else is called; None: some name.

        Raises ValueError and ImportError as :func:`gateway.jobs.queues.redis_client.redis_client` does.
        """
        self._client: Any = redis_client(url, _BLOCK_S)
        self._list, self._dead_letter = name, dead_letter
        self._process = owner or secrets.token_hex(8)
        self._earlier: str | None = None
        """Of which process there may be something to take over at once."""
        self._alive_s = alive_s
        self._clock = clock
        self._look_s = clock()

    def succeed(self, earlier: str) -> None:
        """See :class:`gateway.jobs.queues.source.OwnedSource`."""
        self._earlier = earlier

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        with redis_failures():
            if self._earlier is not None:
                await self._client.delete(self._alive(self._earlier))
                self._earlier, self._look_s = None, self._clock()
            if self._clock() >= self._look_s:
                await self._say_alive()
                await self._take_over()
                self._look_s = self._clock() + min(LOOK_EVERY_S, self._alive_s / 4)
            ours = self._processing(self._process)
            held: list[bytes] = await self._client.lrange(ours, 0, most - 1)
            if held:  # it was taken, but its taker was broken off
                return [TakenMessage(each, each) for each in held]
            first = await self._client.blmove(self._list, ours, min(wait_s, _BLOCK_S), "LEFT", "RIGHT")
            if first is None:
                return []
            found = [first]
            while len(found) < most:
                following = await self._client.lmove(self._list, ours, "LEFT", "RIGHT")
                if following is None:
                    break
                found.append(following)
            return [TakenMessage(bytes(each), bytes(each)) for each in found]

    async def acknowledge(self, message: TakenMessage) -> None:
        with redis_failures():
            await self._client.lrem(self._processing(self._process), 1, message.handle)

    async def reject(self, message: TakenMessage, reason: str) -> None:
        letter = orjson.dumps({"reason": reason, "message": message.body.decode("utf-8", "replace")})
        with redis_failures():
            async with self._client.pipeline(transaction=True) as both:
                both.rpush(self._dead_letter, letter)
                both.lrem(self._processing(self._process), 1, message.handle)
                await both.execute()

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        with reply_failures(to):
            await self._client.rpush(to, body)

    async def close(self) -> None:
        """What is held goes to others at once, if it can be said."""
        try:
            with redis_failures():
                async with asyncio.timeout(1.0):
                    await self._client.delete(self._alive(self._process))
        except Exception:  # noqa: S110 (it ends by itself)
            pass
        await close_client(self._client)

    async def _say_alive(self) -> None:
        async with self._client.pipeline(transaction=True) as both:
            both.set(self._alive(self._process), b"1", px=max(1, int(self._alive_s * 1000)))
            both.sadd(f"{self._list}:processes", self._process)
            await both.execute()

    async def _take_over(self) -> None:
        """Put back what dead processes held. A message that one of them goes on with after all has
        one job."""
        for member in await self._client.smembers(f"{self._list}:processes"):
            process = text_of(member)
            if process == self._process or await self._client.exists(self._alive(process)):
                continue
            theirs = self._processing(process)
            while await self._client.lmove(theirs, self._list, "RIGHT", "LEFT") is not None:
                pass
            await self._client.srem(f"{self._list}:processes", member)

    def _processing(self, process: str) -> str:
        return f"{self._list}:processing:{process}"

    def _alive(self, process: str) -> str:
        return f"{self._list}:alive:{process}"
