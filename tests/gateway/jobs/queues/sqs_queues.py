"""Queues of one test on moto's server (:mod:`tests.support.sqs_server`)."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiobotocore.session

from tests.support.sqs_server import REGION

LIMIT_S = 30.0
SESSION = aiobotocore.session.get_session()


class Queues:
    """Makes queues, puts messages there and takes them, by names of the test's own."""

    def __init__(self, client: Any, url: str) -> None:
        self.client, self.url = client, url
        self._prefix = f"t-{uuid.uuid4().hex[:12]}"
        self.urls: dict[str, str] = {}

    def name(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    async def make(self, *names: str, **attributes: str) -> None:
        for name in names:
            if name.endswith(".fifo"):
                attributes |= {"FifoQueue": "true"}
            made = await self.client.create_queue(QueueName=self.name(name), Attributes=attributes)
            self.urls[name] = made["QueueUrl"]

    async def put(self, name: str, body: str, **given: Any) -> str:
        sent = await self.client.send_message(QueueUrl=self.urls[name], MessageBody=body, **given)
        return str(sent["MessageId"])

    async def get(self, name: str, wait_s: int = 10) -> dict[str, Any]:
        """The next message, which is deleted."""
        url = self.urls[name]
        found = await self.client.receive_message(
            QueueUrl=url,
            WaitTimeSeconds=wait_s,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        (message,) = found["Messages"]
        await self.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return dict(message)


@asynccontextmanager
async def sqs_queues(url: str, *names: str) -> AsyncIterator[Queues]:
    parts = urlsplit(url)
    endpoint = f"{parts.scheme}://{parts.netloc}"
    async with SESSION.create_client("sqs", region_name=REGION, endpoint_url=endpoint) as client:
        queues = Queues(client, url)
        await queues.make(*names)
        yield queues
