"""Redis streams as queues: a consumer group takes entries, and what a dead consumer held is taken over.

An entry's message is its field ``message``, or its only field. It is acknowledged (XACK) and stays in the
stream, as the stream's other groups may want it; whoever adds entries bounds the stream (``XADD … MAXLEN``).
A dead letter is an entry with ``message``, ``reason`` and ``entry``, a reply one with ``id``, ``sequence``
and ``message``.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.jobs.queues.redis_client import (
    close_client,
    redis_client,
    redis_failures,
    reply_failures,
    text_of,
)
from gateway.jobs.queues.source import TakenMessage

FIELD = b"message"
IDLE_S = 60.0
"""What a consumer has held for so long without an acknowledgement is another's."""
CLAIM_EVERY_S = 15.0
FORGOTTEN_S = 86_400.0
"""A consumer that holds nothing and took nothing for so long is removed from the group."""
_BLOCK_S = 2.0


class RedisStreamSource:
    """One stream, read as one consumer of a group (:class:`gateway.jobs.queues.source.Source`)."""

    def __init__(
        self,
        url: str,
        stream: str,
        group: str,
        dead_letter: str,
        *,
        owner: str | None = None,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``owner``: what nobody else is called; None: some name.

        Raises ValueError and ImportError as :func:`gateway.jobs.queues.redis_client.redis_client` does.
        """
        self._client: Any = redis_client(url, _BLOCK_S)
        self._stream, self._group, self._dead_letter = stream, group, dead_letter
        self._consumer = _consumer(owner or secrets.token_hex(8))
        self._earlier: str | None = None
        """The consumer of which there may be something to take over at once."""
        self._idle_s = idle_s
        self._clock = clock
        self._claim_s = clock()
        self._has_group = False

    def succeed(self, earlier: str) -> None:
        """See :class:`gateway.jobs.queues.source.OwnedSource`."""
        self._earlier = _consumer(earlier)

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        with redis_failures():
            claims = self._clock() >= self._claim_s
            if claims or not self._has_group:  # somebody may have removed the stream
                await self._make_group()
            if self._earlier is not None:
                found = await self._take_from(self._earlier, most)
                if found:  # there may be more
                    return found
                await self._client.xgroup_delconsumer(self._stream, self._group, self._earlier)
                self._earlier = None
            if claims:
                found = await self._take_over(most)
                if found:  # there may be more
                    return found
                self._claim_s = self._clock() + min(CLAIM_EVERY_S, self._idle_s)
            return await self._read(most, min(wait_s, _BLOCK_S))

    async def acknowledge(self, message: TakenMessage) -> None:
        with redis_failures():
            await self._client.xack(self._stream, self._group, message.handle)

    async def reject(self, message: TakenMessage, reason: str) -> None:
        entry = {b"message": message.body, b"reason": reason, b"entry": message.handle}
        with redis_failures():
            async with self._client.pipeline(transaction=True) as both:
                both.xadd(self._dead_letter, entry)
                both.xack(self._stream, self._group, message.handle)
                await both.execute()

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        entry = {"id": message_id, "sequence": sequence, FIELD: body}
        with reply_failures(to):
            await self._client.xadd(to, entry)

    async def close(self) -> None:
        await close_client(self._client)

    async def _make_group(self) -> None:
        """It begins with what is in the stream already."""
        from redis.exceptions import ResponseError

        try:
            await self._client.xgroup_create(self._stream, self._group, "0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self._has_group = True

    async def _read(self, most: int, wait_s: float) -> list[TakenMessage]:
        from redis.exceptions import ResponseError

        try:
            found = await self._client.execute_command(
                "XREADGROUP",
                "GROUP",
                self._group,
                self._consumer,
                "COUNT",
                most,
                "BLOCK",
                max(1, int(wait_s * 1000)),
                "STREAMS",
                self._stream,
                ">",
            )
        except ResponseError as error:
            if str(error).startswith("NOGROUP"):  # somebody removed the stream: it is made at the next try
                self._has_group = False
                return []
            raise
        return [message for _, entries in _pairs(found) for message in await self._messages(entries)]

    async def _take_over(self, most: int) -> list[TakenMessage]:
        """What others have held for too long. Consumers that are long gone are removed."""
        await self._forget_consumers()
        idle_ms = max(1, int(self._idle_s * 1000))
        words = ("XAUTOCLAIM", self._stream, self._group, self._consumer, idle_ms, "0-0", "COUNT", most)
        found = await self._client.execute_command(*words)
        return await self._messages(found[1])

    async def _take_from(self, consumer: str, most: int) -> list[TakenMessage]:
        """What a consumer that is no more has held; none: it holds nothing."""
        stream, group = self._stream, self._group
        while True:
            held = await self._client.xpending_range(stream, group, "-", "+", most, consumername=consumer)
            if not held:
                return []
            ids = [each["message_id"] for each in held]
            claimed = await self._client.xclaim(stream, group, self._consumer, 0, ids)
            found = await self._messages([each for each in claimed if each[0] is not None])
            if found:
                return found

    async def _forget_consumers(self) -> None:
        for each in await self._client.xinfo_consumers(self._stream, self._group):
            name, is_ours = each["name"], text_of(each["name"]) == self._consumer
            if not is_ours and not each["pending"] and each["idle"] > FORGOTTEN_S * 1000:
                await self._client.xgroup_delconsumer(self._stream, self._group, name)

    async def _messages(self, entries: Sequence[Any]) -> list[TakenMessage]:
        """Entries that were deleted meanwhile have no fields: they are done with."""
        found: list[TakenMessage] = []
        for entry_id, fields in (each for each in entries if each is not None):
            content = _content(fields)
            if content is None:
                await self._client.xack(self._stream, self._group, entry_id)
            else:
                found.append(TakenMessage(content, entry_id, text_of(entry_id)))
        return found


def _consumer(owner: str) -> str:
    return f"trunkline-{owner}"


def _content(fields: Any) -> bytes | None:
    """None: the entry is no more. An entry without a message has an empty one, which is no JSON."""
    if not fields:
        return None
    members = dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    only = next(iter(members.values())) if len(members) == 1 else b""
    return bytes(members.get(FIELD, only))


def _pairs(found: Any) -> list[tuple[Any, Any]]:
    """Streams with their entries, as RESP 2 (a list) or RESP 3 (a map of lists of entries) has them."""
    if not found:
        return []
    if isinstance(found, dict):
        return [(name, [entry for entries in lists for entry in entries]) for name, lists in found.items()]
    return [(name, entries) for name, entries in found]
