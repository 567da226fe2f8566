"""Topics and subscriptions of one test, on any server (:mod:`tests.support.pubsub_server`)."""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

LIMIT_S = 120.0
_AT_ONCE = 500


class Topics:
    """Makes topics with a subscription each, of the same name; puts messages there and takes them."""

    def __init__(self, host: str) -> None:
        self.project = f"p-{uuid.uuid4().hex[:12]}"
        self.url = f"pubsub+insecure://{host}/{self.project}"
        self._channel: Any = grpc.aio.insecure_channel(host)
        self._publisher = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=self._channel))
        self._subscriber = SubscriberAsyncClient(
            transport=SubscriberGrpcAsyncIOTransport(channel=self._channel)
        )

    def topic(self, name: str) -> str:
        return f"projects/{self.project}/topics/{name}"

    def subscription(self, name: str) -> str:
        return f"projects/{self.project}/subscriptions/{name}"

    async def make(self, *names: str, **given: Any) -> None:
        for name in names:
            await self._publisher.create_topic(request={"name": self.topic(name)})
            request = {"name": self.subscription(name), "topic": self.topic(name), **given}
            await self._subscriber.create_subscription(request=request)

    async def put(self, name: str, data: bytes, **attributes: str) -> str:
        messages = [{"data": data, "attributes": attributes}]
        found = await self._publisher.publish(request={"topic": self.topic(name), "messages": messages})
        return str(found.message_ids[0])

    async def put_all(self, name: str, datas: Sequence[bytes]) -> None:
        for start in range(0, len(datas), _AT_ONCE):
            messages = [{"data": data} for data in datas[start : start + _AT_ONCE]]
            await self._publisher.publish(request={"topic": self.topic(name), "messages": messages})

    async def get(self, name: str, *, most: int = 1, wait_s: float = LIMIT_S) -> list[Any]:
        """The next messages, which are acknowledged."""
        request = {"subscription": self.subscription(name), "max_messages": most}
        found = await self._subscriber.pull(request=request, retry=None, timeout=wait_s)
        messages = [each.message for each in found.received_messages]
        ack_ids = [each.ack_id for each in found.received_messages]
        if ack_ids:
            request = {"subscription": self.subscription(name), "ack_ids": ack_ids}
            await self._subscriber.acknowledge(request=request)
        return messages

    async def close(self) -> None:
        await self._channel.close()


@asynccontextmanager
async def pubsub_topics(host: str, *names: str) -> AsyncIterator[Topics]:
    topics = Topics(host)
    try:
        await topics.make(*names)
        yield topics
    finally:
        await topics.close()
