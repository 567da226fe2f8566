"""Google Pub/Sub for tests: the emulator that ``PUBSUB_EMULATOR_HOST`` names, else the one that is installed
with Google's command line tools, else :class:`PubSubServer`.

``PubSubServer`` is a stand-in that Google's own client talks gRPC with. It takes and gives the messages of
``google.pubsub_v1`` and does what the documentation says of topics, subscriptions, acknowledgement deadlines,
ordering keys and errors; nothing is kept when it ends.
"""

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from shared.process.ports import free_port

MESSAGE_BYTES = 10_000_000
_NAME = r"[A-Za-z][\w.~+%-]{2,254}"
START_S = 180.0
PULL_S = 90.0
"""An empty answer comes after so long."""


@dataclass
class _Lent:
    message: Any
    until_s: float


@dataclass
class _Subscription:
    topic: str
    ack_s: float
    is_ordered: bool
    waiting: list[Any] = field(default_factory=list)
    lent: dict[str, _Lent] = field(default_factory=dict)


class PubSubServer:
    """Enter it; it listens at ``host``."""

    def __init__(self) -> None:
        self.host = ""
        self.denied: set[str] = set()
        """Topics and subscriptions that nobody has a permission for."""
        self._topics: set[str] = set()
        self._subscriptions: dict[str, _Subscription] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._server: Any = None

    def __enter__(self) -> "PubSubServer":
        pool = futures.ThreadPoolExecutor(max_workers=16)
        options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(pool, options=options)
        for service, methods in (
            (
                "Publisher",
                {
                    "CreateTopic": (types.Topic, types.Topic.serialize, self._create_topic),
                    "GetTopic": (types.GetTopicRequest, types.Topic.serialize, self._get_topic),
                    "Publish": (types.PublishRequest, types.PublishResponse.serialize, self._publish),
                },
            ),
            (
                "Subscriber",
                {
                    "CreateSubscription": (types.Subscription, types.Subscription.serialize, self._subscribe),
                    "Pull": (types.PullRequest, types.PullResponse.serialize, self._pull),
                    "Acknowledge": (types.AcknowledgeRequest, Empty.SerializeToString, self._acknowledge),
                    "ModifyAckDeadline": (
                        types.ModifyAckDeadlineRequest,
                        Empty.SerializeToString,
                        self._modify,
                    ),
                },
            ),
        ):
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(act, request.deserialize, answer)
                for name, (request, answer, act) in methods.items()
            }
            generic = grpc.method_handlers_generic_handler(f"google.pubsub.v1.{service}", handlers)
            self._server.add_generic_rpc_handlers((generic,))
        self.host = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._server.stop(0).wait()

    # --- Publisher ---

    def _create_topic(self, request: Any, context: Any) -> Any:
        self._check_name(request.name, "topics", context)
        with self._changed:
            if request.name in self._topics:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "Resource already exists in the project")
            self._topics.add(request.name)
        return request

    def _get_topic(self, request: Any, context: Any) -> Any:
        self._check_topic(request.topic, context)
        return types.Topic(name=request.topic)

    def _publish(self, request: Any, context: Any) -> Any:
        self._check_topic(request.topic, context)
        ids = []
        with self._changed:
            for message in request.messages:
                if not message.data and not message.attributes:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Some messages are empty")
                if len(message.data) > MESSAGE_BYTES:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The value for message is too large")
                if any(len(value.encode()) > 1024 for value in message.attributes.values()):
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The attribute value is too large")
                ids.append(str(uuid.uuid4().int)[:16])
                message.message_id = ids[-1]
                for each in self._subscriptions.values():
                    if each.topic == request.topic:
                        each.waiting.append(message)
            self._changed.notify_all()
        return types.PublishResponse(message_ids=ids)

    # --- Subscriber ---

    def _subscribe(self, request: Any, context: Any) -> Any:
        self._check_name(request.name, "subscriptions", context)
        self._check_topic(request.topic, context)
        with self._changed:
            if request.name in self._subscriptions:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "Resource already exists in the project")
            ack_s = request.ack_deadline_seconds or 10
            made = _Subscription(request.topic, ack_s, request.enable_message_ordering)
            self._subscriptions[request.name] = made
        return request

    def _pull(self, request: Any, context: Any) -> Any:
        subscription = self._find(request.subscription, context)
        until_s = time.monotonic() + PULL_S
        with self._changed:
            while True:
                self._take_back(subscription)
                found = self._lend(subscription, request.max_messages)
                left_s = min(until_s - time.monotonic(), context.time_remaining() or PULL_S)
                if found or left_s <= 0 or not context.is_active() or self._stopping:
                    return types.PullResponse(received_messages=found)
                self._changed.wait(min(left_s, 0.05))

    def _lend(self, subscription: _Subscription, most: int) -> list[Any]:
        """The next messages. Of one ordering key only one batch is out at a time."""
        keys = {each.message.ordering_key for each in subscription.lent.values()} - {""}
        found: list[Any] = []
        left: list[Any] = []
        for message in subscription.waiting:
            key = message.ordering_key if subscription.is_ordered else ""
            if len(found) >= most or key in keys:
                left.append(message)
                keys |= {key} - {""}
                continue
            ack_id = uuid.uuid4().hex
            subscription.lent[ack_id] = _Lent(message, time.monotonic() + subscription.ack_s)
            found.append(types.ReceivedMessage(ack_id=ack_id, message=message))
        subscription.waiting = left
        return found

    def _take_back(self, subscription: _Subscription) -> None:
        now_s = time.monotonic()
        late = [ack_id for ack_id, each in subscription.lent.items() if each.until_s <= now_s]
        subscription.waiting = [subscription.lent.pop(ack_id).message for ack_id in late] + (
            subscription.waiting
        )

    def _acknowledge(self, request: Any, context: Any) -> Any:
        subscription = self._find(request.subscription, context)
        with self._changed:
            for ack_id in request.ack_ids:
                subscription.lent.pop(ack_id, None)
            self._changed.notify_all()
        return Empty()

    def _modify(self, request: Any, context: Any) -> Any:
        subscription = self._find(request.subscription, context)
        with self._changed:
            for ack_id in request.ack_ids:
                if ack_id in subscription.lent:
                    subscription.lent[ack_id].until_s = time.monotonic() + request.ack_deadline_seconds
            self._changed.notify_all()
        return Empty()

    # --- Errors ---

    def _check_name(self, name: str, kind: str, context: Any) -> None:
        project, _, rest = name.removeprefix("projects/").partition("/")
        if not project or not re.fullmatch(rf"{kind}/(?!goog){_NAME}", rest):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Invalid [{kind}] name: (name={name})")

    def _check_topic(self, name: str, context: Any) -> None:
        self._check_permission(name, context)
        if name not in self._topics:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name.split('/')[-1]})")

    def _find(self, name: str, context: Any) -> _Subscription:
        self._check_permission(name, context)
        found = self._subscriptions.get(name)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name.split('/')[-1]})")
        assert found is not None
        return found

    def _check_permission(self, name: str, context: Any) -> None:
        if name in self.denied:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "User not authorized to perform this action.")


@contextlib.contextmanager
def pubsub_host() -> Iterator[str]:
    """Where a server in the clear listens."""
    named, program = os.environ.get("PUBSUB_EMULATOR_HOST"), _emulator()
    if named:
        yield named
    elif program is not None:
        with _running(program) as host:
            yield host
    else:
        with PubSubServer() as server:
            yield server.host


def _emulator() -> list[str] | None:
    """How the emulator is started, if it is installed."""
    java, gcloud = shutil.which("java"), shutil.which("gcloud")
    if java is None or gcloud is None:
        return None
    platform = Path(gcloud).resolve().parent.parent / "platform"
    found = sorted(platform.glob("pubsub-emulator/lib/cloud-pubsub-emulator-*.jar"))
    return [java, "-Xmx256m", "-XX:+UseSerialGC", "-jar", str(found[-1])] if found else None


@contextlib.contextmanager
def _running(program: list[str]) -> Iterator[str]:
    port = free_port()
    words = [*program, "--host=127.0.0.1", f"--port={port}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(START_S)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
