"""A stream on a real server feeds jobs: entries are acknowledged, taken over from the dead, rejected, and
replied to."""

import json
from pathlib import Path

import pytest

from gateway.jobs.queues.redis_stream import RedisStreamSource
from gateway.jobs.queues.source import ReplyRefused
from tests.gateway.jobs.queues.redis_keys import redis_keys


async def test_entries_are_taken_settled_and_taken_over(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        stream, dead = f"{prefix}in", f"{prefix}dead"
        await client.xadd(stream, {"message": "early", "other": "x"})
        sources = [RedisStreamSource(url, stream, "g", dead, idle_s=0.0) for _ in range(2)]
        one, two = sources
        (early,) = await one.take(5, 0.05)
        assert early.body == b"early", "what was there before the group"
        await one.acknowledge(early)
        for number in range(3):
            await client.xadd(stream, {"any": f"{number}"})
        found = await one.take(2, 0.05)
        assert [each.body for each in found] == [b"0", b"1"]
        assert len({each.id for each in found}) == 2
        again = await two.take(1, 0.05)
        assert [(each.body, each.id) for each in again] == [(b"0", found[0].id)], "its taker is dead"
        await two.reject(again[0], "it is poison")
        await one.acknowledge(found[1])
        pending = await client.xpending(stream, "g")
        assert pending["pending"] == 0
        ((_, letter),) = await client.xrange(dead)
        assert (letter["message"], letter["reason"]) == ("0", "it is poison")
        for source in sources:
            await source.close()


async def test_what_a_killed_process_held_is_taken_at_its_next_start(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        stream, dead = f"{prefix}in", f"{prefix}dead"
        sources = [RedisStreamSource(url, stream, "g", dead, owner=owner) for owner in ("one", "two", "none")]
        killed, again, other = sources
        for number in range(5):
            await client.xadd(stream, {"message": f"{number}"})
        held = await killed.take(4, 0.05)
        await client.xdel(stream, held[0].handle)
        again.succeed("one")
        taken: list[bytes] = []
        while len(taken) < 4:
            found = await again.take(2, 0.05)
            assert 1 <= len(found) <= 2
            taken += [each.body for each in found]
        assert taken == [b"1", b"2", b"3", b"4"], "an entry that was deleted is none"
        other.succeed("nobody")
        assert await other.take(2, 0.05) == []
        consumers = {each["name"]: each["pending"] for each in await client.xinfo_consumers(stream, "g")}
        assert consumers["trunkline-two"] == 4
        assert "trunkline-one" not in consumers
        for source in sources:
            await source.close()


async def test_a_stream_that_was_removed_is_made_again(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        source = RedisStreamSource(url, f"{prefix}in", "g", f"{prefix}dead", clock=lambda: 0.0)
        assert await source.take(1, 0.01) == []
        source._claim_s = 1.0
        await client.delete(f"{prefix}in")
        assert await source.take(1, 0.01) == []
        await client.xadd(f"{prefix}in", {"message": "x"})
        assert [each.body for each in await source.take(1, 1.0)] == [b"x"]
        await source.close()


async def test_replies_are_entries(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        source = RedisStreamSource(url, f"{prefix}in", "g", f"{prefix}dead")
        await source.reply(f"{prefix}out", "7", 1, b'{"a": 1}')
        ((_, entry),) = await client.xrange(f"{prefix}out")
        assert (entry["id"], entry["sequence"], json.loads(entry["message"])) == ("7", "1", {"a": 1})
        await client.set(f"{prefix}text", "x")
        with pytest.raises(ReplyRefused, match="WRONGTYPE"):
            await source.reply(f"{prefix}text", "7", 1, b"{}")
        await source.close()


async def test_a_stream_that_is_gone_when_others_are_looked_after_is_made_again(tmp_path: Path) -> None:
    """As on a server that was started anew with nothing stored."""
    now = [0.0]
    async with redis_keys(tmp_path) as (client, url, prefix):
        source = RedisStreamSource(url, f"{prefix}in", "g", f"{prefix}dead", clock=lambda: now[0])
        assert await source.take(1, 0.01) == []
        await client.delete(f"{prefix}in")
        now[0] += 60.0
        assert await source.take(1, 0.01) == []
        await client.xadd(f"{prefix}in", {"message": "x"})
        assert [each.body for each in await source.take(1, 1.0)] == [b"x"]
        await source.close()


async def test_entries_are_taken_by_either_protocol(tmp_path: Path) -> None:
    async with redis_keys(tmp_path) as (client, url, prefix):
        for protocol in ("2", "3"):
            stream = f"{prefix}in{protocol}"
            source = RedisStreamSource(f"{url}/0?protocol={protocol}", stream, "g", f"{prefix}dead")
            assert await source.take(2, 0.01) == []
            for number in range(2):
                await client.xadd(stream, {"message": f"{number}"})
            assert [each.body for each in await source.take(2, 1.0)] == [b"0", b"1"]
            await source.close()
