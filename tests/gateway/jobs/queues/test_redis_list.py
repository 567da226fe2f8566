"""A list on a real server feeds jobs: what was taken is kept, comes again, and goes back when its taker
died."""

import json
from pathlib import Path

import pytest

from gateway.jobs.queues.redis_list import RedisListSource
from gateway.jobs.queues.source import ReplyRefused
from tests.gateway.jobs.queues.redis_keys import redis_keys


async def test_messages_are_taken_settled_and_go_back(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        name, dead = f"{prefix}in", f"{prefix}dead"
        one, two = (RedisListSource(url, name, dead, clock=lambda: 0.0) for _ in range(2))
        await client.rpush(name, "a", "b", "c", "d")
        found = await one.take(3, 0.05)
        assert [each.body for each in found] == [b"a", b"b", b"c"]
        await one.acknowledge(found[0])
        assert [each.body for each in await one.take(3, 0.05)] == [b"b", b"c"], "what is not settled"
        await two._say_alive()
        await two._take_over()
        assert await client.lrange(name, 0, -1) == ["d"], "the other one lives"
        await one.close()
        await two._take_over()
        assert [each.body for each in await two.take(9, 0.05)] == [b"b", b"c", b"d"], "in their order"
        (poison, *_) = await two.take(9, 0.05)
        await two.reject(poison, "it is poison")
        assert [json.loads(each) for each in await client.lrange(dead, 0, -1)] == [
            {"reason": "it is poison", "message": "b"}
        ]
        assert await client.lrange(two._processing(two._process), 0, -1) == ["c", "d"]
        assert await client.scard(f"{name}:processes") == 1
        await two.close()


async def test_what_a_killed_process_held_is_taken_at_its_next_start(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        name, dead = f"{prefix}in", f"{prefix}dead"
        killed, again = (RedisListSource(url, name, dead, owner=owner) for owner in ("first", "second"))
        await client.rpush(name, "a", "b", "c")
        assert [each.body for each in await killed.take(2, 0.05)] == [b"a", b"b"]
        again.succeed("first")
        found = await again.take(9, 0.05)
        assert [each.body for each in found] == [b"a", b"b", b"c"], "in their order"
        for message in found:
            await again.acknowledge(message)
        assert await client.smembers(f"{name}:processes") == {"second"}
        assert await client.keys(f"{name}:processing:*") == []
        for source in (killed, again):
            await source.close()


async def test_an_empty_list_is_waited_for_and_replies_are_pushed(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        source = RedisListSource(url, f"{prefix}in", f"{prefix}dead")
        assert await source.take(1, 0.05) == []
        for sequence in (1, 2):
            await source.reply(f"{prefix}out", "7", sequence, b"%d" % sequence)
        assert await client.lpop(f"{prefix}out") == "1"
        await client.set(f"{prefix}text", "x")
        with pytest.raises(ReplyRefused, match="WRONGTYPE"):
            await source.reply(f"{prefix}text", "7", 1, b"{}")
        await source.close()
