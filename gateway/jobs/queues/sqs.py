"""Amazon SQS queues, standard and FIFO: long polls take messages, and what is not settled yet stays invisible
to others for as long as it is worked on.

The id of a message is its member ``id``, else the deduplication id that its sender gave, else SQS's own. Its
reply goes to the queue that its member ``reply_to`` names, by name or URL, else its attribute of that name.
Dead letters and replies on FIFO queues keep the order: the group of a reply is its message's id. Credentials
are AWS's own, from the environment, the profile or the host.
"""

import asyncio
import contextlib
import functools
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiobotocore.config
import aiobotocore.session
import aiohttp
import botocore.exceptions

from gateway.jobs.queues.held import HeldMessages
from gateway.jobs.queues.source import BrokerAway, ReplyRefused, ReplyTooLong, TakenMessage

LONG_POLL_S = 20.0
"""As long as SQS lets a request for messages wait."""
MESSAGE_BYTES = 1_048_576
"""Longest message, attributes included, since August 2025. A queue may take less; older ones take
``OLD_MESSAGE_BYTES``."""
OLD_MESSAGE_BYTES = 262_144
VISIBILITY_S = 60
REASON, SOURCE_QUEUE, MESSAGE_ID = "TrunklineReason", "TrunklineQueue", "TrunklineMessageId"
"""Attributes of dead letters."""
_ATTRIBUTES = 10
"""Of one message, at the most."""
_AT_ONCE = 10
"""Messages of one request."""
_URLS = 1000
_CONNECT_S, _READ_S = 10.0, LONG_POLL_S + 10.0
_ATTEMPTS = 2
"""Of a request, before the broker is away."""
_CONNECTIONS = 64
_PIECE_BYTES = 65_536

_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+\Z")
_AWS_HOST = re.compile(r"sqs(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)\Z")
_FIFO_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")
_UNFIT = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
"""Characters that SQS does not take, as JSON's strings may have them."""

_MISSING = frozenset(("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"))
_DENIED = frozenset(
    ("AccessDenied", "AccessDeniedException", "KmsAccessDenied", "KMS.AccessDeniedException", "403")
)
"""The last of them without a code, as of a proxy."""
_UNFITTING = frozenset(
    (
        "InvalidParameterValue",
        "InvalidMessageContents",
        "InvalidAttributeValue",
        "MissingParameter",
        "UnsupportedOperation",
        "AWS.SimpleQueueService.UnsupportedOperation",
    )
)
_STALE = frozenset(("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"))
_FAILURES = (
    botocore.exceptions.BotoCoreError,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    RuntimeError,
    ValueError,  # as of an endpoint whose host has an underscore
)


class SqsSource:
    """One queue, which must exist, as must that of dead letters
    (:class:`gateway.jobs.queues.source.Source`)."""

    def __init__(self, url: str, queue: str, dead_letter: str, *, visibility_s: int = VISIBILITY_S) -> None:
        """``queue`` and ``dead_letter``: names or URLs. Raises ValueError for a URL that is none."""
        self._endpoint, self._region = sqs_endpoint(url)
        self._queue, self._dead_letter = queue, dead_letter
        self._visibility_s = visibility_s
        self._client: Any = None
        self._opening = asyncio.Lock()
        self._urls: dict[str, str] = {}
        self._held = HeldMessages(self._renew, visibility_s / 2, visibility_s / 2)

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        with self._held.dropped_when_away(), self._failures(self._queue, "sqs:ReceiveMessage"):
            client = await self._open()
            found = await client.receive_message(
                QueueUrl=await self._url(self._queue),
                MaxNumberOfMessages=min(_AT_ONCE, most),
                WaitTimeSeconds=int(min(LONG_POLL_S, wait_s)),
                VisibilityTimeout=self._visibility_s,
                MessageSystemAttributeNames=["MessageGroupId", "MessageDeduplicationId"],
                MessageAttributeNames=["All"],
            )
        messages = found.get("Messages", ())
        self._held.add([each["ReceiptHandle"] for each in messages])
        return [_taken(each) for each in messages]

    async def acknowledge(self, message: TakenMessage) -> None:
        await self._settle(_raw(message))

    async def reject(self, message: TakenMessage, reason: str) -> None:
        raw = _raw(message)
        with self._held.dropped_when_away(), self._failures(self._dead_letter, "sqs:SendMessage"):
            given = {"MessageBody": raw["Body"], "MessageAttributes": self._letter(raw, reason)}
            if self._dead_letter.endswith(".fifo"):
                group = raw.get("Attributes", {}).get("MessageGroupId", raw["MessageId"])
                given |= {"MessageGroupId": group, "MessageDeduplicationId": raw["MessageId"]}
            client = await self._open()
            await client.send_message(QueueUrl=await self._url(self._dead_letter), **given)
        await self._settle(raw)

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        attributes = {"id": _string(message_id), "sequence": {**_string(str(sequence)), "DataType": "Number"}}
        text = body.decode().translate(_UNFIT)
        if len(text.encode()) + _size(attributes) > MESSAGE_BYTES:
            raise ReplyTooLong(f"a message of SQS has {MESSAGE_BYTES} bytes at most")
        given: dict[str, Any] = {"MessageBody": text, "MessageAttributes": attributes}
        if to.endswith(".fifo"):
            given["MessageGroupId"] = _fifo_id(message_id)
            given["MessageDeduplicationId"] = _fifo_id(f"{message_id}.{sequence}")
        with self._failures(to, "sqs:SendMessage"):
            client = await self._open(check=False)
            try:
                await client.send_message(QueueUrl=await self._url(to), **given)
            except botocore.exceptions.ClientError as error:
                code = _code(error)
                if code in _UNFITTING and len(body) + _size(attributes) > OLD_MESSAGE_BYTES:
                    raise ReplyTooLong(f"the queue {to} takes shorter messages only") from error
                if code in _MISSING | _DENIED | _UNFITTING:
                    raise ReplyRefused(self._text(error, to, "sqs:SendMessage")) from error
                raise

    async def close(self) -> None:
        """What is not settled goes to others at once."""
        handles = self._held.handles
        self._held.drop()
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._change_visibility(client, handles, 0)
            with contextlib.suppress(Exception):
                await client.__aexit__(None, None, None)

    # --- The queue ---

    async def _open(self, *, check: bool = True) -> Any:
        """The client. ``check``: once the queues are known to be there."""
        async with self._opening:
            if self._client is None:
                session = await asyncio.to_thread(_loaded_session)
                config = aiobotocore.config.AioConfig(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    max_pool_connections=_CONNECTIONS,
                    retries={"mode": "standard", "max_attempts": _ATTEMPTS},
                )
                context = session.create_client(
                    "sqs", region_name=self._region, endpoint_url=self._endpoint, config=config
                )
                self._client = await context.__aenter__()
                self._client.meta.events.register("before-send.sqs", _send_long_body)
            if check:
                for name in (self._queue, self._dead_letter):
                    if name not in self._urls:
                        with self._failures(name, "sqs:GetQueueUrl"):
                            await self._url(name)
            return self._client

    async def _url(self, name: str) -> str:
        """Of a queue; raises ClientError where there is none."""
        if name.startswith(("http://", "https://")):
            return name
        found = self._urls.get(name)
        if found is None:
            found = str((await self._client.get_queue_url(QueueName=name))["QueueUrl"])
            if len(self._urls) >= _URLS:
                self._urls.clear()
            self._urls[name] = found
        return found

    async def _settle(self, raw: Mapping[str, Any]) -> None:
        """Settled, too, where another process has the message by now."""
        handle = raw["ReceiptHandle"]
        with self._held.dropped_when_away(), self._failures(self._queue, "sqs:DeleteMessage"):
            client = await self._open()
            try:
                await client.delete_message(QueueUrl=await self._url(self._queue), ReceiptHandle=handle)
            except botocore.exceptions.ClientError as error:
                if _code(error) not in _STALE:
                    raise
        self._held.settle(handle)

    async def _renew(self, handles: Sequence[str]) -> None:
        with self._failures(self._queue, "sqs:ChangeMessageVisibility"):
            await self._change_visibility(self._client, handles, self._visibility_s)

    async def _change_visibility(self, client: Any, handles: Sequence[str], seconds: int) -> None:
        for at in range(0, len(handles), _AT_ONCE):
            entries = [
                {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
                for number, handle in enumerate(handles[at : at + _AT_ONCE])
            ]
            url = await self._url(self._queue)
            await client.change_message_visibility_batch(QueueUrl=url, Entries=entries)

    def _letter(self, raw: Mapping[str, Any], reason: str) -> dict[str, dict[str, Any]]:
        """The reason, and then of the others as many as there is room for."""
        left = MESSAGE_BYTES - len(raw["Body"].encode())
        offered = {REASON: _string(_fit(reason, left - len(REASON) - len("String")))}
        offered |= {MESSAGE_ID: _string(raw["MessageId"]), SOURCE_QUEUE: _string(self._queue)}
        found: dict[str, dict[str, Any]] = {}
        for name, value in (offered | raw.get("MessageAttributes", {})).items():
            size = _size({name: value})
            if len(found) < _ATTRIBUTES and size <= left and value.get("StringValue") != "":
                found[name] = value
                left -= size
        return found

    @contextlib.contextmanager
    def _failures(self, name: str, action: str) -> Iterator[None]:
        """Whatever goes wrong inside is BrokerAway; what was taken comes again."""
        try:
            yield
        except botocore.exceptions.ClientError as error:
            if _code(error) in _MISSING:
                self._urls.pop(name, None)  # it may be made anew, at another URL
            raise BrokerAway(self._text(error, name, action)) from error
        except botocore.exceptions.NoCredentialsError as error:
            raise BrokerAway("there are no AWS credentials in the environment, profile or host") from error
        except botocore.exceptions.NoRegionError as error:
            raise BrokerAway("no AWS region is known: write sqs://REGION, or set AWS_REGION") from error
        except _FAILURES as error:
            raise BrokerAway(str(error) or type(error).__name__) from error

    def _text(self, error: Any, name: str, action: str) -> str:
        code, where = _code(error), self._endpoint or self._region or "the region of the environment"
        message = error.response.get("Error", {}).get("Message", "")
        if code in _MISSING:
            return f"there is no queue {name} at {where}"
        if code in _DENIED:
            return f"the AWS credentials have no permission {action} for the queue {name}: {message}"
        return f"{action} for the queue {name}: {code}: {message}"


def sqs_endpoint(url: str) -> tuple[str | None, str | None]:
    """Where requests go, None: to AWS's own; and the region, None: that of the environment. Raises
    ValueError."""
    parts = urlsplit(url)
    host, _ = parts.hostname or "", parts.port
    if parts.username is not None or parts.password is not None:
        raise ValueError("AWS credentials come from the environment, the profile or the host, not from a URL")
    if parts.path.strip("/"):
        raise ValueError("it ends with the host; the queue's own URL goes into 'queue'")
    if parts.scheme == "sqs":
        if not _REGION.match(parts.netloc):
            raise ValueError("after sqs:// an AWS region is needed, such as eu-central-1")
        return None, parts.netloc
    if not host:
        raise ValueError("it has no host")
    named = parse_qs(parts.query).get("region", [None])[0]
    found = _AWS_HOST.match(host)
    return f"{parts.scheme}://{parts.netloc}", named or (found[1] if found else None)


@functools.cache
def _loaded_session() -> Any:
    """One for all sources. It has read the descriptions that clients are made of, so that making one reads no
    files."""
    session = aiobotocore.session.get_session()
    loader = session.get_component("data_loader")
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
        loader.load_data(name)
    for kind in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("sqs", kind)
    return session


def _send_long_body(request: Any, **event: object) -> None:
    """In pieces: writing a long body at once would hold up the event loop."""
    if isinstance(request.body, bytes) and len(request.body) > _PIECE_BYTES:
        request.body = io.BytesIO(request.body)


def _taken(raw: Mapping[str, Any]) -> TakenMessage:
    given = raw.get("Attributes", {}).get("MessageDeduplicationId")
    if given == hashlib.sha256(raw["Body"].encode()).hexdigest():
        given = None  # of the content: two messages may say the same
    reply_to = raw.get("MessageAttributes", {}).get("reply_to", {}).get("StringValue")
    return TakenMessage(raw["Body"].encode(), raw, given or raw["MessageId"], reply_to)


def _raw(message: TakenMessage) -> Any:
    return message.handle


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _string(text: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": text}


def _fit(text: str, most: int) -> str:
    """As much of a text as has so many bytes."""
    return text.encode()[: max(0, most)].decode(errors="ignore")


def _size(attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """As SQS counts: names, types and values."""
    return sum(
        len(name.encode())
        + len(value["DataType"])
        + len(value.get("StringValue", "").encode() or value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )


def _fifo_id(text: str) -> str:
    return text if _FIFO_ID.match(text) else hashlib.sha256(text.encode()).hexdigest()
