"""Messages of every kind of queue survive a gateway that is killed in the middle of them: none is lost, and
none is doubled for a reader that goes by sequence and offset.

SQS is moto's server, Pub/Sub the emulator or its stand-in (:mod:`tests.support.pubsub_server`). Kinds whose
server is not there are skipped.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import uuid
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aio_pika
import pytest
from redis import Redis

from gateway.storage import Store
from tests.gateway.jobs.queues.pubsub_topics import Topics
from tests.gateway.jobs.queues.rabbit_queues import URL as RABBIT_URL
from tests.gateway.jobs.queues.sqs_queues import sqs_queues
from tests.integration.conftest import MODEL
from tests.support.processes import Gateway, House, answer_to, until
from tests.support.pubsub_server import pubsub_host
from tests.support.redis_server import redis_server
from tests.support.sqs_server import set_credentials, sqs_server

KINDS = ("redis-stream", "redis-list", "rabbitmq", "sqs", "pubsub")
MESSAGES = 8
TOKENS = 12
LIMIT_S = 240.0
"""What a killed gateway held is given to another after a minute."""


class Broker(Protocol):
    """One queue, and where its replies arrive."""

    settings: dict[str, str]
    reply_to: str

    def put(self, message: bytes) -> None: ...

    def get(self) -> list[bytes]:
        """Replies that came since this was asked last."""
        ...


class StreamBroker:
    def __init__(self, client: Any, url: str, prefix: str) -> None:
        self.settings, self.reply_to = {"url": url, "queue": f"{prefix}in"}, f"{prefix}out"
        self._client, self._last = client, "0"

    def put(self, message: bytes) -> None:
        self._client.xadd(self.settings["queue"], {"message": message})

    def get(self) -> list[bytes]:
        found = self._client.xrange(self.reply_to, f"({self._last}" if self._last != "0" else "-")
        if found:
            self._last = found[-1][0].decode()
        return [fields[b"message"] for _, fields in found]


class ListBroker:
    def __init__(self, client: Any, url: str, prefix: str) -> None:
        self.settings, self.reply_to = {"url": url, "queue": f"{prefix}list-in"}, f"{prefix}list-out"
        self._client = client

    def put(self, message: bytes) -> None:
        self._client.rpush(self.settings["queue"], message)

    def get(self) -> list[bytes]:
        return self._client.lpop(self.reply_to, 1000) or []


Run = Callable[[Coroutine[Any, Any, Any]], Any]


class RabbitBroker:
    def __init__(self, run: Run, channel: Any, prefix: str) -> None:
        self.settings, self.reply_to = {"url": RABBIT_URL, "queue": f"{prefix}in"}, f"{prefix}out"
        self._run, self._channel = run, channel
        run(channel.declare_queue(f"{prefix}in", durable=True))
        self._out = run(channel.declare_queue(self.reply_to, durable=True))

    def put(self, message: bytes) -> None:
        sent = aio_pika.Message(message)
        self._run(self._channel.default_exchange.publish(sent, self.settings["queue"]))

    def get(self) -> list[bytes]:
        found: list[bytes] = []
        while (message := self._run(self._out.get(no_ack=True, fail=False))) is not None:
            found.append(message.body)
        return found

    def remove(self) -> None:
        for name in (self.settings["queue"], self.reply_to, f"{self.settings['queue']}.dead"):
            self._run(self._channel.queue_delete(name))


class SqsBroker:
    def __init__(self, run: Run, queues: Any) -> None:
        run(queues.make("in", "in-dead", "out.fifo"))
        self.settings = {"url": queues.url, "queue": queues.name("in")}
        self.reply_to = queues.name("out.fifo")
        self._run, self._queues = run, queues

    def put(self, message: bytes) -> None:
        self._run(self._queues.put("in", message.decode()))

    def get(self) -> list[bytes]:
        found: list[bytes] = []
        with contextlib.suppress(KeyError):  # there is none
            while True:
                found.append(self._run(self._queues.get("out.fifo", 0))["Body"].encode())
        return found


class PubSubBroker:
    def __init__(self, run: Run, topics: Topics) -> None:
        run(topics.make("prompts", "prompts.dead"))
        run(topics.make("answers", enable_message_ordering=True))
        self.settings, self.reply_to = {"url": topics.url, "queue": "prompts"}, "answers"
        self._run, self._topics = run, topics

    def put(self, message: bytes) -> None:
        self._run(self._topics.put("prompts", message))

    def get(self) -> list[bytes]:
        from google.api_core.exceptions import DeadlineExceeded

        with contextlib.suppress(DeadlineExceeded):
            return [each.data for each in self._run(self._topics.get("answers", most=100, wait_s=0.5))]
        return []


class Reader:
    """What one reads who goes by sequence and offset."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.replies: dict[str, list[dict[str, Any]]] = {}
        self._seen: dict[str, set[int]] = {}

    def read(self) -> None:
        for body in self.broker.get():
            said = json.loads(body)
            replies, seen = (
                self.replies.setdefault(said["id"], []),
                self._seen.setdefault(said["id"], set()),
            )
            if said["sequence"] not in seen:
                seen.add(said["sequence"])
                replies.append(said)

    def results(self) -> int:
        self.read()
        return sum(any(said["type"] == "result" for said in each) for each in self.replies.values())

    def has(self, results: int) -> bool:
        return self.results() >= results

    def answer(self, name: str) -> str:
        """The text that the model wrote."""
        found = b""
        for said in sorted(self.replies[name], key=lambda each: each["sequence"]):
            if said["type"] == "restart":
                found = b""
            elif said["type"] == "output":
                assert said["offset"] <= len(found), "something is missing"
                data = said["data"].encode() if "data" in said else base64.b64decode(said["data_base64"])
                found = found[: said["offset"]] + data
            elif "body" in said:
                assert said["status"] == "succeeded"
                return str(said["body"]["choices"][0]["message"]["content"])
        chunks = [json.loads(line[6:]) for line in found.split(b"\n") if line.startswith(b"data: {")]
        return "".join(each["delta"].get("content") or "" for chunk in chunks for each in chunk["choices"])


@contextlib.contextmanager
def brokers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Broker]]:
    """Those whose servers are there, by kind."""
    found: dict[str, Broker] = {}
    prefix = f"trunkline-test-{uuid.uuid4().hex}-"
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        with contextlib.suppress(pytest.skip.Exception):
            url, keys = stack.enter_context(redis_server(directory))
            client = Redis.from_url(url)
            stack.callback(lambda: client.delete(*(client.keys(f"{keys}*") or [keys])))
            found["redis-stream"] = StreamBroker(client, url, keys)
            found["redis-list"] = ListBroker(client, url, keys)
        with contextlib.suppress(OSError, aio_pika.exceptions.AMQPError):
            connection = runner.run(aio_pika.connect(RABBIT_URL, timeout=5.0))
            stack.callback(lambda: runner.run(connection.close()))

            async def channel() -> Any:
                return await connection.channel()

            rabbit = RabbitBroker(runner.run, runner.run(channel()), prefix)
            stack.callback(rabbit.remove)
            found["rabbitmq"] = rabbit
        set_credentials(monkeypatch)
        queues = sqs_queues(stack.enter_context(sqs_server()))
        found["sqs"] = SqsBroker(runner.run, runner.run(queues.__aenter__()))
        stack.callback(lambda: runner.run(queues.__aexit__(None, None, None)))

        async def topics() -> Topics:
            return Topics(host)

        host = stack.enter_context(pubsub_host())
        made = runner.run(topics())
        stack.callback(lambda: runner.run(made.close()))
        found["pubsub"] = PubSubBroker(runner.run, made)
        yield found


def settings(found: dict[str, Broker]) -> str:
    tables = ["[jobs]", "look_s = 0.1", "lease_s = 2.0"]
    for kind, broker in found.items():
        tables += [
            "[[jobs.queues]]",
            f'name = "{kind}"',
            f'kind = "{kind}"',
            'key = "queues"',
            "prefetch = 2",
        ]
        tables += [f"{name} = {json.dumps(value)}" for name, value in broker.settings.items()]
    return "\n".join(tables)


def message(kind: str, number: int, reply_to: str) -> bytes:
    """Every second one has its answer sent while it is written."""
    name = f"{kind}-{number}"
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": name}],
        "max_tokens": TOKENS,
        "script": {"tokens_per_s": 40.0},
    }
    given = {"stream": number % 2 == 0, "reply_to": reply_to, "metadata": {"message": name}}
    return json.dumps({"id": name, "body": body, **given}).encode()


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Reader], Gateway]]:
    """What came of the messages of every kind, by the time all of them are answered."""
    directory = tmp_path_factory.mktemp("queues")
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        brokers(directory, monkeypatch) as found,
        House(directory) as house,
    ):
        credentials = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        config = directory / "gateway.toml"
        config.write_text(settings(found))
        environment = {"TRUNKLINE_GATEWAY_CONFIG": str(config), **credentials}
        gateway = house.gateway(environment=environment)
        engine = house.engine("--model", MODEL)
        gateway.key("queues")
        key = gateway.key("tests")
        house.agent(gateway, engine.url, environment={"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"})
        house.wait_for_model(gateway, key, MODEL)
        readers = {kind: Reader(broker) for kind, broker in found.items()}
        for number in range(MESSAGES):
            for kind, broker in found.items():
                broker.put(message(kind, number, broker.reply_to))
        for kind, reader in readers.items():
            until(f"{kind} has some replies", reader.results, LIMIT_S)
        gateway.child.signal(signal.SIGKILL)
        house.children.stop(gateway.child)
        house.gateway(environment=environment, port=gateway.port)
        for kind, reader in readers.items():
            until(f"{kind} has all replies", partial(reader.has, MESSAGES), LIMIT_S, most_s=0.5)
        yield readers, gateway


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_gateway_loses_and_doubles_no_message(
    readers: tuple[dict[str, Reader], Gateway], kind: str
) -> None:
    found, gateway = readers
    if kind not in found:
        pytest.skip(f"there is no server for {kind}")
    reader, names = found[kind], [f"{kind}-{number}" for number in range(MESSAGES)]
    assert {name: reader.answer(name) for name in names} == {name: answer_to(name, TOKENS) for name in names}
    assert sorted(reader.replies) == names
    for name, replies in reader.replies.items():
        assert [said["type"] for said in replies].count("result") == 1
        assert len({said["job"] for said in replies}) == 1, name
    with Store.open(gateway.state) as store:
        made = [job.new.metadata["message"] for job in store.jobs.list(limit=1000) if job.new.metadata]
    assert sorted(name for name in made if name in names) == names, "each message has one job"
