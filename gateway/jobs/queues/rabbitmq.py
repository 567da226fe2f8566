"""RabbitMQ queues: a consumer with credit for just as many messages as are wanted takes them, and each is
acknowledged by itself.

The id of a message is its member ``id``, else its property ``message_id`` or ``correlation_id``; its reply
goes to the queue that its member ``reply_to`` names, else its property. Dead letters and replies are
persistent, and the broker confirms them.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import aio_pika
import aiormq.exceptions
import yarl
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue

from gateway.jobs.queues.source import BrokerAway, ReplyRefused, TakenMessage

CONNECT_S = 10.0
ANSWER_S = 20.0
"""For what the broker confirms."""
REASON = "x-trunkline-reason"
NAME_BYTES = 255
"""Of a queue's name, and of the ids of a message."""
_LINGER_S = 0.02
"""After the first message, for those that are on their way with it."""

_FAILURES = (
    aio_pika.exceptions.AMQPError,
    aiormq.exceptions.ChannelInvalidStateError,
    aiormq.exceptions.ConnectionClosed,
    OSError,
    TimeoutError,
    RuntimeError,  # as of a connection that is closed, and of uvloop
)


class RabbitSource:
    """One queue, which must exist (:class:`gateway.jobs.queues.source.Source`). The queue of dead letters is
    made durable where it is missing."""

    def __init__(self, url: str, queue: str, dead_letter: str) -> None:
        """Raises ValueError for a URL that is none."""
        self._url, self._name, self._dead_letter = yarl.URL(url), queue, dead_letter
        self._connection: AbstractConnection | None = None
        self._taking: AbstractChannel | None = None
        self._sending: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None
        self._arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        """Never more than the consumer has credit for. A message may come just after its consumer has ended:
        it is the next to be taken."""
        self._connecting = asyncio.Lock()

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        with self._failures():
            async with asyncio.timeout(ANSWER_S + wait_s):
                queue = await self._open_queue()
                found = [] if self._arrived.empty() else await self._collect(most, wait_s)
                if not found:
                    await self._channel(self._taking).set_qos(prefetch_count=most)
                    tag = await queue.consume(self._arrived.put)
                    found = await self._collect(most, wait_s)
                    await queue.cancel(tag)
        return [_taken(each) for each in found]

    async def _collect(self, most: int, wait_s: float) -> list[AbstractIncomingMessage]:
        """What arrives: the first one within ``wait_s``, and those that come with it."""
        found: list[AbstractIncomingMessage] = []
        with contextlib.suppress(TimeoutError):
            while len(found) < most:
                async with asyncio.timeout(_LINGER_S if found else wait_s):
                    found.append(await self._arrived.get())
        return found

    async def acknowledge(self, message: TakenMessage) -> None:
        with self._failures():
            async with asyncio.timeout(ANSWER_S):
                await self._incoming(message).ack()

    async def reject(self, message: TakenMessage, reason: str) -> None:
        incoming = self._incoming(message)
        letter = aio_pika.Message(
            message.body,
            headers={**incoming.headers, REASON: reason},
            content_type=incoming.content_type,
            message_id=incoming.message_id,
            correlation_id=incoming.correlation_id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        with self._failures():
            async with asyncio.timeout(ANSWER_S):
                await self._open_queue()
                await self._publish(self._dead_letter, letter)
                await incoming.ack()

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        if len(to.encode()) > NAME_BYTES:
            raise ReplyRefused(f"{to}: a queue's name has {NAME_BYTES} bytes at most")
        message = aio_pika.Message(
            body,
            content_type="application/json",
            correlation_id=_fitting_id(message_id),
            message_id=_fitting_id(f"{message_id}.{sequence}"),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        with self._failures():
            async with asyncio.timeout(ANSWER_S):
                await self._open_queue()
                try:
                    await self._publish(to, message)
                except aio_pika.exceptions.DeliveryError as error:
                    raise ReplyRefused(f"{to}: the broker does not take it there: {_text(error)}") from error

    async def close(self) -> None:
        """What is not acknowledged goes to others at once."""
        connection, self._connection = self._connection, None
        self._queue = None
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CONNECT_S):
                    await connection.close()

    async def _open_queue(self) -> AbstractQueue:
        async with self._connecting:
            connection = self._connection
            if connection is None or connection.is_closed or self._queue is None or not self._is_open():
                await self.close()
                self._arrived = asyncio.Queue()
                self._connection = await aio_pika.connect(self._url, timeout=CONNECT_S)
                self._taking = await self._connection.channel()
                self._queue = await self._taking.get_queue(self._name, ensure=True)
                await self._make_dead_letters(self._connection)
                self._sending = await self._connection.channel(on_return_raises=True)
            return self._queue

    def _is_open(self) -> bool:
        channels = (self._taking, self._sending)
        return all(each is not None and not each.is_closed for each in channels)

    async def _make_dead_letters(self, connection: AbstractConnection) -> None:
        """One that there is stays as it is. Asking for one that there is not ends the channel."""
        asking = await connection.channel()
        try:
            await asking.get_queue(self._dead_letter, ensure=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            making = await connection.channel()
            await making.declare_queue(self._dead_letter, durable=True)
            await making.close()
        else:
            await asking.close()

    async def _publish(self, to: str, message: aio_pika.Message) -> None:
        channel = self._channel(self._sending)
        await channel.default_exchange.publish(message, routing_key=to, mandatory=True)

    def _channel(self, channel: AbstractChannel | None) -> AbstractChannel:
        assert channel is not None
        return channel

    def _incoming(self, message: TakenMessage) -> Any:
        return message.handle

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Whatever goes wrong inside is BrokerAway; the next call makes connection and channels anew."""
        try:
            yield
        except _FAILURES as error:
            self._queue = None
            raise BrokerAway(_text(error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._queue = None  # nobody cancels us: aiormq says so of a connection that it gives up
            raise BrokerAway("the connection is stuck") from error


def _taken(incoming: AbstractIncomingMessage) -> TakenMessage:
    stays = incoming.message_id or incoming.correlation_id
    return TakenMessage(incoming.body, incoming, stays, incoming.reply_to)


def _fitting_id(text: str) -> str:
    return text if len(text.encode()) <= NAME_BYTES else hashlib.sha256(text.encode()).hexdigest()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
