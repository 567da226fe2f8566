"""A gateway that was killed goes on at its next start with the messages and the replies that it held."""

import json
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway.storage import DATABASE_NAME
from tests.integration.conftest import MODEL
from tests.support.processes import Gateway, House, answer_to, until
from tests.support.redis_server import OwnRedisServer, own_redis_server

SOON_S = 25.0
"""A start of the gateway and its agent, and much less than the minute after which others take over."""

SETTINGS = """
[jobs]
look_s = 0.1
lease_s = 2.0
[[jobs.queues]]
name = "stream"
kind = "redis-stream"
url = "{url}"
queue = "stream"
key = "queues"
[[jobs.queues]]
name = "list"
kind = "redis-list"
url = "{url}"
queue = "list"
key = "queues"
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnRedisServer]:
    with own_redis_server(tmp_path) as server:
        yield server


def message(name: str, **body: object) -> str:
    content = {"model": MODEL, "messages": [{"role": "user", "content": name}], "max_tokens": 3}
    return json.dumps({"id": name, "body": content | body, "reply_to": f"{name}-out"})


def facts(gateway: Gateway, query: str) -> list[Any]:
    """The first column of what the gateway's database answers."""
    with closing(sqlite3.connect(gateway.state / DATABASE_NAME)) as raw:
        return [row[0] for row in raw.execute(query)]


def test_messages_and_replies_of_a_killed_gateway_wait_for_no_lease(
    house: House, redis: OwnRedisServer
) -> None:
    config = house.directory / "gateway.toml"
    config.write_text(SETTINGS.format(url=redis.url))
    environment = {"TRUNKLINE_GATEWAY_CONFIG": str(config)}
    gateway = house.gateway(environment=environment)
    engine = house.engine("--model", MODEL)
    gateway.key("queues")
    key = gateway.key("tests")
    house.agent(gateway, engine.url)
    house.wait_for_model(gateway, key, MODEL)
    client: Any = Redis.from_url(redis.url, decode_responses=True)
    with closing(client):
        client.xadd("stream", {"message": message("replied", script={"delay_s": 1.0})})
        until("an engine has the job", lambda: engine.stats()["running"], 30.0)
        redis.pause()
        leased = "SELECT count(*) FROM queue_jobs WHERE lease_until IS NOT NULL"
        until("its reply is being sent", lambda: facts(gateway, leased) == [1], 30.0)
        gateway.child.signal(signal.SIGKILL)
        house.children.stop(gateway.child)
        redis.go_on()
        hold(client, *facts(gateway, "SELECT value FROM facts WHERE name LIKE 'queue owner %'"))
        begun_s = time.monotonic()
        house.gateway(environment=environment, port=gateway.port)
        found: dict[str, Callable[[], list[str]]] = {
            "replied": lambda: [fields["message"] for _, fields in client.xrange("replied-out")],
            "streamed": lambda: [fields["message"] for _, fields in client.xrange("streamed-out")],
            "listed": lambda: client.lrange("listed-out", 0, -1),
        }
        for name, replies in found.items():
            until(f"{name} has its reply", replies, SOON_S)
            print(f"{name}: {time.monotonic() - begun_s:.1f} s")  # noqa: T201
        assert time.monotonic() - begun_s < SOON_S
        for name, replies in found.items():
            (said,) = {json.dumps(json.loads(each), sort_keys=True) for each in replies()}
            assert json.loads(said)["body"]["choices"][0]["message"]["content"] == answer_to(name, 3)
        assert client.keys("list:processing:*") == []
        assert client.xpending("stream", "trunkline")["pending"] == 0


def hold(client: Any, owner: str) -> None:
    """A message of each queue is as if the process called ``owner`` had just taken it."""
    client.xadd("stream", {"message": message("streamed")})
    client.xreadgroup("trunkline", f"trunkline-{owner}", {"stream": ">"}, count=1)
    client.rpush("list", message("listed"))
    client.lmove("list", f"list:processing:{owner}", "LEFT", "RIGHT")
    assert client.exists(f"list:alive:{owner}"), "it would be taken for alive"
