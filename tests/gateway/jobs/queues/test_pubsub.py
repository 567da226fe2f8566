"""A subscription feeds jobs: messages are pulled, come again, are rejected, and replied to, in order.

Google's own client talks gRPC with Google's emulator where ``PUBSUB_EMULATOR_HOST`` names one or one is
installed, else with the stand-in of :mod:`tests.support.pubsub_server`; the first test is always run on both.
Permissions are tried on the stand-in only: the emulator has none.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.jobs.queues.pubsub import MESSAGE_ID, REASON, PubSubSource, pubsub_place
from gateway.jobs.queues.source import BrokerAway, ReplyRefused, ReplyTooLong
from shared.process.ports import free_port
from tests.gateway.jobs.queues.pubsub_topics import LIMIT_S, pubsub_topics
from tests.support.pubsub_server import PubSubServer, pubsub_host


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with pubsub_host() as host:
        yield host


@pytest.fixture(params=["any", "stand-in"])
def each_host(host: str, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "any":
        yield host
    else:
        with PubSubServer() as server:
            yield server.host


async def test_messages_are_taken_settled_and_come_again(each_host: str) -> None:
    host = each_host
    async with pubsub_topics(host, "prompts", "prompts.dead") as topics:
        one, two = (PubSubSource(topics.url, "prompts", "prompts.dead") for _ in range(2))
        first = await topics.put("prompts", b"0", reply_to="answers")
        (taken,) = await one.take(5, LIMIT_S)
        assert (taken.body, taken.id, taken.reply_to) == (b"0", first, "answers")
        second = await topics.put("prompts", b"1")
        (other,) = await two.take(5, LIMIT_S)
        assert (other.body, other.id, other.reply_to) == (b"1", second, None)
        await two.acknowledge(other)
        await one.close()
        (again,) = await two.take(5, LIMIT_S)
        assert (again.body, again.id) == (b"0", first), "its taker is gone"
        await two.reject(again, "it is poison: ä" * 200)
        (letter,) = await topics.get("prompts.dead")
        assert (letter.data, letter.attributes[MESSAGE_ID]) == (b"0", first)
        assert letter.attributes["reply_to"] == "answers"
        assert letter.attributes[REASON].startswith("it is poison: ä")
        assert await two.take(1, 0.2) == []
        await two.close()


async def test_no_more_is_taken_than_is_asked_for(host: str) -> None:
    async with pubsub_topics(host, "prompts", "prompts.dead") as topics:
        source = PubSubSource(topics.url, "prompts", "prompts.dead")
        for number in range(5):
            await topics.put("prompts", str(number).encode())
        found = [*await source.take(2, LIMIT_S)]
        assert 1 <= len(found) <= 2
        while len(found) < 5:
            found += await source.take(5 - len(found), LIMIT_S)
        assert sorted(each.body for each in found) == [b"0", b"1", b"2", b"3", b"4"]
        for each in found:
            await source.acknowledge(each)
        await source.close()


async def test_what_is_not_settled_yet_is_kept(host: str) -> None:
    async with pubsub_topics(host, "prompts.dead") as topics:
        await topics.make("prompts", ack_deadline_seconds=10)
        one, two = (PubSubSource(topics.url, "prompts", "prompts.dead", first_s=0.05) for _ in range(2))
        lent: list[int] = []
        lend, again = one._lend, asyncio.Event()

        async def noted(ack_ids: object, seconds: int) -> None:
            await lend(ack_ids, seconds)  # type: ignore[arg-type]
            lent.append(seconds)
            again.set()

        one._lend = noted  # type: ignore[method-assign]
        await topics.put("prompts", b"0")
        (taken,) = await one.take(1, LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            await again.wait()
        assert lent == [60]
        assert await two.take(1, 0.2) == []
        await one.acknowledge(taken)
        assert one._held.handles == []
        await one.close()
        await two.close()


async def test_replies_keep_their_order_or_are_refused(host: str) -> None:
    async with pubsub_topics(host, "prompts", "prompts.dead") as topics:
        await topics.make("answers", enable_message_ordering=True)
        source = PubSubSource(topics.url, "prompts", "prompts.dead")
        for sequence in (1, 2, 3):
            to = "answers" if sequence == 1 else topics.topic("answers")
            await source.reply(to, "7", sequence, json.dumps({"n": sequence}).encode())
        found: list[Any] = []
        while len(found) < 3:
            found += await topics.get("answers", most=3)
        assert [json.loads(each.data)["n"] for each in found] == [1, 2, 3]
        assert {each.ordering_key for each in found} == {"7"}
        assert dict(found[0].attributes) == {"id": "7", "sequence": "1"}
        with pytest.raises(ReplyRefused, match=r"there is no projects/.*/topics/nowhere"):
            await source.reply("nowhere", "7", 1, b"{}")
        with pytest.raises(ReplyTooLong):
            await source.reply("answers", "7", 1, b"x" * 10_000_000)
        await source.close()


async def test_what_is_missing_is_named_and_waited_for(host: str) -> None:
    async with pubsub_topics(host, "prompts") as topics:
        source = PubSubSource(topics.url, "prompts", "prompts.dead")
        with pytest.raises(BrokerAway, match=r"there is no projects/.*/topics/prompts\.dead"):
            await source.take(1, 0.1)
        await topics.make("prompts.dead")
        await topics.put("prompts", b"x")
        (found,) = await source.take(1, LIMIT_S)
        await source.acknowledge(found)
        await source.close()
        other = PubSubSource(topics.url, "other", "prompts.dead")
        with pytest.raises(BrokerAway, match=r"there is no projects/.*/subscriptions/other"):
            await other.take(1, 0.1)
        await other.close()


async def test_missing_permissions_are_named() -> None:
    with PubSubServer() as server:
        async with pubsub_topics(server.host, "prompts", "prompts.dead", "answers") as topics:
            server.denied |= {topics.topic("answers"), topics.topic("prompts.dead")}
            source = PubSubSource(topics.url, "prompts", "prompts.dead")
            await topics.put("prompts", b"x")
            (found,) = await source.take(1, LIMIT_S)
            with pytest.raises(ReplyRefused, match=r"no permission for .*/answers"):
                await source.reply("answers", "7", 1, b"{}")
            with pytest.raises(BrokerAway, match=r"no permission for .*/prompts\.dead"):
                await source.reject(found, "it is poison")
            assert source._held.handles == [], "it comes again, and is not kept from others"
            server.denied.add(topics.subscription("prompts"))
            with pytest.raises(BrokerAway, match=r"no permission for .*/subscriptions/prompts"):
                await source.take(1, 0.1)
            await source.close()


async def test_a_server_that_is_not_there_is_away() -> None:
    source = PubSubSource(f"pubsub+insecure://127.0.0.1:{free_port()}/p", "prompts", "prompts.dead")
    with pytest.raises(BrokerAway):
        await source.take(1, 0.1)
    await source.close()


async def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    source = PubSubSource("pubsub://p", "prompts", "prompts.dead")
    with pytest.raises(BrokerAway, match="no Google credentials"):
        await source.take(1, 0.1)
    await source.close()


def test_urls_name_a_project_and_perhaps_a_host() -> None:
    assert pubsub_place("pubsub://my-project") == ("pubsub.googleapis.com", "my-project", False)
    regional = "europe-west1-pubsub.googleapis.com"
    assert pubsub_place(f"pubsub://{regional}/p") == (regional, "p", False)
    assert pubsub_place("pubsub+insecure://localhost:8085/p") == ("localhost:8085", "p", True)
    for url, reason in (
        ("pubsub+insecure://localhost:8085", "project is missing"),
        ("pubsub://h:1", "project is missing"),
        ("pubsub://a/b/c", "pubsub://PROJECT"),
        ("pubsub://", "pubsub://PROJECT"),
        ("pubsub://user:secret@p", "credentials"),
        ("pubsub://h:port/p", "[Pp]ort"),
    ):
        with pytest.raises(ValueError, match=reason):
            pubsub_place(url)
