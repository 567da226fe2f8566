"""Queues of the settings feed a gateway's jobs, and their replies come back: on real Redis servers."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from gateway.app.queues import QueueParts, make_source
from gateway.auth.keys import KeyRing
from gateway.jobs.queues.pubsub import PubSubSource
from gateway.jobs.queues.rabbitmq import RabbitSource
from gateway.jobs.queues.redis_list import RedisListSource
from gateway.jobs.queues.redis_stream import RedisStreamSource
from gateway.jobs.queues.sqs import SqsSource
from gateway.runtime.config import ConfigError
from gateway.runtime.config.queues import QueueTable
from tests.gateway.jobs.queues.conftest import world
from tests.gateway.jobs.queues.fakes import QueueWorld
from tests.gateway.jobs.queues.pubsub_topics import pubsub_topics
from tests.gateway.jobs.queues.rabbit_queues import URL, rabbit_queues
from tests.gateway.jobs.queues.redis_keys import redis_keys
from tests.gateway.jobs.queues.sqs_queues import sqs_queues
from tests.support.pubsub_server import PubSubServer
from tests.support.sqs_server import set_credentials, sqs_server

__all__ = ["world"]

LIMIT_S = 120.0


def table(**given: Any) -> QueueTable:
    usual = {"name": "orders", "kind": "redis-stream", "url": "redis://h", "queue": "q", "key": "queue-key"}
    return QueueTable.model_validate(usual | given)


async def test_each_kind_has_its_source() -> None:
    for kind, url, source in (
        ("redis-stream", "redis://h", RedisStreamSource),
        ("redis-list", "redis://h", RedisListSource),
        ("rabbitmq", "amqp://h", RabbitSource),
        ("sqs", "sqs://eu-central-1", SqsSource),
        ("pubsub", "pubsub://my-project", PubSubSource),
    ):
        made = make_source(table(kind=kind, url=url))
        assert isinstance(made, source)
        await made.close()


def test_a_missing_library_and_a_bad_url_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="url of orders cannot be used"):
        make_source(table(url="redis://h:port"))
    for kind, url, module, extra in (
        ("redis-stream", "redis://h", "redis.asyncio", "redis"),
        ("rabbitmq", "amqp://h", "gateway.jobs.queues.rabbitmq", "rabbitmq"),
        ("sqs", "sqs://eu-central-1", "gateway.jobs.queues.sqs", "sqs"),
        ("pubsub", "pubsub://p", "gateway.jobs.queues.pubsub", "pubsub"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf"pip install 'trunkline\[{extra}\]'"):
            make_source(table(kind=kind, url=url))


async def run_one(world: QueueWorld, queue: QueueTable) -> tuple[asyncio.Task[None], str]:
    """Take the queue's one message and answer its job; what runs the queue, and the job's id."""
    world.store.keys.create("queue-key", "acme", 1.0)
    ring = KeyRing(world.store)
    parts = QueueParts([queue], world.store, world.jobs, world.answers, ring, world.metrics.registry)
    running = asyncio.create_task(parts.run())
    async with asyncio.timeout(LIMIT_S):
        while not world.listed():
            assert not running.done()
            await asyncio.sleep(0.02)
    job = world.begin()
    assert job.new.tenant == "acme"
    output = await world.write(job, b"data: 1\n\n")
    await world.end(job, output)
    return running, job.id


async def stop(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


ASK = {"id": "7", "body": {"model": "m", "messages": []}}


async def test_a_stream_feeds_jobs_and_gets_their_answers(world: QueueWorld, tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        world.metrics.registry = type(world.metrics.registry)()
        message = json.dumps(ASK | {"stream": True, "reply_to": f"{prefix}out"})
        await client.xadd(f"{prefix}in", {"message": message})
        running, job_id = await run_one(world, table(url=url, queue=f"{prefix}in"))
        said: list[dict[str, Any]] = []
        async with asyncio.timeout(LIMIT_S):
            while not said or said[-1]["type"] != "result":
                found = await client.xrange(f"{prefix}out")
                said = [json.loads(fields["message"]) for _, fields in found]
                await asyncio.sleep(0.02)
        assert [(each["id"], each["job"], each["sequence"]) for each in said] == [
            ("7", job_id, 1),
            ("7", job_id, 2),
        ]
        assert said[0]["data"] == "data: 1\n\n"
        assert (await client.xpending(f"{prefix}in", "trunkline"))["pending"] == 0
        await stop(running)


async def test_a_list_feeds_jobs_and_gets_their_answers(world: QueueWorld, tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        world.metrics.registry = type(world.metrics.registry)()
        await client.rpush(f"{prefix}in", json.dumps(ASK | {"reply_to": f"{prefix}out"}))
        running, job_id = await run_one(world, table(kind="redis-list", url=url, queue=f"{prefix}in"))
        _, reply = await client.blpop(f"{prefix}out", timeout=LIMIT_S)
        said = json.loads(reply)
        assert (said["job"], said["type"], said["body"]) == (job_id, "result", "data: 1\n\n")
        await stop(running)


async def test_rabbitmq_feeds_jobs_and_gets_their_answers(world: QueueWorld) -> None:
    async with rabbit_queues("in", "out") as (channel, names):
        world.metrics.registry = type(world.metrics.registry)()
        body = json.dumps({"body": ASK["body"]}).encode()
        message = aio_pika.Message(body, message_id="7", reply_to=names["out"])
        await channel.default_exchange.publish(message, names["in"])
        queue = table(kind="rabbitmq", url=URL, queue=names["in"], dead_letter=names["dead"])
        running, job_id = await run_one(world, queue)
        out, reply = await channel.get_queue(names["out"]), None
        async with asyncio.timeout(LIMIT_S):
            while reply is None:
                reply = await out.get(no_ack=True, fail=False)
                await asyncio.sleep(0.02)
        said = json.loads(reply.body)
        assert (said["id"], said["job"], said["body"]) == ("7", job_id, "data: 1\n\n")
        await stop(running)


async def test_sqs_feeds_jobs_and_gets_their_answers(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch)
    with sqs_server() as url:
        async with sqs_queues(url, "in", "in-dead", "out") as queues:
            world.metrics.registry = type(world.metrics.registry)()
            await queues.put("in", json.dumps(ASK | {"reply_to": queues.name("out")}))
            await queues.put("in", "poison")
            queue = table(kind="sqs", url=url, queue=queues.urls["in"], dead_letter=queues.name("in-dead"))
            running, job_id = await run_one(world, queue)
            said = json.loads((await queues.get("out", 20))["Body"])
            assert (said["job"], said["type"], said["body"]) == (job_id, "result", "data: 1\n\n")
            assert (await queues.get("in-dead", 20))["Body"] == "poison"
            await stop(running)


async def test_pubsub_feeds_jobs_and_gets_their_answers(world: QueueWorld) -> None:
    with PubSubServer() as server:
        async with pubsub_topics(server.host, "prompts", "prompts.dead", "answers") as topics:
            world.metrics.registry = type(world.metrics.registry)()
            await topics.put("prompts", json.dumps(ASK).encode(), reply_to="answers")
            await topics.put("prompts", b"poison")
            queue = table(kind="pubsub", url=topics.url, queue=topics.subscription("prompts"))
            running, job_id = await run_one(world, queue)
            (reply,) = await topics.get("answers")
            said = json.loads(reply.data)
            assert (said["job"], said["type"], said["body"]) == (job_id, "result", "data: 1\n\n")
            (letter,) = await topics.get("prompts.dead")
            assert letter.data == b"poison"
            await stop(running)
