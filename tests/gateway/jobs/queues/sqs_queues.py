"""Queues of one test on moto's server (:mod:`tests.support.sqs_server`)."""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiobotocore.session

from tests.support.sqs_server import REGION

LIMIT_S = 120.0
_AT_ONCE = 10
"""SQS takes and gives no more in one request."""
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

    async def put_all(self, name: str, bodies: Sequence[str]) -> None:
        for start in range(0, len(bodies), _AT_ONCE):
            some = enumerate(bodies[start : start + _AT_ONCE])
            entries = [{"Id": str(number), "MessageBody": body} for number, body in some]
            sent = await self.client.send_message_batch(QueueUrl=self.urls[name], Entries=entries)
            assert len(sent["Successful"]) == len(entries)

    async def get_all(self, name: str) -> list[str]:
        """The bodies of those that are there, which are deleted."""
        url, found = self.urls[name], list[str]()
        while True:
            got = await self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=_AT_ONCE)
            messages = got.get("Messages", [])
            if not messages:
                return found
            entries = [
                {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                for number, each in enumerate(messages)
            ]
            await self.client.delete_message_batch(QueueUrl=url, Entries=entries)
            found += [each["Body"] for each in messages]

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
