"""A queue of SQS feeds jobs: long polls take messages, which come again, are rejected, and replied to. On
moto's server, by HTTP."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.jobs.queues.source import BrokerAway, ReplyRefused, ReplyTooLong
from gateway.jobs.queues.sqs import MESSAGE_ID, REASON, SOURCE_QUEUE, SqsSource, _loaded_session, sqs_endpoint
from shared.process.ports import free_port
from tests.gateway.jobs.queues.sqs_queues import LIMIT_S, SESSION, Queues, sqs_queues
from tests.support.sqs_server import REGION, checked_permissions, set_credentials, sqs_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with sqs_server() as url:
        yield url


@pytest.fixture
def url(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    set_credentials(monkeypatch)
    _loaded_session.cache_clear()
    return server


def source(queues: Queues, name: str = "in", dead: str = "in-dead", **given: Any) -> SqsSource:
    return SqsSource(queues.url, queues.name(name), queues.name(dead), **given)


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


async def test_messages_are_taken_settled_and_come_again(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead") as queues:
        one, two = source(queues), source(queues)
        first = await queues.put("in", "0", MessageAttributes={"reply_to": text("answers")})
        (taken,) = await one.take(5, LIMIT_S)
        assert (taken.body, taken.id, taken.reply_to) == (b"0", first, "answers")
        second = await queues.put("in", "1")
        (other,) = await two.take(5, LIMIT_S)
        assert (other.body, other.id, other.reply_to) == (b"1", second, None)
        await two.acknowledge(other)
        await one.close()
        (again,) = await two.take(5, LIMIT_S)
        assert (again.body, again.id) == (b"0", first), "its taker is gone"
        await two.reject(again, "it is poison: ä")
        letter = await queues.get("in-dead")
        assert letter["Body"] == "0"
        said = {name: each["StringValue"] for name, each in letter["MessageAttributes"].items()}
        assert said == {
            REASON: "it is poison: ä",
            MESSAGE_ID: first,
            SOURCE_QUEUE: queues.name("in"),
            "reply_to": "answers",
        }
        assert await two.take(1, 0.0) == []
        await two.close()


async def test_no_more_is_taken_than_is_asked_for(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead") as queues:
        for number in range(25):
            await queues.put("in", str(number))
        taker = source(queues)
        assert len(await taker.take(2, 0.0)) == 2
        assert len(await taker.take(100, 0.0)) == 10
        await taker.close()


async def test_what_is_not_settled_yet_stays_invisible_to_others(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead") as queues:
        taker = source(queues, visibility_s=2)
        renewed, change = asyncio.Event(), taker._change_visibility

        async def noted(*given: Any) -> None:
            await change(*given)
            renewed.set()

        taker._change_visibility = noted  # type: ignore[assignment, method-assign]
        await queues.put("in", "0")
        (taken,) = await taker.take(1, LIMIT_S)
        for _ in range(3):  # for longer than it was lent at first
            async with asyncio.timeout(LIMIT_S):
                await renewed.wait()
            renewed.clear()
        other = source(queues)
        assert await other.take(1, 0.0) == []
        await other.close()
        await taker.acknowledge(taken)
        assert taker._held.handles == []
        await taker.close()


async def test_a_message_that_is_another_s_by_now_is_settled(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead") as queues:
        one, two = source(queues), source(queues)
        await queues.put("in", "0")
        (taken,) = await one.take(1, LIMIT_S)
        await one._change_visibility(one._client, [taken.handle["ReceiptHandle"]], 0)  # type: ignore[index]
        (again,) = await two.take(1, LIMIT_S)
        await two.acknowledge(again)
        await one.acknowledge(taken)
        assert one._held.handles == []
        await one.close()
        await two.close()


async def test_fifo_queues_keep_group_and_deduplication_id(url: str) -> None:
    async with sqs_queues(url, "in-dead.fifo", "out.fifo") as queues:
        await queues.make("in.fifo", ContentBasedDeduplication="true")
        taker = source(queues, "in.fifo", "in-dead.fifo")
        await queues.put("in.fifo", "0", MessageGroupId="g", MessageDeduplicationId="order-17")
        by_content = await queues.put("in.fifo", "1", MessageGroupId="g")
        taken = list(await taker.take(5, LIMIT_S))
        assert [(each.body, each.id) for each in taken] == [(b"0", "order-17"), (b"1", by_content)]
        await taker.reject(taken[0], "it is poison")
        letter = await queues.get("in-dead.fifo")
        assert (letter["Body"], letter["Attributes"]["MessageGroupId"]) == ("0", "g")
        await taker.acknowledge(taken[1])
        for sequence in (1, 2, 2, 3):
            to = queues.name("out.fifo") if sequence == 1 else queues.urls["out.fifo"]
            await taker.reply(to, "ä 7", sequence, json.dumps({"n": sequence}).encode())
        said = [await queues.get("out.fifo") for _ in range(3)]
        assert [json.loads(each["Body"])["n"] for each in said] == [1, 2, 3], "in order, each of them once"
        assert len({each["Attributes"]["MessageGroupId"] for each in said}) == 1
        await taker.close()


async def test_replies_arrive_or_are_refused(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead", "out") as queues:
        replier = source(queues)
        await replier.reply(queues.urls["out"], "7", 3, '{"a": "\uffff"}'.encode())
        reply = await queues.get("out")
        assert json.loads(reply["Body"]) == {"a": "\uffff"}
        assert reply["Body"].isascii(), "SQS takes no noncharacters"
        sent = {name: each["StringValue"] for name, each in reply["MessageAttributes"].items()}
        assert sent == {"id": "7", "sequence": "3"}
        with pytest.raises(ReplyRefused, match="there is no queue nowhere"):
            await replier.reply("nowhere", "7", 1, b"{}")
        with pytest.raises(ReplyRefused, match="there is no queue"):
            await replier.reply(f"{queues.urls['out']}-not", "7", 1, b"{}")
        await replier.close()


async def test_a_reply_may_have_as_many_bytes_as_sqs_takes(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead", "out") as queues:
        replier = source(queues)
        attributes = len("idString7sequenceNumber1")
        most = 1_048_576 - attributes
        await replier.reply(queues.name("out"), "7", 1, b"x" * most)
        assert len((await queues.get("out"))["Body"]) == most
        with pytest.raises(ReplyTooLong, match="1048576"):
            await replier.reply(queues.name("out"), "7", 1, b"x" * (most + 1))
        await replier.close()


@pytest.mark.filterwarnings("ignore:Sending a large body")  # of the client that puts it there
async def test_a_dead_letter_has_what_there_is_room_for(url: str) -> None:
    async with sqs_queues(url, "in", "in-dead") as queues:
        taker = source(queues)
        many = {f"a{number}": text("v") for number in range(10)}
        await queues.put("in", "x", MessageAttributes=many)
        await queues.put("in", "y" * 1_048_576)
        for each in [*await taker.take(1, LIMIT_S), *await taker.take(1, LIMIT_S)]:
            await taker.reject(each, "it is poison")
        letters = {each["Body"][0]: each for each in [await queues.get("in-dead") for _ in range(2)]}
        assert len(letters["x"]["MessageAttributes"]) == 10
        assert letters["x"]["MessageAttributes"][REASON]["StringValue"] == "it is poison"
        assert len(letters["y"]["Body"]) == 1_048_576
        assert "MessageAttributes" not in letters["y"]
        await taker.close()


async def test_what_is_missing_is_named_and_waited_for(url: str) -> None:
    async with sqs_queues(url, "in") as queues:
        taker = source(queues)
        with pytest.raises(BrokerAway, match=f"there is no queue {queues.name('in-dead')} at http"):
            await taker.take(1, 0.0)
        await queues.make("in-dead")
        await queues.put("in", "x")
        (found,) = await taker.take(1, LIMIT_S)
        await taker.acknowledge(found)
        await taker.close()
        other = source(queues, "other")
        with pytest.raises(BrokerAway, match=f"there is no queue {queues.name('other')}"):
            await other.take(1, 0.0)
        await other.close()


async def test_missing_permissions_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = sqs_endpoint(url)[0]
    async with sqs_queues(url, "in", "in-dead", "out") as queues:
        async with SESSION.create_client("iam", region_name=REGION, endpoint_url=endpoint) as iam:
            await iam.create_user(UserName="nobody")
            key = (await iam.create_access_key(UserName="nobody"))["AccessKey"]
        set_credentials(monkeypatch, key["AccessKeyId"], key["SecretAccessKey"])
        _loaded_session.cache_clear()
        taker = source(queues)
        with checked_permissions():
            with pytest.raises(BrokerAway, match=r"(?s)no permission sqs:GetQueueUrl .*-in: .*nobody is not"):
                await taker.take(1, 0.0)
            with pytest.raises(ReplyRefused, match="no permission sqs:SendMessage for the queue"):
                await taker.reply(queues.urls["out"], "7", 1, b"{}")
        await taker.close()


async def test_a_server_that_is_not_there_is_away(url: str) -> None:
    taker = SqsSource(f"http://127.0.0.1:{free_port()}?region={REGION}", "in", "in-dead")
    with pytest.raises(BrokerAway, match=r"[Cc]onnect"):
        await taker.take(1, 0.0)
    await taker.close()


async def test_missing_credentials_and_regions_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = SqsSource(url.partition("?")[0], "in", "in-dead")
    with pytest.raises(BrokerAway, match="no AWS region"):
        await taker.take(1, 0.0)
    await taker.close()
    _loaded_session.cache_clear()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    taker = SqsSource(url, "in", "in-dead")
    with pytest.raises(BrokerAway, match="no AWS credentials"):
        await taker.take(1, 0.0)
    await taker.close()


def test_urls_name_a_region_or_an_endpoint() -> None:
    assert sqs_endpoint("sqs://eu-central-1") == (None, "eu-central-1")
    aws = "https://sqs.us-east-1.amazonaws.com"
    assert sqs_endpoint(aws) == (aws, "us-east-1")
    assert sqs_endpoint("http://localhost:4566/?region=eu-west-1") == ("http://localhost:4566", "eu-west-1")
    assert sqs_endpoint("http://localhost:4566") == ("http://localhost:4566", None)
    for wrong, reason in (
        ("sqs://", "region is needed"),
        ("sqs://prompts", "region is needed"),
        (f"{aws}/123456789012/prompts", "goes into 'queue'"),
        ("https://key:secret@sqs.us-east-1.amazonaws.com", "credentials"),
        ("http://localhost:port", "[Pp]ort"),
        ("http://", "no host"),
    ):
        with pytest.raises(ValueError, match=reason):
            sqs_endpoint(wrong)


async def test_an_endpoint_that_the_library_does_not_take_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)
    taker = SqsSource("http://local_stack:4566?region=eu-west-1", "in", "in-dead")
    with pytest.raises(BrokerAway, match="local_stack"):
        await taker.take(1, 0.0)
    await taker.close()
