"""Brokers of a run with queues: how its messages are put into each, and how replies come out again."""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from google.api_core.exceptions import DeadlineExceeded
from redis.asyncio import Redis

from gateway.domain.queues import QueueKind
from tests.gateway.jobs.queues.pubsub_topics import Topics, pubsub_topics
from tests.gateway.jobs.queues.rabbit_queues import URL, rabbit_queues
from tests.gateway.jobs.queues.sqs_queues import Queues, sqs_queues
from tests.support.pubsub_server import pubsub_host
from tests.support.redis_server import own_redis_server
from tests.support.sqs_server import set_credentials, sqs_server

ASKED, ANSWERS = "prompts", "answers"
_ORDERED = f"{ANSWERS}.fifo"
_AT_ONCE = 500
_PULL_S = 0.2
_LIE_THERE = 300
"""Messages in a queue of moto's."""


class Broker(Protocol):
    """A broker with the queue :data:`ASKED` and a place for replies."""

    url: str
    queue: str
    """Its name for the one that messages are put in."""
    answers: str
    """What messages name as their ``reply_to``."""

    async def put(self, messages: Sequence[bytes]) -> None:
        """Returns once the broker has them."""
        ...

    async def replies(self) -> Sequence[bytes]:
        """Those that came since the last call."""
        ...

    async def dead_letters(self) -> int:
        """How many messages were put there."""
        ...


@dataclass(slots=True)
class RedisLists:
    """A list for each."""

    client: Any
    url: str
    queue: str = ASKED
    answers: str = ANSWERS
    seen: int = 0

    async def put(self, messages: Sequence[bytes]) -> None:
        for start in range(0, len(messages), _AT_ONCE):
            await self.client.rpush(self.queue, *messages[start : start + _AT_ONCE])

    async def replies(self) -> Sequence[bytes]:
        found: list[bytes] = await self.client.lrange(self.answers, self.seen, -1)
        self.seen += len(found)
        return found

    async def dead_letters(self) -> int:
        return int(await self.client.llen(f"{self.queue}.dead"))


@dataclass(slots=True)
class RedisStreams:
    """A stream for each."""

    client: Any
    url: str
    queue: str = ASKED
    answers: str = ANSWERS
    seen: bytes = b"0"

    async def put(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            await self.client.xadd(self.queue, {"message": message})

    async def replies(self) -> Sequence[bytes]:
        found = []
        for _, entries in await self.client.xread({self.answers: self.seen}):
            for self.seen, fields in entries:
                found.append(fields[b"message"])
        return found

    async def dead_letters(self) -> int:
        return int(await self.client.xlen(f"{self.queue}.dead"))


@dataclass(slots=True)
class RabbitQueues:
    """A durable queue for each."""

    channel: AbstractChannel
    url: str
    queue: str
    answers: str
    dead: str
    arrived: list[bytes] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Meanwhile replies are collected."""
        queue = await self.channel.get_queue(self.answers)
        tag = await queue.consume(self._take, no_ack=True)
        try:
            yield
        finally:
            await queue.cancel(tag)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        self.arrived.append(message.body)

    async def put(self, messages: Sequence[bytes]) -> None:
        exchange = self.channel.default_exchange
        for message in messages:
            kept = aio_pika.Message(message, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await exchange.publish(kept, routing_key=self.queue)

    async def replies(self) -> Sequence[bytes]:
        found, self.arrived = self.arrived, []
        return found

    async def dead_letters(self) -> int:
        declared = await self.channel.declare_queue(self.dead, durable=True)
        return int(declared.declaration_result.message_count or 0)


@dataclass(slots=True)
class SqsQueues:
    """A queue for each; replies keep their order. moto's server goes through all messages of a queue at each
    request, so only some lie there at once: as many more are put as replies were read."""

    queues: Queues
    url: str
    queue: str
    answers: str
    later: deque[str] = field(default_factory=deque)

    async def put(self, messages: Sequence[bytes]) -> None:
        self.later.extend(message.decode() for message in messages)
        await self._put(_LIE_THERE)

    async def _put(self, most: int) -> None:
        await self.queues.put_all(ASKED, [self.later.popleft() for _ in range(min(most, len(self.later)))])

    async def replies(self) -> Sequence[bytes]:
        found = [body.encode() for body in await self.queues.get_all(_ORDERED)]
        await self._put(len(found))
        return found

    async def dead_letters(self) -> int:
        return len(await self.queues.get_all(f"{ASKED}-dead"))


@dataclass(slots=True)
class PubSubTopics:
    """A topic for each, with a subscription of its name."""

    topics: Topics
    url: str
    queue: str = ASKED
    answers: str = ANSWERS

    async def put(self, messages: Sequence[bytes]) -> None:
        await self.topics.put_all(self.queue, messages)

    async def replies(self) -> Sequence[bytes]:
        return await self._taken(self.answers)

    async def dead_letters(self) -> int:
        return len(await self._taken(f"{self.queue}.dead"))

    async def _taken(self, name: str) -> list[bytes]:
        with contextlib.suppress(DeadlineExceeded):
            return [each.data for each in await self.topics.get(name, most=_AT_ONCE, wait_s=_PULL_S)]
        return []


@asynccontextmanager
async def _redis_client(directory: Path) -> AsyncIterator[tuple[Any, str]]:
    """Of a server that only this run uses."""
    with own_redis_server(directory) as server:
        client: Any = Redis.from_url(server.url)
        try:
            yield client, server.url
        finally:
            await client.aclose()


@asynccontextmanager
async def redis_lists(directory: Path) -> AsyncIterator[Broker]:
    async with _redis_client(directory) as (client, url):
        yield RedisLists(client, url)


@asynccontextmanager
async def redis_streams(directory: Path) -> AsyncIterator[Broker]:
    async with _redis_client(directory) as (client, url):
        yield RedisStreams(client, url)


@asynccontextmanager
async def rabbit(directory: Path) -> AsyncIterator[Broker]:
    async with rabbit_queues(ASKED, ANSWERS) as (channel, names):
        broker = RabbitQueues(channel, URL, names[ASKED], names[ANSWERS], f"{names[ASKED]}.dead")
        try:
            async with broker.listening():
                yield broker
        finally:
            await channel.queue_delete(broker.dead)


@asynccontextmanager
async def sqs(directory: Path) -> AsyncIterator[Broker]:
    with pytest.MonkeyPatch.context() as monkeypatch, sqs_server() as url:
        set_credentials(monkeypatch)  # of the gateways, too
        async with sqs_queues(url, ASKED, f"{ASKED}-dead", _ORDERED) as queues:
            yield SqsQueues(queues, queues.url, queues.name(ASKED), queues.name(_ORDERED))


@asynccontextmanager
async def pubsub(directory: Path) -> AsyncIterator[Broker]:
    with pubsub_host() as host:
        async with pubsub_topics(host, ASKED, f"{ASKED}.dead") as topics:
            await topics.make(ANSWERS, enable_message_ordering=True)
            yield PubSubTopics(topics, topics.url)


BROKERS: Mapping[QueueKind, Callable[[Path], AbstractAsyncContextManager[Broker]]] = {
    QueueKind.REDIS_STREAM: redis_streams,
    QueueKind.REDIS_LIST: redis_lists,
    QueueKind.RABBITMQ: rabbit,
    QueueKind.SQS: sqs,
    QueueKind.PUBSUB: pubsub,
}
"""What is run by kind of source. Each skips (pytest's Skipped) where there is no server."""
