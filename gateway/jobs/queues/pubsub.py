"""Google Cloud Pub/Sub: messages are pulled from a subscription as there is room for their jobs, and replies
are published to topics.

The id of a message is its member ``id``, else Pub/Sub's own. Its reply goes to the topic that its member
``reply_to`` names, else its attribute of that name; the ordering key of a reply is its message's id, so
subscriptions that keep the order give a reader the replies to a message one after the other. Credentials are
Google's application default ones.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import google.api_core.exceptions as api_errors
import google.auth
import google.auth.exceptions
import grpc.aio
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from gateway.jobs.queues.held import HeldMessages
from gateway.jobs.queues.source import BrokerAway, ReplyRefused, ReplyTooLong, TakenMessage

PULL_S = 20.0
"""A request for messages waits so long."""
ANSWER_S = 15.0
MESSAGE_BYTES = 10_000_000
"""Longest message; what else a request has in it is not counted here."""
REASON, MESSAGE_ID = "trunkline-reason", "trunkline-message-id"
"""Attributes of dead letters."""
ATTRIBUTE_BYTES = 1024
DEADLINE_S = 60
"""For so long a message is asked for that is not settled at once."""
_FIRST_S = 4.0
"""No subscription lends messages for less than 10 s."""
_SPARE_BYTES = 16_384
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_HOST = "pubsub.googleapis.com"
_REFUSALS = (api_errors.NotFound, api_errors.PermissionDenied, api_errors.InvalidArgument)
_FAILURES = (
    api_errors.GoogleAPIError,
    google.auth.exceptions.GoogleAuthError,
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    OSError,
    TimeoutError,
    RuntimeError,
)


class PubSubSource:
    """One subscription, which must exist, as must the topic of dead letters
    (:class:`gateway.jobs.queues.source.Source`)."""

    def __init__(self, url: str, subscription: str, dead_letter: str, *, first_s: float = _FIRST_S) -> None:
        """Raises ValueError for a URL that is none."""
        self._host, self._project, self._insecure = pubsub_place(url)
        self._subscription = self._path("subscriptions", subscription)
        self._dead_letter = self._path("topics", dead_letter)
        self._subscriber: Any = None
        self._publisher: Any = None
        self._opening = asyncio.Lock()
        self._checked = False
        self._held = HeldMessages(self._renew, first_s, DEADLINE_S / 2)

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        request = {"subscription": self._subscription, "max_messages": most}
        with self._held.dropped_when_away(), self._failures(self._subscription):
            await self._open()
            await self._check()
            try:
                found = await self._subscriber.pull(request=request, retry=None, timeout=max(0.1, wait_s))
            except api_errors.DeadlineExceeded:
                return []
        messages = [_taken(each) for each in found.received_messages]
        self._held.add([_ack_id(each) for each in messages])
        return messages

    async def acknowledge(self, message: TakenMessage) -> None:
        await self._acknowledge(_ack_id(message))

    async def reject(self, message: TakenMessage, reason: str) -> None:
        ack_id, attributes = _handle(message)
        fitting = reason.encode()[:ATTRIBUTE_BYTES].decode(errors="ignore")
        kept = dict(list(attributes.items())[:90])
        letter = kept | {REASON: fitting, MESSAGE_ID: message.id or ""}
        with self._held.dropped_when_away(), self._failures(self._dead_letter):
            await self._open()
            await self._publish(self._dead_letter, {"data": message.body, "attributes": letter})
        await self._acknowledge(ack_id)

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        if len(body) > MESSAGE_BYTES - _SPARE_BYTES:
            raise ReplyTooLong(f"a message of Pub/Sub has {MESSAGE_BYTES} bytes at most")
        topic = self._path("topics", to)
        attributes = {"id": message_id, "sequence": str(sequence)}
        message = {"data": body, "attributes": attributes, "ordering_key": message_id}
        with self._failures(topic):
            await self._open()
            try:
                await self._publish(topic, message)
            except _REFUSALS as error:
                raise ReplyRefused(_text(error, topic)) from error

    async def close(self) -> None:
        """What is not settled goes to others at once."""
        handles = self._held.handles
        self._held.drop()
        if self._subscriber is not None and handles:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._lend(handles, 0)
        clients = (self._subscriber, self._publisher)
        self._subscriber = self._publisher = None
        for client in clients:
            if client is not None:
                with contextlib.suppress(Exception):
                    await client.transport.close()

    async def _open(self) -> None:
        async with self._opening:
            if self._subscriber is not None:
                return
            if self._insecure:
                options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
                channels = [grpc.aio.insecure_channel(self._host, options=options) for _ in range(2)]
                taking = SubscriberGrpcAsyncIOTransport(channel=channels[0])
                sending = PublisherGrpcAsyncIOTransport(channel=channels[1])
            else:
                found, _ = await asyncio.to_thread(google.auth.default, scopes=_SCOPES)
                taking = SubscriberGrpcAsyncIOTransport(host=self._host, credentials=found)
                sending = PublisherGrpcAsyncIOTransport(host=self._host, credentials=found)
            self._publisher = PublisherAsyncClient(transport=sending)
            self._subscriber = SubscriberAsyncClient(transport=taking)

    async def _check(self) -> None:
        """The topic of dead letters is there, as far as one may ask."""
        if self._checked:
            return
        with self._failures(self._dead_letter):
            try:
                await self._publisher.get_topic(
                    request={"topic": self._dead_letter}, retry=None, timeout=ANSWER_S
                )
            except api_errors.PermissionDenied:  # who may publish need not be allowed to look
                pass
        self._checked = True

    async def _publish(self, topic: str, message: dict[str, Any]) -> None:
        request = {"topic": topic, "messages": [message]}
        await self._publisher.publish(request=request, retry=None, timeout=ANSWER_S)

    async def _acknowledge(self, ack_id: str) -> None:
        """Settled, too, where it was lent for too short a time: it comes again, and makes no second job."""
        request = {"subscription": self._subscription, "ack_ids": [ack_id]}
        with self._held.dropped_when_away(), self._failures(self._subscription):
            await self._open()
            try:
                await self._subscriber.acknowledge(request=request, retry=None, timeout=ANSWER_S)
            except (api_errors.FailedPrecondition, api_errors.InvalidArgument):
                pass
        self._held.settle(ack_id)

    async def _renew(self, ack_ids: Sequence[str]) -> None:
        with self._failures(self._subscription):
            await self._lend(ack_ids, DEADLINE_S)

    async def _lend(self, ack_ids: Sequence[str], seconds: int) -> None:
        request = {
            "subscription": self._subscription,
            "ack_ids": list(ack_ids),
            "ack_deadline_seconds": seconds,
        }
        await self._subscriber.modify_ack_deadline(request=request, retry=None, timeout=ANSWER_S)

    def _path(self, kind: str, name: str) -> str:
        return name if name.startswith("projects/") else f"projects/{self._project}/{kind}/{name}"

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """Whatever goes wrong inside is BrokerAway; what was taken comes again."""
        try:
            yield
        except google.auth.exceptions.DefaultCredentialsError as error:
            raise BrokerAway("there are no Google credentials in the environment or of the host") from error
        except _FAILURES as error:
            raise BrokerAway(_text(error, name)) from error


def pubsub_place(url: str) -> tuple[str, str, bool]:
    """Host and port, project, and whether it is in the clear. Raises ValueError."""
    parts = urlsplit(url)
    _, project = parts.port, parts.path.strip("/")
    insecure = parts.scheme == "pubsub+insecure"
    if parts.username is not None or parts.password is not None:
        raise ValueError("Google credentials come from the environment or the host, and not from a URL")
    if not parts.netloc or "/" in project:
        raise ValueError("write pubsub://PROJECT, or pubsub://HOST/PROJECT")
    if project:
        return parts.netloc, project, insecure
    if insecure or parts.port is not None:
        raise ValueError(f"the project is missing: {parts.scheme}://HOST:PORT/PROJECT")
    return _HOST, parts.netloc, False


def _taken(received: Any) -> TakenMessage:
    message = received.message
    attributes = dict(message.attributes)
    return TakenMessage(
        bytes(message.data), (received.ack_id, attributes), message.message_id, attributes.get("reply_to")
    )


def _handle(message: TakenMessage) -> Any:
    return message.handle


def _ack_id(message: TakenMessage) -> str:
    return str(_handle(message)[0])


def _text(error: BaseException, name: str) -> str:
    said = getattr(error, "message", None) or str(error) or type(error).__name__
    if isinstance(error, api_errors.NotFound):
        return f"there is no {name}: {said}"
    if isinstance(error, api_errors.PermissionDenied):
        return f"the Google credentials have no permission for {name}: {said}"
    return f"{name}: {said}"
